"""Simplify an exported graph: fewer and larger nodes with the same results."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from onnx import NodeProto, helper

from accel.compressors.graph.draft import Draft, rename_readers
from accel.compressors.graph.payload import MICROSOFT
from accel.compressors.graph.sizes import Shape
from accel.compressors.graph.wiring import Wiring, int_attribute, is_plain_gemm, needed

_FUSED = {"Gemm": "FusedGemm", "Conv": "FusedConv"}
_ACTIVATIONS = ("Relu", "Tanh", "Sigmoid")
_ELEMENTWISE = frozenset({*_ACTIVATIONS, "Elu", "LeakyRelu", "Softplus", "Erf"})


def simplify(draft: Draft) -> None:
    """Apply every rewrite of a draft, then remove unused nodes."""
    _bypass_identities(draft)
    _fold_sizes(draft)
    _dequantise_images(draft)
    _matmul_to_gemm(draft)
    _join_reshapes(draft)
    _bypass_added_axes(draft)
    _merge_heads(draft)
    _repeat_by_sums(draft)
    draft.nodes, _ = needed(draft.nodes, draft.outputs)


def fuse_activations(nodes: Sequence[NodeProto], outputs: Sequence[str]) -> list[NodeProto]:
    """Fuse each Gemm or Conv whose only reader is an activation into onnxruntime's FusedGemm or FusedConv."""
    wiring = Wiring(nodes, outputs)
    fused: list[NodeProto] = []
    skipped: set[str] = set()
    for node in nodes:
        if node.output[0] in skipped:
            continue
        after = wiring.only_consumer(node.output[0])
        fusable = is_plain_gemm(node) or node.op_type == "Conv"
        if not fusable or after is None or after.op_type not in _ACTIVATIONS:
            fused.append(node)
            continue
        joined = helper.make_node(
            _FUSED[node.op_type], node.input, after.output, name=node.name, domain=MICROSOFT, activation=after.op_type
        )
        joined.attribute.extend(node.attribute)
        fused.append(joined)
        skipped.add(after.output[0])
    return fused


def _bypass_identities(draft: Draft) -> None:
    for node in list(draft.nodes):
        if node.op_type == "Identity" and node.output[0] not in draft.outputs:
            draft.nodes.remove(node)
            rename_readers(draft.nodes, node.output[0], node.input[0])


def _dequantise_images(draft: Draft) -> None:
    """Cast(uint8), then ÷ or × a constant, becomes one DequantizeLinear: pixels are visible as integer codes."""
    wiring = draft.wiring()
    for cast in [n for n in draft.nodes if n.op_type == "Cast" and n.input[0] in draft.uint8_inputs]:
        scale_node = wiring.only_consumer(cast.output[0])
        if scale_node is None or scale_node.op_type not in ("Div", "Mul") or scale_node.input[0] != cast.output[0]:
            continue
        factor = draft.constants.get(scale_node.input[1])
        if factor is None or factor.size != 1 or float(factor.reshape(())) <= 0.0:
            continue
        value = np.float32(factor.reshape(()))
        scale = f"{scale_node.output[0]}:scale"
        draft.constants[scale] = np.asarray(np.float32(1.0) / value if scale_node.op_type == "Div" else value)
        node = helper.make_node(
            "DequantizeLinear", [cast.input[0], scale], [scale_node.output[0]], name=scale_node.name
        )
        draft.replace([cast, scale_node], node)


def _fold_sizes(draft: Draft) -> None:
    """What is computed from sizes becomes constants, as far as it is the same for any number of rows."""
    draft.constants.update(draft.sizes.fixed)
    draft.nodes = [node for node in draft.nodes if not draft.sizes.fixed.keys() >= set(node.output)]
    for node in draft.nodes:
        shape = draft.sizes.shapes.get(node.output[0], (None, None))
        if (
            node.op_type == "Reshape"
            and node.input[1] in draft.sizes.computed
            and shape.count(None) < 2
            and 0 not in shape
        ):
            node.input[1] = _target(draft, f"{node.output[0]}:sizes", shape)


def _target(draft: Draft, name: str, shape: Shape) -> str:
    """A constant of this name: what a Reshape to a shape takes, of which one size may be open."""
    draft.constants[name] = np.asarray([-1 if size is None else size for size in shape], dtype=np.int64)
    return name


def _matmul_to_gemm(draft: Draft) -> None:
    """x·W for a constant matrix W becomes a Gemm, including a bias that is added to it; of more than two dimensions
    between a Reshape to rows and one back."""
    for node in [n for n in draft.nodes if n.op_type == "MatMul"]:
        x, weight = node.input
        shape = draft.sizes.shapes.get(node.output[0], ())
        if len(shape) < 2 or draft.rank(x) != len(shape) or draft.rank(weight) != 2 or not draft.is_parameter(weight):
            continue
        if shape.count(None) > 1 or draft.width(x) is None:
            continue
        add = draft.wiring().only_consumer(node.output[0])
        bias = ""
        if add is not None and add.op_type == "Add":
            other = add.input[1] if add.input[0] == node.output[0] else add.input[0]
            if draft.is_parameter(other) and draft.rank(other) == 1:
                bias = other
        output = add.output[0] if bias and add is not None else node.output[0]
        removed = [node, add] if bias and add is not None else [node]
        rows, product = (x, output) if len(shape) == 2 else (f"{output}:rows", f"{output}:product")
        made = helper.make_node("Gemm", [rows, weight, bias] if bias else [rows, weight], [product], name=node.name)
        nodes = [made]
        if len(shape) > 2:
            draft.sizes.shapes[product] = (None, shape[-1])
            flat = _target(draft, f"{rows}:sizes", (None, draft.width(x)))
            back = _target(draft, f"{product}:sizes", shape)
            before = helper.make_node("Reshape", [x, flat], [rows], name=f"{node.name}/rows")
            after = helper.make_node("Reshape", [product, back], [output], name=f"{node.name}/back")
            nodes = [before, made, after]
        draft.replace(removed, *nodes)


def _join_reshapes(draft: Draft) -> None:
    """Element-wise operators compute before a Reshape that they alone read, and of two Reshapes the second stays."""
    position = 0
    while position < len(draft.nodes):
        node, wiring = draft.nodes[position], draft.wiring()
        position += 1
        if node.op_type != "Reshape" or node.input[1] not in draft.constants:
            continue
        reader = wiring.only_consumer(node.output[0])
        if reader is not None and reader.op_type in _ELEMENTWISE and reader.input[0] == node.output[0]:
            source, made = node.input[0], reader.output[0]
            early = f"{made}:rows"
            draft.sizes.shapes[early] = draft.sizes.shapes.get(source, ())
            reader.input[0], reader.output[0] = source, early
            node.input[0], node.output[0] = early, made
            draft.nodes = [other for other in draft.nodes if other is not node]
            position = next(index for index, other in enumerate(draft.nodes) if other is reader) + 1
            draft.nodes.insert(position, node)
            continue
        for second in wiring.consumers[node.output[0]]:
            target = draft.constants.get(second.input[1]) if second.op_type == "Reshape" else None
            if target is None or not target.all():
                continue
            second.input[0] = node.input[0]
            if draft.sizes.shapes.get(node.input[0]) == tuple(None if size < 0 else size for size in target.tolist()):
                draft.bypass(second, node.input[0])


def _bypass_added_axes(draft: Draft) -> None:
    """An axis that is added and taken away again, as around one step of a sequence, is left out."""
    for node in list(draft.nodes):
        producer = draft.wiring().producer
        added = producer.get(node.input[0]) if node.op_type in ("Squeeze", "Gather") and len(node.input) == 2 else None
        if added is None or added.op_type != "Unsqueeze":
            continue
        axes, taken = (draft.constants.get(reader.input[1]) for reader in (added, node))
        if axes is None or taken is None:
            continue
        wanted = axes.tolist() if node.op_type == "Squeeze" else 0
        value, made = added.input[0], node.output[0]
        keeps_name = made not in draft.outputs or (value in producer and value not in draft.outputs)
        if taken.tolist() == wanted and axes.tolist() == [int_attribute(node, "axis", axes.tolist()[0])] and keeps_name:
            draft.bypass(node, value)


def _merge_heads(draft: Draft) -> None:
    """Merge linear heads over one input, and parameters repeated for each row, that are concatenated into one Gemm.

    A repeated parameter (a Gaussian's log standard deviation) becomes rows of zero weights with itself as their bias,
    so the actor needs no nodes that compute the batch size.
    """
    for concat in [n for n in draft.nodes if n.op_type == "Concat"]:
        if int_attribute(concat, "axis", 0) not in (1, -1) or draft.rank(concat.output[0]) != 2:
            continue
        wiring = draft.wiring()
        parts = [wiring.producer.get(name) for name in concat.input]
        heads = [part for part in parts if part is not None and _is_head(draft, wiring, part)]
        repeated = [part for part in parts if part is not None and _is_repeated(draft, part)]
        if not heads or len(heads) + len(repeated) != len(parts) or len({head.input[0] for head in heads}) != 1:
            continue
        columns = draft.width(heads[0].input[0])
        if len(concat.input) > 1 and columns is not None:
            _merge(draft, concat, [part for part in parts if part is not None], heads[0].input[0], columns)


def _is_head(draft: Draft, wiring: Wiring, node: NodeProto) -> bool:
    return (
        is_plain_gemm(node)
        and int_attribute(node, "transB", 0) == 1
        and len(node.input) == 3
        and draft.is_parameter(node.input[1])
        and draft.is_parameter(node.input[2])
        and not wiring.is_output(node.output[0])
        and sum(reader.op_type != "Shape" for reader in wiring.consumers[node.output[0]]) == 1
    )


def _is_repeated(draft: Draft, node: NodeProto) -> bool:
    """For each row; one number also for each column, where it is known how many these are."""
    if node.op_type != "Expand" or not draft.is_parameter(node.input[0]):
        return False
    is_open = draft.width(node.input[0]) == 1 and draft.width(node.output[0]) is None
    return not is_open and draft.rank(node.input[0]) in (1, 2)


def _merge(draft: Draft, concat: NodeProto, parts: Sequence[NodeProto], x: str, columns: int) -> None:
    stem = concat.output[0]
    flat = f"{stem}:vector"
    draft.constants[flat] = np.asarray([-1], dtype=np.int64)
    weights, biases = [], []
    for index, part in enumerate(parts):
        if part.op_type == "Gemm":
            weights.append(part.input[1])
            biases.append(part.input[2])
            continue
        bias, weight = f"{stem}:bias{index}", f"{stem}:weight{index}"
        size, vector = f"{bias}:size", f"{bias}:vector"
        length = prod(known or 1 for known in draft.sizes.shapes[part.input[0]])
        rows = length if length > 1 else draft.width(part.output[0]) or 1
        draft.constants[size], draft.constants[weight] = np.asarray([rows]), np.zeros((rows, columns), np.float32)
        draft.prologue.append(helper.make_node("Reshape", [part.input[0], flat], [vector]))
        draft.prologue.append(helper.make_node("Expand", [vector, size], [bias]))
        weights.append(weight)
        biases.append(bias)
    draft.prologue.append(helper.make_node("Concat", weights, [f"{stem}:weight"], axis=0))
    draft.prologue.append(helper.make_node("Concat", biases, [f"{stem}:bias"], axis=0))
    merged = helper.make_node("Gemm", [x, f"{stem}:weight", f"{stem}:bias"], [stem], name=parts[0].name, transB=1)
    draft.replace([concat], merged)


def _repeat_by_sums(draft: Draft) -> None:
    """What has a row for each already is not repeated; a parameter beside no heads is added to zero times the value
    whose rows it is repeated for: an actor computes no sizes then, and compiled kernels have sums."""
    for node in [n for n in draft.nodes if n.op_type == "Expand"]:
        size = draft.wiring().producer.get(node.input[1])
        if size is None or size.op_type != "Shape" or draft.rank(size.input[0]) != 2:
            continue
        (stem,), (value,), shapes = node.output, size.input, draft.sizes.shapes
        if shapes.get(node.input[0]) == shapes.get(stem) == (None, draft.width(stem)):
            draft.bypass(node, node.input[0])
        elif _is_repeated(draft, node) and draft.width(value) == draft.width(stem) is not None:
            draft.constants[f"{stem}:zero"] = np.zeros((), dtype=np.float32)
            zeros = helper.make_node("Mul", [value, f"{stem}:zero"], [f"{stem}:zeros"], name=f"{stem}:zeros")
            repeated = helper.make_node("Add", [f"{stem}:zeros", node.input[0]], [stem], name=node.name)
            draft.replace([node], zeros, repeated)
