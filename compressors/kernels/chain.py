"""A policy of dense layers, recurrent ones and int8 convolutions included, in one call of a compiled kernel. No torch,
no onnx.

A graph runtime looks up, checks and calls a kernel for each node: for a policy of 64×2 that takes five to eight times
as long as the whole call here. Here the whole chain, from observations and state to distribution parameters and next
state, is one function.
Equal codes give onnxruntime's answers to the bit; sums of floats differ by rounding, and a code made of them may round
the other way.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isclose, pi, prod
from typing import NamedTuple, cast

import numpy as np

from accel.compressors.arrays import Array
from accel.compressors.artifact import CompressedPolicy, TensorSpec
from accel.compressors.kernels.graph import Attribute, Graph, Node, Value, read_graph
from accel.compressors.kernels.library import Kernels, kernels_here, why_none
from accel.compressors.quantisation.affine import GREATEST_HIGH, LOW_CODES, LOW_ZERO

# in the order of ACTIVATIONS in chain.c
_ACTIVATIONS = (
    "", "Relu", "Tanh", "Sigmoid", "Elu", "Silu", "Gelu", "TanhGelu", "LeakyRelu", "Clip", "Softplus",
)  # fmt: skip
_FUSED = ("", "Relu", "Tanh", "Sigmoid")
_ALPHAS = {"Elu": 1.0, "LeakyRelu": 0.01}
# What torch exports for an activation that is no operator. An operand is "x", the activation's input, or the number of
# an operation before, or a constant.
_PATTERNS: dict[str, tuple[tuple[str, tuple[str | int | float, ...]], ...]] = {
    "Silu": (("Sigmoid", ("x",)), ("Mul", ("x", 0))),
    "Gelu": (("Div", ("x", 2**0.5)), ("Erf", (0,)), ("Add", (1, 1.0)), ("Mul", ("x", 2)), ("Mul", (3, 0.5))),
    "TanhGelu": (
        ("Mul", ("x", "x")), ("Mul", ("x", 0)), ("Mul", (1, 0.044715)), ("Add", ("x", 2)),
        ("Mul", (3, (2 / pi) ** 0.5)), ("Tanh", (4,)), ("Add", (5, 1.0)), ("Mul", ("x", 6)), ("Mul", (7, 0.5)),
    ),
}  # fmt: skip
_OTHER_OPERATORS = {*_ACTIVATIONS, "Flatten", "Cast", "Erf"}
# in the order of chain.c
_KINDS = (
    "floats", "codes", "wide", "norm", "sum", "difference", "product", "quotient", "copy", "decode", "split", "input",
    "constant", "convolution",
)  # fmt: skip
_BINARY = {"Add": "sum", "Sub": "difference", "Mul": "product", "Div": "quotient"}
_ALIGNMENT = 64
_MOST_BYTES = 2**26  # of a row, and of an image's windows
_SIGNED_TO_UNSIGNED = 128
_FLOAT_TYPE, _BYTE_TYPE = 1, 2  # of ONNX
_LAST_AXIS = (1, -1, 2**64 - 1)  # of two; negative numbers are read as they are written
_DOMAINS = dict.fromkeys(("FusedGemm", "QGemm", "QLinearAdd"), "com.microsoft")
_SAME_OPERATOR = {"Gemm": {"alpha": 1.0, "beta": 1.0, "transA": 0}, "QGemm": {"alpha": 1.0, "transA": 0}}


class _UnsuitedError(Exception):
    """The model is nothing that the kernels know; says what is not."""


@dataclass(frozen=True)
class CodeNames:
    """Names of the scale and the zero point of a value in codes."""

    scale: str
    zero: str


class Activation(NamedTuple):
    """One of ``_ACTIVATIONS``; the α of an ELU or a leaky ReLU; the initializers of Clip's bounds ("": none)."""

    kind: str = ""
    alpha: float = 0.0
    bounds: tuple[str, str] = ("", "")


_IDENTITY = Activation()


@dataclass(frozen=True)
class Step:
    """What makes one value of a row, of others: names of initializers.

    Attributes:
        kind: of ``_KINDS``; ``join``: the values read, one behind the other; ``part``: of the value read, no copy;
            ``split``: the value read as two bytes, ``wide``: a product of such; ``input``: another than observations;
            ``constant``: a row as wide as the value read; ``convolution``: of codes to codes.
        reads: the values read; 0 is the observations, n what the step n - 1 makes.
        weight: of a product [outputs, inputs] where ``transposed``, else [inputs, outputs]; of a norm; a constant; a
            part's widths, or its first column where ``bias`` is the one behind its last.
        bias: "" without one.
        codes: of the value read, where a product or "decode" reads codes; of its high bytes, beside ``low``.
        scale, zero: of the weight's codes.
        activation: of what the step makes.
        writes: codes of what the step makes, beside its floats.
        rescales: whether sums become codes by one factor, without floats in between.
        parts, part: into how many parts the value read is cut, and which this is; of an input its index.
        window: height and width of a convolution's window, and its strides.
    """

    kind: str
    reads: tuple[int, ...]
    weight: str = ""
    transposed: bool = False
    bias: str = ""
    codes: CodeNames | None = None
    scale: str = ""
    zero: str = ""
    epsilon: float = 0.0
    activation: Activation = _IDENTITY
    writes: CodeNames | None = None
    rescales: bool = False
    parts: int = 1
    part: int = 0
    window: tuple[int, ...] = ()
    low: CodeNames | None = None


@dataclass(frozen=True)
class Chain:
    """A model as these steps: observations less ``mean``, times ``factor``, clipped, as floats and as ``codes``."""

    steps: tuple[Step, ...]
    ends: tuple[tuple[int, ...], ...]
    """After each step the values whose columns are free: nothing reads them any more."""
    results: tuple[int, ...]
    """The values that are the model's outputs."""
    mean: str
    factor: str
    clips: tuple[tuple[str, str], ...]
    codes: CodeNames | None
    widened: dict[str, str]
    """Weights in single precision, to the ones in half precision that they are made of."""
    constants: dict[str, float]
    """What initializers must hold for the activations to be what they look like."""


class _Reader:
    """Follows the values from the model's input through its nodes."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._input = graph.inputs[0].name if graph.inputs else ""
        self._is_image = bool(graph.inputs) and _is_image(graph.inputs[0])
        self._is_flat = self._is_image or (bool(graph.inputs) and len(graph.inputs[0].shape) == 2)
        self._values = {value.name: index for index, value in enumerate(graph.inputs)}
        self._coded: dict[str, tuple[int, CodeNames]] = {}
        self._split: dict[tuple[str, str], Step] = {}
        self._steps = [Step("input", (), part=index) for index in range(1, len(graph.inputs))]
        self._chain = Chain((), (), (), "", "", (), None, {}, {})
        self._uses = Counter(name for node in graph.nodes for name in node.inputs)
        self._uses.update(output.name for output in graph.outputs)
        self._rules: dict[str, Callable[[Node], None]] = {
            "Gemm": self._floats, "FusedGemm": self._floats, "QGemm": self._integers, "QuantizeLinear": self._quantise,
            "DequantizeLinear": self._decode, "QLinearAdd": self._add_codes, "LayerNormalization": self._norm,
            "QLinearConv": self._convolve, "Flatten": self._flatten,
            "Concat": self._join, "Split": self._cut, "Slice": self._slice, **dict.fromkeys(_BINARY, self._combine),
        }  # fmt: skip

    def chain(self) -> Chain:
        """Raises _UnsuitedError."""
        nodes = list(self._graph.nodes)
        lacking = sorted({node.operator for node in nodes} - self._rules.keys() - _OTHER_OPERATORS)
        if lacking:
            raise _UnsuitedError(
                f"{', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not in the compiled kernels"
            )
        if not self._graph.inputs or any(len(value.shape) != 2 for value in self._graph.inputs[1:]):
            raise _UnsuitedError("it has inputs beside the observations that are no rows of numbers")
        if self._is_image:  # it is read as codes alone
            del self._values[self._input]
        while nodes:
            operator = nodes[0].operator
            try:
                taken = self._splits(nodes) or self._wide(nodes) or self._composed(nodes) or self._take(nodes[0])
            except _UnsuitedError:
                raise _UnsuitedError(f"{operator} is not in a form that the compiled kernels run") from None
            del nodes[:taken]
        results = tuple(self._values.get(value.name, -1) for value in self._graph.outputs)
        if min(results, default=-1) < 0 or all(step.kind == "input" for step in self._steps):
            raise _UnsuitedError("an output is not made of dense layers in floats")
        return replace(self._chain, steps=tuple(self._steps), ends=self._ends(results), results=results)

    def _ends(self, results: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """See ``Chain.ends``; a part's columns are those of the whole."""
        wholes, last = [0], {0: 0}
        for index, step in enumerate(self._steps, 1):
            wholes.append(wholes[step.reads[0]] if step.kind == "part" else index)
            last.update(dict.fromkeys((wholes[value] for value in step.reads), index))
            last.setdefault(wholes[index], index)
        for result in results:
            last.pop(wholes[result], None)
        steps = range(1, len(self._steps) + 1)
        return tuple(tuple(value for value, end in last.items() if end == index) for index in steps)

    def _take(self, node: Node) -> int:
        if not node.inputs or not node.outputs or self._graph.places.keys() & {*node.outputs}:
            raise _UnsuitedError
        if node.domain != _DOMAINS.get(node.operator, ""):
            raise _UnsuitedError
        if node.operator == "Cast" and node.attributes == {"to": _FLOAT_TYPE} and self._is_fixed(node.inputs[0]):
            self._chain.widened[node.outputs[0]] = node.inputs[0]
        elif not self._normalises(node):
            rule = self._rules.get(node.operator, self._alone if node.operator in _ACTIVATIONS else None)
            if rule is None or not self._is_flat or (len(node.outputs) != 1 and node.operator != "Split"):
                raise _UnsuitedError
            rule(node)
        return 1

    def _normalises(self, node: Node) -> bool:
        """Whether a node is of the normaliser, which comes first."""
        chain, others = self._chain, node.inputs[1:]
        begins = node.inputs[0] == self._input and chain.codes is None and len(node.outputs) == 1
        if (
            not begins
            or self._is_image
            or any(0 in step.reads for step in self._steps)
            or not all(map(self._is_fixed, others))
        ):
            return False
        if node.operator == "Flatten" and node.attributes in ({}, {"axis": 1}):
            self._is_flat = True
        elif node.operator == "Sub" and len(others) == 1 and not (chain.mean or chain.factor or chain.clips):
            self._chain = replace(chain, mean=others[0])
        elif node.operator == "Mul" and len(others) == 1 and not (chain.factor or chain.clips):
            self._chain = replace(chain, factor=others[0])
        elif node.operator == "Clip" and len(others) == 2:
            self._chain = replace(chain, clips=(*chain.clips, (others[0], others[1])))
        else:
            return False
        del self._values[self._input]
        (self._input,) = node.outputs
        self._values[self._input] = 0
        return True

    def _value(self, name: str) -> int:
        if name not in self._values:
            raise _UnsuitedError
        return self._values[name]

    def _code_names(self, value: str, scale: str, zero: str) -> tuple[int, CodeNames]:
        found = self._coded.get(value)
        if found is None or found[1] != CodeNames(scale, zero):
            raise _UnsuitedError
        return found

    def _emit(self, step: Step, name: str = "") -> int:
        self._steps.append(step)
        if name:
            self._values[name] = len(self._steps)
        return len(self._steps)

    def _quantise(self, node: Node) -> None:
        if len(node.inputs) != 3 or node.attributes or not all(map(self._is_fixed, node.inputs[1:])):
            raise _UnsuitedError
        codes, value = CodeNames(*node.inputs[1:]), self._value(node.inputs[0])
        if value == 0 and self._chain.codes in (None, codes):
            self._chain = replace(self._chain, codes=codes)
        elif value and self._steps[value - 1].kind != "part" and self._steps[value - 1].writes in (None, codes):
            self._steps[value - 1] = replace(self._steps[value - 1], writes=codes)
        else:
            value = self._emit(Step("copy", (value,), writes=codes))
        self._coded[node.outputs[0]] = value, codes

    def _convolve(self, node: Node) -> None:
        attributes = dict(node.attributes)
        plain = {"dilations": (1, 1), "group": 1, "pads": (0, 0, 0, 0), "auto_pad": "NOTSET"}
        sizes = attributes.pop("kernel_shape", None), attributes.pop("strides", (1, 1))
        names = (*node.inputs, "")[:9]
        if len(names) < 9 or not all(map(self._is_fixed, names[1:8])):
            raise _UnsuitedError
        if any(plain.get(name) != value for name, value in attributes.items()):
            raise _UnsuitedError
        if self._is_image and names[0] == self._input and self._chain.codes in (None, CodeNames(*names[1:3])):
            self._chain = replace(self._chain, codes=CodeNames(*names[1:3]))
            self._coded[names[0]] = 0, CodeNames(*names[1:3])
        value, reads = self._code_names(*names[:3])
        window = tuple(size for pair in sizes if isinstance(pair, tuple) for size in pair)
        step = Step("convolution", (value,), names[3], True, self._optional(names[8]), reads, names[4], names[5])
        made = CodeNames(names[6], names[7])
        self._coded[node.outputs[0]] = self._emit(replace(step, writes=made, rescales=True, window=window)), made

    def _flatten(self, node: Node) -> None:
        if node.inputs[0] not in self._coded or node.attributes != {"axis": 1}:
            raise _UnsuitedError
        self._coded[node.outputs[0]] = self._coded[node.inputs[0]]

    def _decode(self, node: Node) -> None:
        if len(node.inputs) != 3 or node.attributes:
            raise _UnsuitedError
        value, codes = self._code_names(*node.inputs)
        self._emit(Step("decode", (value,), codes=codes), node.outputs[0])

    def _add_codes(self, node: Node) -> None:
        names = node.inputs
        if len(names) != 8 or node.attributes or not all(map(self._is_fixed, names[6:])):
            raise _UnsuitedError
        both = [self._code_names(*names[:3]), self._code_names(*names[3:6])]
        reads = tuple(self._emit(Step("decode", (value,), codes=codes)) for value, codes in both)
        codes = CodeNames(*names[6:])
        self._coded[node.outputs[0]] = self._emit(Step("sum", reads, writes=codes)), codes

    def _norm(self, node: Node) -> None:
        attributes = {"axis": -1, "epsilon": 1e-5, "stash_type": 1, **node.attributes}
        weight, bias = (*map(self._optional, node.inputs[1:]), "", "")[:2]
        epsilon = attributes.pop("epsilon")
        if attributes.pop("axis") not in _LAST_AXIS or not weight or not isinstance(epsilon, float):
            raise _UnsuitedError
        if attributes != {"stash_type": 1}:
            raise _UnsuitedError
        reads = (self._value(node.inputs[0]),)
        self._emit(Step("norm", reads, weight, bias=bias, epsilon=epsilon), node.outputs[0])

    def _combine(self, node: Node) -> None:
        if len(node.inputs) != 2 or node.attributes:
            raise _UnsuitedError
        values = [name for name in node.inputs if not self._is_fixed(name)]
        if not values:
            raise _UnsuitedError
        width = (self._value(values[0]),)
        reads = [self._value(n) if n in values else self._emit(Step("constant", width, n)) for n in node.inputs]
        self._emit(Step(_BINARY[node.operator], tuple(reads)), node.outputs[0])

    def _join(self, node: Node) -> None:
        if node.attributes.keys() != {"axis"} or node.attributes["axis"] not in _LAST_AXIS:
            raise _UnsuitedError
        self._emit(Step("join", tuple(map(self._value, node.inputs))), node.outputs[0])

    def _cut(self, node: Node) -> None:
        if node.attributes.keys() != {"axis"} or node.attributes["axis"] not in _LAST_AXIS or len(node.inputs) > 2:
            raise _UnsuitedError
        whole, sizes = self._value(node.inputs[0]), self._optional("".join(node.inputs[1:]))
        for index, name in enumerate(node.outputs):
            self._emit(Step("part", (whole,), sizes, parts=len(node.outputs), part=index), name)

    def _slice(self, node: Node) -> None:
        if len(node.inputs) not in (4, 5) or node.attributes or not all(map(self._is_fixed, node.inputs[1:])):
            raise _UnsuitedError
        self._chain.constants.update(dict.fromkeys(node.inputs[3:], 1.0))  # the axis, and the distance
        self._emit(Step("part", (self._value(node.inputs[0]),), node.inputs[1], bias=node.inputs[2]), node.outputs[0])

    def _alone(self, node: Node) -> None:
        self._activate(node.inputs[0], 1, self._activation(node), node.outputs[0])

    def _activation(self, node: Node) -> Activation:
        kind, others = node.operator, node.inputs[1:]
        if kind == "Clip":
            least, greatest = (*map(self._optional, others), "", "")[:2]
            return Activation(kind, bounds=(least, greatest))
        alpha = node.attributes.get("alpha", _ALPHAS.get(kind, 0.0))
        if kind not in _ACTIVATIONS or others or node.attributes.keys() - {"alpha"} or not isinstance(alpha, float):
            raise _UnsuitedError
        return Activation(kind, alpha)

    def _activate(self, name: str, uses: int, activation: Activation, made: str) -> None:
        """Of what a step makes, if nothing else reads that; else of a copy."""
        value = self._value(name)
        step = self._steps[value - 1] if value else None
        alone = self._uses[name] == uses and step is not None and step.kind != "part"
        if alone and step is not None and step.activation == _IDENTITY and step.writes is None:
            self._steps[value - 1] = replace(step, activation=activation)
            self._values[made] = value
        else:
            self._emit(Step("copy", (value,), activation=activation), made)

    def _composed(self, nodes: list[Node]) -> int:
        """Take an activation of several nodes, if they are the next; returns how many they are."""
        name = nodes[0].inputs[0] if nodes[0].inputs else ""
        if name not in self._values or not self._is_flat:
            return 0
        for kind, operations in _PATTERNS.items():
            found = nodes[: len(operations)]
            constants = self._constants_of(name, found, operations)
            if constants is not None:
                uses = sum(operands.count("x") for _, operands in operations)
                self._activate(name, uses, Activation(kind), found[-1].outputs[0])
                self._chain.constants.update(constants)
                return len(operations)
        return 0

    def _constants_of(
        self, x: str, nodes: list[Node], operations: tuple[tuple[str, tuple[str | int | float, ...]], ...]
    ) -> dict[str, float] | None:
        """The constants that make these nodes the operations on x; None if they are others."""
        constants: dict[str, float] = {}
        if [(node.operator, node.domain) for node in nodes] != [(operator, "") for operator, _ in operations]:
            return None
        for node, (operator, operands) in zip(nodes, operations, strict=True):
            given = list(node.inputs)
            for operand in operands:
                if isinstance(operand, float):
                    name = next(filter(self._is_fixed, given), "")
                    constants[name] = operand
                else:
                    name = x if operand == "x" else nodes[cast(int, operand)].outputs[0]
                if name not in given or (operator == "Div" and name != given[0]):
                    return None
                given.remove(name)
            if given or node.attributes:
                return None
        return constants

    def _floats(self, node: Node) -> None:
        attributes = self._plain(node, "Gemm")
        activation = Activation(str(attributes.pop("activation", "")))
        transposed = bool(attributes.pop("transB", 0))
        weight, bias = (*node.inputs[1:], "", "")[:2]
        is_known = activation.kind in _FUSED and not attributes and len(node.inputs) in (2, 3)
        if not is_known or not self._is_fixed(self._chain.widened.get(weight, weight)):
            raise _UnsuitedError
        reads = (self._value(node.inputs[0]),)
        step = Step("floats", reads, weight, transposed, self._optional(bias), activation=activation)
        self._emit(step, node.outputs[0])

    def _integers(self, node: Node) -> None:
        attributes = self._plain(node, "QGemm")
        transposed = bool(attributes.pop("transB", 0))
        names = (*node.inputs[1:], *[""] * 8)[:8]
        value, reads = self._code_names(node.inputs[0], *names[:2])
        if attributes or not all(map(self._is_fixed, names[2:5])):
            raise _UnsuitedError
        made = CodeNames(names[6], names[7]) if names[6] else None
        if made is not None and not (self._is_fixed(made.scale) and self._is_fixed(made.zero)):
            raise _UnsuitedError
        step = Step("codes", (value,), names[2], transposed, self._optional(names[5]), reads, names[3], names[4])
        if made is None:
            self._emit(step, node.outputs[0])
        else:
            self._coded[node.outputs[0]] = self._emit(replace(step, writes=made, rescales=True)), made

    def _splits(self, nodes: list[Node]) -> int:
        """Take a value becoming high and low bytes, if that is next: clipped, quantised, and what is left quantised."""
        found = nodes[:5]
        kinds = ["Clip", "QuantizeLinear", "DequantizeLinear", "Sub", "QuantizeLinear"]
        if [node.operator for node in found] != kinds or any(node.attributes or node.domain for node in found):
            return 0
        clip, high, back, rest, low = found
        (clipped,), (coarse,), (fine,) = clip.outputs, high.outputs, low.outputs
        scales = (*high.inputs[1:], *low.inputs[1:], *clip.inputs[1:])
        links = [high.inputs[0] == clipped, back.inputs == (coarse, *high.inputs[1:])]
        links += [rest.inputs == (clipped, *back.outputs), low.inputs[0] == rest.outputs[0], len(scales) == 6]
        if not all(links) or not all(map(self._is_fixed, scales)) or self._uses[clipped] != 2 or not self._is_flat:
            return 0
        codes, beneath = CodeNames(*high.inputs[1:]), CodeNames(*low.inputs[1:])
        bounds = Activation("Clip", bounds=(clip.inputs[1], clip.inputs[2]))
        step = Step("split", (self._value(clip.inputs[0]),), codes=codes, low=beneath, activation=bounds)
        self._split[coarse, fine] = replace(step, reads=(self._emit(step),))
        return 5

    def _wide(self, nodes: list[Node]) -> int:
        """Take the two products of high and low bytes with one weight and their sum, if they are next."""
        if [node.operator for node in nodes[:3]] != ["QGemm", "QGemm", "Add"]:
            return 0
        high, low, total = nodes[:3]
        split = self._split.get((high.inputs[0], low.inputs[0]))
        if split is None or split.codes is None or split.low is None or total.inputs != (*high.outputs, *low.outputs):
            return 0
        transposed = [bool(self._plain(node, "QGemm").pop("transB", 0)) for node in (high, low)]
        weight = high.inputs[3:6]
        reads = [
            (*codes, *weight) for codes in ((split.codes.scale, split.codes.zero), (split.low.scale, split.low.zero))
        ]
        bias = low.inputs[6] if len(low.inputs) == 7 else ""
        if (high.inputs[1:], low.inputs[1:6]) != (reads[0], reads[1]) or len({*transposed}) > 1 or len(low.inputs) > 7:
            raise _UnsuitedError
        if not all(map(self._is_fixed, weight)) or any(self._uses[node.outputs[0]] != 1 for node in (high, low)):
            raise _UnsuitedError
        names = (split.codes, weight[1], weight[2])
        step = Step("wide", split.reads, weight[0], transposed[0], self._optional(bias), *names, low=split.low)
        self._emit(step, total.outputs[0])
        return 3

    def _plain(self, node: Node, operator: str) -> dict[str, Attribute]:
        """The node's attributes, but those that must have and do have the values that make it a plain product."""
        attributes = dict(node.attributes)
        if any(attributes.pop(name, value) != value for name, value in _SAME_OPERATOR[operator].items()):
            raise _UnsuitedError
        return attributes

    def _optional(self, name: str) -> str:
        if name and not self._is_fixed(name):
            raise _UnsuitedError
        return name

    def _is_fixed(self, name: str) -> bool:
        return bool(name) and name in self._graph.places


class _CWindow(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int32) for name in ("rows", "columns", "lines", "line", "pitch", "down", "right"))


class _CStep(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32), ("activation", ctypes.c_int32), ("quantises", ctypes.c_int32),
        ("source", ctypes.c_int32), ("other", ctypes.c_int32), ("target", ctypes.c_int32), ("inputs", ctypes.c_int32),
        ("outputs", ctypes.c_int32), ("weights", ctypes.c_void_p), ("bias", ctypes.c_void_p),
        ("scale", ctypes.c_void_p), ("alpha", ctypes.c_float), ("beta", ctypes.c_float), ("epsilon", ctypes.c_float),
        ("step", ctypes.c_float), ("zero", ctypes.c_int32), ("window", _CWindow),
    )  # fmt: skip


class _CResult(ctypes.Structure):
    _fields_ = (("source", ctypes.c_int32), ("columns", ctypes.c_int32))


class _CChain(ctypes.Structure):
    _fields_ = (
        ("steps", ctypes.c_int32), ("features", ctypes.c_int32), ("inputs", ctypes.c_int32),
        ("results", ctypes.c_int32), ("stride", ctypes.c_int32), ("channels", ctypes.c_int32),
        ("mean", ctypes.c_void_p), ("factor", ctypes.c_void_p), ("least", ctypes.c_float), ("greatest", ctypes.c_float),
        ("quantises", ctypes.c_int32), ("step", ctypes.c_float), ("zero", ctypes.c_int32),
        ("each", ctypes.POINTER(_CStep)), ("made", ctypes.POINTER(_CResult)),
        ("floats", ctypes.c_void_p), ("codes", ctypes.c_void_p), ("windows", ctypes.c_void_p),
    )  # fmt: skip
    kept: tuple[object, ...] = ()
    """What its pointers point to, alive as long as it is."""


class _Columns:
    """Columns of a row for the values that are alive, whole pairs of vectors each."""

    def __init__(self, multiple: int) -> None:
        self._multiple = multiple
        self._free: list[tuple[int, int]] = []
        self.total = 0

    def take(self, width: int) -> tuple[int, int]:
        """The first column of a new value, and how many it has."""
        width = _up(width, self._multiple)
        for index, (start, size) in enumerate(self._free):
            if size >= width:
                self._free[index] = start + width, size - width
                return start, width
        self.total += width
        return self.total - width, width

    def give_back(self, start: int, width: int) -> None:
        """The columns of a value that nothing reads any more."""
        joined: list[tuple[int, int]] = []
        for begin, size in sorted([*self._free, (start, width)]):
            if joined and sum(joined[-1]) == begin:
                begin, size = joined[-1][0], joined[-1][1] + size
                joined.pop()
            joined.append((begin, size))
        self._free = joined


_latest: tuple[Graph, Chain | str] | None = None


def _chain_of(model: bytes) -> tuple[Graph, Chain | str]:
    """The chain that a model is, or why it is none; read once for versions of a policy, which differ in numbers."""
    global _latest
    found = _latest  # once: another thread may change it
    if found is None or not found[0].is_of(model):
        graph = read_graph(model)
        chain: Chain | str
        try:
            chain = _Reader(graph).chain()
        except _UnsuitedError as error:
            chain = str(error)
        _latest = found = graph, chain
    return found


def make_chain(artifact: CompressedPolicy, kernels: Kernels | None = None) -> ChainKernel | None:
    """The artifact as a kernel; None where it is no chain, or no kernel for it runs on this CPU.

    Args:
        artifact: its header need not be true: names, types and sizes are compared with the model's.
        kernels: those to use; None: the best that this CPU runs.
    """
    made = _make(artifact, kernels or _best())
    return None if isinstance(made, str) else made


def why_no_chain(artifact: CompressedPolicy) -> str:
    """Why the compiled kernels do not run an artifact on this CPU; "" where they do."""
    made = _make(artifact, _best())
    return made if isinstance(made, str) else ""


def _best() -> Kernels | None:
    return next(iter(kernels_here()), None)


def _make(artifact: CompressedPolicy, kernels: Kernels | None) -> ChainKernel | str:
    if kernels is None:
        return why_none()
    try:
        graph, chain = _chain_of(artifact.model)
        if isinstance(chain, str):
            return chain
        specs, values = (*artifact.inputs, *artifact.outputs), (*graph.inputs, *graph.outputs)
        if len(artifact.inputs) != len(graph.inputs) or len(specs) != len(values):
            return "its header has other inputs or outputs than its model"
        if not all(map(_is_as_declared, specs, values)):
            return "its header is not of rows of floats as in its model"
        return ChainKernel(artifact, graph, chain, kernels)
    except _UnsuitedError as error:
        return str(error) or "its tensors have types or sizes that the compiled kernels do not run"
    except ValueError as error:  # onnxruntime says more
        return f"its model is not readable ({error})"


class ChainKernel:
    """A chain's packed weights; ``bind`` makes what runs it. Built by ``make_chain``."""

    def __init__(self, artifact: CompressedPolicy, graph: Graph, chain: Chain, kernels: Kernels) -> None:
        self._model, self._graph, self._chain = artifact.model, graph, chain
        if kernels.library is None:
            raise _UnsuitedError
        self._kernels, self._library, self._lanes = kernels, kernels.library, kernels.lanes
        self._kept: list[Array] = []
        source = artifact.inputs[0]
        for name, x in chain.constants.items():
            if not isclose(self._scalar(name, graph.places[name].dtype), x, rel_tol=1e-6):
                raise _UnsuitedError
        self._features = prod(cast("tuple[int, ...]", source.shape[1:]))
        self._shapes = [value.with_batch(1)[1:] for value in (*artifact.inputs, *artifact.outputs)]
        self._widths = [self._features]
        # of values that are images, channels last: height, width, channels, and the columns of a position
        self._images: list[tuple[int, int, int, int] | None] = [None]
        if _is_image(graph.inputs[0]):
            channels, height, width = self._shapes[0]
            self._images = [(height, width, channels, channels)]
        self._types = [np.dtype(spec.dtype) for spec in (*artifact.inputs, *artifact.outputs)]
        self._window_bytes = 0
        self._columns = _Columns(2 * self._lanes)
        self._places = [self._columns.take(self._features)]
        made: list[_CStep] = []
        for step, ends in zip(chain.steps, chain.ends, strict=True):
            made += self._part(step) if step.kind == "part" else self._make(step)
            for value in ends:
                self._columns.give_back(*self._places[value])
        if max(self._columns.total, self._window_bytes) > _MOST_BYTES:
            raise _UnsuitedError("it takes more memory than the compiled kernels do")
        self._steps = (_CStep * len(made))(*made)
        if [(self._widths[value],) for value in chain.results] != self._shapes[len(artifact.inputs) :]:
            raise _UnsuitedError
        results = [_CResult(self._places[value][0], self._widths[value]) for value in chain.results]
        self._results = (_CResult * len(results))(*results)
        # room for a whole vector, or four codes, behind the last value
        self._stride = self._columns.total + 2 * self._lanes
        self._observed = _CChain()
        self._observe(self._observed, source.shape[1:])

    def bind(self, arrays: Sequence[Array]) -> Callable[[], None]:
        """What computes the outputs from the inputs: arrays [rows, *shape], contiguous, which are its for good.

        Args:
            arrays: of the artifact's inputs, observations first, and then of its outputs.
        Raises:
            ValueError: another shape or type.
        """
        rows = len(arrays[0])
        plain = all(array.flags.c_contiguous for array in arrays) and [a.dtype for a in arrays] == self._types
        if not plain or [array.shape for array in arrays] != [(rows, *shape) for shape in self._shapes]:
            types = " and ".join(dict.fromkeys(map(str, self._types)))
            given = " and ".join(f"{array.dtype}{list(array.shape)}" for array in arrays)
            raise ValueError(f"{given} are not rows of {self._shapes} as contiguous {types}")
        windows = self._zeros(self._window_bytes, np.uint8)
        floats, codes = self._zeros(rows * self._stride, np.float32), self._zeros(2 * rows * self._stride, np.uint8)
        chain = _CChain.from_buffer_copy(self._observed)
        chain.floats, chain.codes, chain.windows = floats.ctypes.data, codes.ctypes.data, windows.ctypes.data
        function = getattr(self._library, f"run_{self._kernels.suffix}")
        pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        chain.kept = (self, arrays, floats, codes, windows)
        return partial(function, ctypes.byref(chain), ctypes.c_int(rows), pointers)

    def _observe(self, chain: _CChain, shape: tuple[int | None, ...]) -> None:
        """Fill in what is done to an observation of this shape before the first product."""
        mean, factor = self._zeros(self._stride, np.float32), self._zeros(self._stride, np.float32)
        factor[: self._features] = 1.0
        for target, name in ((mean, self._chain.mean), (factor, self._chain.factor)):
            if name:
                array = self._array(name, np.float32)
                if array.shape not in ((), (1,), shape, (self._features,)):
                    raise _UnsuitedError
                target[: self._features] = array.reshape(-1)
        least, greatest = -np.inf, np.inf
        for low, high in self._chain.clips:
            bounds = float(self._scalar(low, np.float32)), float(self._scalar(high, np.float32))
            least, greatest = (min(max(edge, bounds[0]), bounds[1]) for edge in (least, greatest))
        chain.mean, chain.factor, chain.least, chain.greatest = self._keep(mean), self._keep(factor), least, greatest
        chain.channels = 0 if self._images[0] is None else self._images[0][2]
        chain.quantises = self._chain.codes is not None
        chain.step, chain.zero = self._step(self._chain.codes)
        chain.steps, chain.features, chain.stride = len(self._steps), self._features, self._stride
        chain.results, chain.inputs = len(self._results), len(self._shapes) - len(self._results)
        chain.each, chain.made = self._steps, self._results

    def _part(self, step: Step) -> list[_CStep]:
        """Where a part of a value is."""
        (whole,) = step.reads
        width, parts = self._widths[whole], step.parts
        if step.bias:
            edges = (int(self._scalar(name, np.int64)) for name in (step.weight, step.bias))
            start, stop, _ = slice(*edges).indices(width)
        else:
            sizes = self._array(step.weight, np.int64).tolist() if step.weight else [width // parts] * parts
            start, stop = sum(sizes[: step.part]), sum(sizes[: step.part + 1])
            if len(sizes) != parts or sum(sizes) != width or min(sizes) < 1:
                raise _UnsuitedError
        if stop <= start:
            raise _UnsuitedError
        self._widths.append(stop - start)
        self._images.append(None)
        self._places.append((self._places[whole][0] + start, 0))
        return []

    def _make(self, step: Step) -> list[_CStep]:
        """The C steps that make a value; packs what they need."""
        widths, sources = [self._widths[value] for value in step.reads], [self._places[v][0] for v in step.reads]
        if step.kind == "input":
            widths, sources = [*self._shapes[step.part]], [step.part]
        made = _CStep(kind=_KINDS.index("copy" if step.kind == "join" else step.kind))
        width, image = widths[0], None
        if step.kind in ("floats", "codes", "wide"):
            width = self._pack(made, step, width)
        elif step.kind == "convolution":
            image = self._convolve(made, step)
            width = prod((*image[:2], image[3]))
        elif any(self._images[value] is not None for value in step.reads):
            raise _UnsuitedError
        elif step.kind == "norm":
            made.inputs = width
            made.weights = self._keep(self._vector(step.weight, width, width, np.float32))
            made.bias, made.epsilon = self._keep(self._vector(step.bias, width, width, np.float32)), step.epsilon
        elif step.kind == "constant":
            array = self._array(step.weight, np.float32)
            if array.shape not in ((), (1,), (1, 1), (width,), (1, width)):
                raise _UnsuitedError
            row = self._zeros(_up(width, 2 * self._lanes), np.float32)
            row[:width] = array.reshape(-1)
            made.weights = self._keep(row)
        elif step.kind == "join":
            width = sum(widths)
        elif len(set(widths)) > 1:
            raise _UnsuitedError
        target, columns = self._columns.take(width)
        made.outputs = columns if image is None else image[3]
        self._widths.append(width)
        self._images.append(image)
        self._places.append((target, columns))
        made.source, made.other, made.target = sources[0], sources[-1], target
        self._activate(made, step.activation)
        made.quantises = step.writes is not None
        made.step, made.zero = self._step(step.codes if step.kind == "decode" else step.writes)
        if step.kind == "split":
            made.activation = 0
            made.step, made.zero = self._two_bytes(step, made)
        if step.rescales:
            made.step = 1.0
        if step.kind in ("copy", "input", "constant"):
            made.inputs = width
        if step.kind != "join":
            return [made]
        starts = [target + sum(widths[:index]) for index in range(len(widths))]
        copies = [
            _CStep(kind=made.kind, source=source, target=start, inputs=size)
            for source, start, size in zip(sources, starts, widths, strict=True)
        ]
        return [*copies, made]

    def _pack(self, made: _CStep, step: Step, inputs: int) -> int:
        """Pack a product; returns how many outputs it has."""
        integers = step.codes is not None
        weight = self._weight(step, np.int8 if integers else np.float32)
        n, k = weight.shape
        if k != inputs and step.kind != "convolution":
            raise _UnsuitedError
        outputs = _up(n, 2 * self._lanes)
        made.inputs = _up(k, 4) if integers else k
        bias = self._vector(step.bias, n, outputs, np.int32 if integers else np.float32)
        if step.low is not None:
            bias = np.concatenate((np.zeros_like(bias), bias))
        packed = self._zeros(outputs * made.inputs, weight.dtype)
        strides = (stride // weight.itemsize for stride in weight.strides)
        arguments = (weight.ctypes.data, n, k, *strides, self._lanes)
        if step.codes is not None:
            read = [names for names in (step.codes, step.low) if names is not None]
            made.scale = self._keep(np.concatenate([self._scales(step, names, weight, outputs) for names in read]))
            for names, part in zip(read, np.split(bias, len(read)), strict=True):
                zero = self._zero(names.zero) - self._kernels.shift
                self._library.pack_codes(*arguments, zero, packed.ctypes.data, part.ctypes.data)
        else:
            self._library.pack_floats(*arguments, packed.ctypes.data)
        made.weights, made.bias = self._keep(packed), self._keep(bias)
        return int(n)

    def _convolve(self, made: _CStep, step: Step) -> tuple[int, int, int, int]:
        """Pack a convolution; returns the image that it makes."""
        image = self._images[step.reads[0]]
        if image is None or len(step.window) != len(image):
            raise _UnsuitedError
        (height, width, _, columns), (lines, line, down, right) = image, step.window
        rows, wide = (height - lines) // down + 1, (width - line) // right + 1
        if min(lines, line, down, right, rows, wide) < 1 or self._graph.places[step.weight].shape[2:] != (lines, line):
            raise _UnsuitedError
        made.window = _CWindow(
            rows, wide, lines, line * columns, width * columns, down * width * columns, right * columns
        )
        outputs = self._pack(made, step, 0)
        self._window_bytes = max(self._window_bytes, rows * wide * made.inputs)
        return rows, wide, outputs, _up(outputs, 2 * self._lanes)

    def _vector(self, name: str, n: int, columns: int, dtype: type[np.generic]) -> Array:
        """An initializer [n], zeros if "", and zeros behind it to a whole number of vectors."""
        padded = self._zeros(_up(columns, 2 * self._lanes), dtype)
        if name:
            given = self._array(name, dtype)
            if given.shape != (n,):
                raise _UnsuitedError
            padded[:n] = given
        return padded

    def _activate(self, made: _CStep, activation: Activation) -> None:
        made.activation = _ACTIVATIONS.index(activation.kind)
        made.alpha = activation.alpha
        if activation.kind == "Clip":
            made.alpha, made.beta = (
                float(self._scalar(name, np.float32)) if name else unbounded
                for name, unbounded in zip(activation.bounds, (-inf, inf), strict=True)
            )

    def _weight(self, step: Step, dtype: type[np.generic]) -> Array:
        half = self._chain.widened.get(step.weight)
        found = self._array(step.weight, dtype) if half is None else self._array(half, np.float16).astype(np.float32)
        image = self._images[step.reads[0]]
        if image is None and found.ndim == 2:
            return found if step.transposed else found.T
        if image is None or step.kind not in ("codes", "convolution"):
            raise _UnsuitedError
        height, width, channels, columns = image
        if step.kind == "codes":  # of an image's numbers one by one
            rows = found if step.transposed else found.T
            found = rows.reshape(len(rows), channels, height, width)
        if found.ndim != len(image) or found.shape[1] != channels:
            raise _UnsuitedError
        laid = np.zeros((len(found), *found.shape[2:], columns), dtype)
        laid[..., :channels] = found.transpose(0, 2, 3, 1)
        return laid.reshape(len(found), -1)

    def _scales(self, step: Step, reads: CodeNames, weight: Array, outputs: int) -> Array:
        """Of the integer sums, one for each output, with the rounding of single precision at every product."""
        n = len(weight)
        scale = self._array(step.scale, np.float32)
        if scale.shape not in ((), (1,), (n,)) or self._array(step.zero, np.int8).any():
            raise _UnsuitedError
        if step.low is None and np.abs(weight.view(np.int8).astype(np.int16)).max() > self._kernels.greatest:
            raise _UnsuitedError(f"weights of 8 bits are not summed exactly by the kernels for {self._kernels.name}")
        with np.errstate(all="ignore"):  # what is not finite becomes so in the answers too
            factors = np.multiply(scale, self._scalar(reads.scale, np.float32))
            if step.rescales and step.writes is not None:
                factors = np.divide(factors, self._scalar(step.writes.scale, np.float32))
        padded = self._zeros(outputs, np.float32)
        padded[:n] = factors
        return padded

    def _two_bytes(self, step: Step, made: _CStep) -> tuple[float, int]:
        """The step of low bytes and the zero point of high ones, whose bytes and bounds are as ``split`` makes them."""
        (coarse, zero), (fine, middle) = self._step(step.codes), self._step(step.low)
        greatest = (GREATEST_HIGH - zero) * coarse + (LOW_ZERO - 1) * fine
        fits = coarse == LOW_CODES * fine and middle == LOW_ZERO and made.alpha >= -zero * coarse
        if not fits or not made.beta <= greatest * (1 + 1e-6):
            raise _UnsuitedError
        return fine, zero

    def _step(self, codes: CodeNames | None) -> tuple[float, int]:
        if codes is None:
            return 1.0, 0
        return float(self._scalar(codes.scale, np.float32)), self._zero(codes.zero)

    def _zero(self, name: str) -> int:
        """A zero point of unsigned codes: the kernels keep signed ones in unsigned bytes."""
        if self._graph.places[name].dtype == np.int8:
            return int(self._scalar(name, np.int8)) + _SIGNED_TO_UNSIGNED
        return int(self._scalar(name, np.uint8))

    def _array(self, name: str, dtype: type[np.generic] | np.dtype[np.generic]) -> Array:
        array = self._graph.array(self._model, name)
        if array.dtype != dtype:
            raise _UnsuitedError(f"{name} is {array.dtype}, where the compiled kernels take {np.dtype(dtype)}")
        return array

    def _scalar(self, name: str, dtype: type[np.generic] | np.dtype[np.generic]) -> Array:
        array = self._array(name, dtype)
        if array.size != 1:
            raise _UnsuitedError
        return array.reshape(())

    def _zeros(self, count: int, dtype: type[np.generic] | np.dtype[np.generic]) -> Array:
        """An array that begins at a cache line."""
        size = count * np.dtype(dtype).itemsize
        raw = np.zeros(size + _ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % _ALIGNMENT
        return raw[start : start + size].view(dtype)

    def _keep(self, array: Array) -> int:
        self._kept.append(array)
        return int(array.ctypes.data)


def _is_image(value: Value) -> bool:
    return (value.element, len(value.shape)) == (_BYTE_TYPE, 4)


def _is_as_declared(spec: TensorSpec, value: Value) -> bool:
    """Whether an artifact's header says of a tensor what its model says: floats or images of bytes, any number of rows,
    these sizes."""
    shape = spec.shape
    declared = {"float32": _FLOAT_TYPE, "uint8": _BYTE_TYPE if _is_image(value) else 0}.get(spec.dtype)
    if (spec.name, declared) != (value.name, value.element) or len(shape) < 2:
        return False
    return shape[0] is None and None not in shape[1:] and value.shape == shape


def _up(size: int, multiple: int) -> int:
    return (size + multiple - 1) // multiple * multiple
