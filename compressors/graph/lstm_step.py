"""One LSTM step as a matrix product and element-wise nodes, so that every format treats it as a linear layer.

    g = [x, h] · [W, R]ᵀ + b_W + b_R;   (i, o, f) = σ(g₀..₂);   c' = f ⊙ c + i ⊙ tanh(g₃);   h' = o ⊙ tanh(c')

Source: the ONNX operator LSTM, with its gate order i, o, f, c. Deviations: a sequence of one step.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, helper

from accel.compressors.graph.draft import Draft
from accel.compressors.graph.wiring import Wiring, attributes, optional_input

_KNOWN_ATTRIBUTES = {"hidden_size", "direction", "layout", "input_forget"}
_X, _W, _R, _B, _LENGTHS, _H, _C, _PEEPHOLES = range(8)


def unroll_one_step(draft: Draft) -> None:
    """Rewrite every plain LSTM that runs over one step with a given state; leave others unchanged."""
    for node in [n for n in draft.nodes if n.op_type == "LSTM"]:
        if _is_plain_step(draft, node):
            _unroll(draft, node)


def _is_plain_step(draft: Draft, node: NodeProto) -> bool:
    values = attributes(node)
    plain = (
        set(values) <= _KNOWN_ATTRIBUTES
        and values.get("direction", "forward") == "forward"
        and not values.get("layout", 0)
        and not values.get("input_forget", 0)
    )
    weights = [optional_input(node, index) for index in (_W, _R, _B)]
    states = [optional_input(node, index) for index in (_H, _C)]
    return (
        plain
        and all(name and draft.is_parameter(name) for name in weights)
        and not optional_input(node, _LENGTHS)
        and not optional_input(node, _PEEPHOLES)
        and all(_matrix(draft.wiring(), draft, name) for name in [node.input[_X], *states])
    )


def _matrix(wiring: Wiring, draft: Draft, name: str) -> str:
    """The matrix that was unsqueezed at axis 0 to a value, so a sequence of one step; "" if there is none."""
    producer = wiring.producer.get(name)
    if producer is None or producer.op_type != "Unsqueeze":
        return ""
    axes = draft.constants.get(producer.input[1])
    return producer.input[0] if axes is not None and axes.tolist() == [0] else ""


def _unroll(draft: Draft, node: NodeProto) -> None:
    wiring = draft.wiring()
    hidden = int(attributes(node)["hidden_size"])  # type: ignore[arg-type]
    x, h, c = (_matrix(wiring, draft, node.input[index]) for index in (_X, _H, _C))
    path = node.name.rsplit("/", 1)[0]
    stem = f"{path}:{node.output[1] or node.output[0]}"
    draft.prologue += _weights(draft, node, stem, hidden)
    draft.constants[f"{stem}:gates"] = np.asarray([3 * hidden, hidden], dtype=np.int64)
    draft.constants[f"{stem}:sigmoids"] = np.asarray([hidden] * 3, dtype=np.int64)
    gates, sigmoids = f"{stem}:gates", f"{stem}:sigmoids"

    def make(operator: str, inputs: list[str], outputs: list[str], **values: int) -> NodeProto:
        full = [f"{stem}:{name}" for name in outputs]
        name = f"{path}/{operator}_{outputs[0]}"
        made: NodeProto = helper.make_node(operator, inputs, full, name, None, None, None, **values)
        return made

    def own(*names: str) -> list[str]:
        return [f"{stem}:{name}" for name in names]

    nodes = [
        make("Concat", [x, h], ["xh"], axis=1),
        make("Gemm", own("xh", "weight", "bias"), ["g"], transB=1),
        make("Split", [*own("g"), gates], ["g_iof", "g_c"], axis=1),
        make("Sigmoid", own("g_iof"), ["iof"]),
        make("Split", [*own("iof"), sigmoids], ["i", "o", "f"], axis=1),
        make("Tanh", own("g_c"), ["candidate"]),
        make("Mul", [*own("f"), c], ["kept"]),
        make("Mul", own("i", "candidate"), ["written"]),
        make("Add", own("kept", "written"), ["c_next"]),
        make("Tanh", own("c_next"), ["squashed"]),
        make("Mul", own("o", "squashed"), ["h_next"]),
    ]
    draft.replace_by_many(node, [*nodes, *_outputs(draft, node, stem)])
    _bypass_squeezes(draft, node)


def _weights(draft: Draft, node: NodeProto, stem: str, hidden: int) -> list[NodeProto]:
    """Prologue nodes: [W, R] as one matrix [4H, I + H], and the sum of the two biases [4H]."""
    draft.constants[f"{stem}:first"] = np.asarray([0], dtype=np.int64)
    draft.constants[f"{stem}:halves"] = np.asarray([4 * hidden, 4 * hidden], dtype=np.int64)
    return [
        helper.make_node("Concat", [node.input[_W], node.input[_R]], [f"{stem}:weight3"], axis=2),
        helper.make_node("Squeeze", [f"{stem}:weight3", f"{stem}:first"], [f"{stem}:weight"]),
        helper.make_node("Squeeze", [node.input[_B], f"{stem}:first"], [f"{stem}:biases"]),
        helper.make_node("Split", [f"{stem}:biases", f"{stem}:halves"], [f"{stem}:bw", f"{stem}:br"], axis=0),
        helper.make_node("Add", [f"{stem}:bw", f"{stem}:br"], [f"{stem}:bias"]),
    ]


def _outputs(draft: Draft, node: NodeProto, stem: str) -> list[NodeProto]:
    """The operator's outputs Y [1, 1, B, H], Y_h and Y_c [1, B, H], from the matrices."""
    draft.constants[f"{stem}:axis"] = np.asarray([0], dtype=np.int64)
    draft.constants[f"{stem}:axes"] = np.asarray([0, 1], dtype=np.int64)
    matrices = [(f"{stem}:h_next", "axes"), (f"{stem}:h_next", "axis"), (f"{stem}:c_next", "axis")]
    return [
        helper.make_node("Unsqueeze", [matrix, f"{stem}:{axes}"], [output], name=f"{node.name}:{output}")
        for output, (matrix, axes) in zip(node.output, matrices, strict=False)
        if output
    ]


def _bypass_squeezes(draft: Draft, node: NodeProto) -> None:
    """Bypass readers that take the added axes away."""
    for output in filter(None, node.output):
        wiring = draft.wiring()
        unsqueeze = wiring.producer[output]
        axes = draft.constants[unsqueeze.input[1]].tolist()
        for reader in wiring.consumers[output]:
            if _takes_away(draft, reader, axes):
                draft.bypass(reader, unsqueeze.input[0])


def _takes_away(draft: Draft, reader: NodeProto, axes: list[int]) -> bool:
    """Whether a node squeezes these axes of size 1, or takes the only element of the first, as ``h[0]`` does."""
    constant = draft.constants.get(reader.input[1]) if len(reader.input) > 1 else None
    if constant is None:
        return False
    if reader.op_type == "Gather":
        return axes == [0] and attributes(reader).get("axis", 0) == 0 and constant.tolist() == 0
    return reader.op_type == "Squeeze" and bool(constant.tolist() == axes)
