"""A model as a chain of steps that the compiled kernels know, read from its graph. No torch, no onnx."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import pi
from typing import NamedTuple, cast

from accel.compressors.kernels.graph import Attribute, Graph, Node, Value

# in the order of ACTIVATIONS in chain.c
ACTIVATIONS = (
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
_OTHER_OPERATORS = {*ACTIVATIONS, "Flatten", "Cast", "Erf"}
# in the order of chain.c
KINDS = (
    "floats", "codes", "wide", "norm", "sum", "difference", "product", "quotient", "copy", "decode", "split", "input",
    "constant", "convolution",
)  # fmt: skip
_BINARY = {"Add": "sum", "Sub": "difference", "Mul": "product", "Div": "quotient"}
FLOAT_TYPE, BYTE_TYPE = 1, 2  # of ONNX
_LAST_AXIS = (1, -1, 2**64 - 1)  # of two; negative numbers are read as they are written
_DOMAINS = dict.fromkeys(("FusedGemm", "QGemm", "QLinearAdd"), "com.microsoft")
_SAME_OPERATOR = {"Gemm": {"alpha": 1.0, "beta": 1.0, "transA": 0}, "QGemm": {"alpha": 1.0, "transA": 0}}


class UnsuitedError(Exception):
    """The model is nothing that the kernels know; says what is not."""


@dataclass(frozen=True)
class CodeNames:
    """Names of the scale and the zero point of a value in codes."""

    scale: str
    zero: str


class Activation(NamedTuple):
    """One of ``ACTIVATIONS``; the α of an ELU or a leaky ReLU; the initializers of Clip's bounds ("": none)."""

    kind: str = ""
    alpha: float = 0.0
    bounds: tuple[str, str] = ("", "")


_IDENTITY = Activation()


@dataclass(frozen=True)
class Step:
    """What makes one value of a row, of others: names of initializers.

    Attributes:
        kind: of ``KINDS``; ``join``: the values read, one behind the other; ``part``: of the value read, no copy;
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


def read_chain(graph: Graph) -> Chain:
    """The chain that a model is. Raises UnsuitedError: it is none."""
    return _Reader(graph).chain()


class _Reader:
    """Follows the values from the model's input through its nodes."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._input = graph.inputs[0].name if graph.inputs else ""
        self._is_image = bool(graph.inputs) and is_image(graph.inputs[0])
        self._is_flat = self._is_image or (bool(graph.inputs) and len(graph.inputs[0].shape) == 2)
        self._values = {value.name: index for index, value in enumerate(graph.inputs)}
        self._coded: dict[str, tuple[int, CodeNames]] = {}
        self._split: dict[tuple[str, str], Step] = {}
        self._steps = [Step("input", (), part=index) for index in range(1, len(graph.inputs))]
        self._chain = Chain((), (), "", "", (), None, {}, {})
        self._uses = Counter(name for node in graph.nodes for name in node.inputs)
        self._uses.update(output.name for output in graph.outputs)
        self._rules: dict[str, Callable[[Node], None]] = {
            "Gemm": self._floats, "FusedGemm": self._floats, "QGemm": self._integers, "QuantizeLinear": self._quantise,
            "DequantizeLinear": self._decode, "QLinearAdd": self._add_codes, "LayerNormalization": self._norm,
            "QLinearConv": self._convolve, "Flatten": self._flatten,
            "Concat": self._join, "Split": self._cut, "Slice": self._slice, **dict.fromkeys(_BINARY, self._combine),
        }  # fmt: skip

    def chain(self) -> Chain:
        """Raises UnsuitedError."""
        nodes = list(self._graph.nodes)
        lacking = sorted({node.operator for node in nodes} - self._rules.keys() - _OTHER_OPERATORS)
        if lacking:
            raise UnsuitedError(
                f"{', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not in the compiled kernels"
            )
        if not self._graph.inputs or any(len(value.shape) != 2 for value in self._graph.inputs[1:]):
            raise UnsuitedError("it has inputs beside the observations that are no rows of numbers")
        if self._is_image:  # it is read as codes alone
            del self._values[self._input]
        while nodes:
            operator = nodes[0].operator
            try:
                taken = self._splits(nodes) or self._wide(nodes) or self._composed(nodes) or self._take(nodes[0])
            except UnsuitedError:
                raise UnsuitedError(f"{operator} is not in a form that the compiled kernels run") from None
            del nodes[:taken]
        results = tuple(self._values.get(value.name, -1) for value in self._graph.outputs)
        if min(results, default=-1) < 0 or all(step.kind == "input" for step in self._steps):
            raise UnsuitedError("an output is not made of dense layers in floats")
        return replace(self._chain, steps=tuple(self._steps), results=results)

    def _take(self, node: Node) -> int:
        require(bool(node.inputs and node.outputs) and self._graph.places.keys().isdisjoint(node.outputs))
        require(node.domain == _DOMAINS.get(node.operator, ""))
        if node.operator == "Cast" and node.attributes == {"to": FLOAT_TYPE} and self._is_fixed(node.inputs[0]):
            self._chain.widened[node.outputs[0]] = node.inputs[0]
        elif not self._normalises(node):
            rule = self._rules.get(node.operator, self._alone)
            require(self._is_flat and (len(node.outputs) == 1 or node.operator == "Split"))
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
        require(name in self._values)
        return self._values[name]

    def _code_names(self, value: str, scale: str, zero: str) -> tuple[int, CodeNames]:
        require(value in self._coded and self._coded[value][1] == CodeNames(scale, zero))
        return self._coded[value]

    def _emit(self, step: Step, name: str = "") -> int:
        self._steps.append(step)
        if name:
            self._values[name] = len(self._steps)
        return len(self._steps)

    def _quantise(self, node: Node) -> None:
        self._require_form(node, 3, fixed=1)
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
        require(len(names) == 9 and all(map(self._is_fixed, names[1:8])))
        require(attributes.items() <= plain.items())
        if self._is_image and names[0] == self._input and self._chain.codes in (None, CodeNames(*names[1:3])):
            self._chain = replace(self._chain, codes=CodeNames(*names[1:3]))
            self._coded[names[0]] = 0, CodeNames(*names[1:3])
        value, reads = self._code_names(*names[:3])
        window = tuple(size for pair in sizes if isinstance(pair, tuple) for size in pair)
        step = Step("convolution", (value,), names[3], True, self._optional(names[8]), reads, names[4], names[5])
        made = CodeNames(names[6], names[7])
        self._coded[node.outputs[0]] = self._emit(replace(step, writes=made, rescales=True, window=window)), made

    def _flatten(self, node: Node) -> None:
        require(node.inputs[0] in self._coded and node.attributes == {"axis": 1})
        self._coded[node.outputs[0]] = self._coded[node.inputs[0]]

    def _decode(self, node: Node) -> None:
        self._require_form(node, 3, fixed=1)
        value, codes = self._code_names(*node.inputs)
        self._emit(Step("decode", (value,), codes=codes), node.outputs[0])

    def _add_codes(self, node: Node) -> None:
        names = node.inputs
        self._require_form(node, 8, fixed=6)
        both = [self._code_names(*names[:3]), self._code_names(*names[3:6])]
        reads = tuple(self._emit(Step("decode", (value,), codes=codes)) for value, codes in both)
        codes = CodeNames(*names[6:])
        self._coded[node.outputs[0]] = self._emit(Step("sum", reads, writes=codes)), codes

    def _norm(self, node: Node) -> None:
        attributes = {"axis": -1, "epsilon": 1e-5, "stash_type": 1, **node.attributes}
        weight, bias = (*map(self._optional, node.inputs[1:]), "", "")[:2]
        epsilon = attributes.pop("epsilon")
        require(attributes.pop("axis") in _LAST_AXIS and attributes == {"stash_type": 1} and bool(weight))
        if not isinstance(epsilon, float):
            raise UnsuitedError
        reads = (self._value(node.inputs[0]),)
        self._emit(Step("norm", reads, weight, bias=bias, epsilon=epsilon), node.outputs[0])

    def _combine(self, node: Node) -> None:
        self._require_form(node, 2)
        values = [name for name in node.inputs if not self._is_fixed(name)]
        require(bool(values))
        width = (self._value(values[0]),)
        reads = [self._value(n) if n in values else self._emit(Step("constant", width, n)) for n in node.inputs]
        self._emit(Step(_BINARY[node.operator], tuple(reads)), node.outputs[0])

    def _join(self, node: Node) -> None:
        require(_joins_columns(node))
        self._emit(Step("join", tuple(map(self._value, node.inputs))), node.outputs[0])

    def _cut(self, node: Node) -> None:
        require(_joins_columns(node) and len(node.inputs) <= 2)
        whole, sizes = self._value(node.inputs[0]), self._optional("".join(node.inputs[1:]))
        for index, name in enumerate(node.outputs):
            self._emit(Step("part", (whole,), sizes, parts=len(node.outputs), part=index), name)

    def _slice(self, node: Node) -> None:
        self._require_form(node, 4, 5, fixed=1)
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
        require(kind in ACTIVATIONS and not others and node.attributes.keys() <= {"alpha"})
        if not isinstance(alpha, float):
            raise UnsuitedError
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
        require(activation.kind in _FUSED and not attributes and len(node.inputs) in (2, 3))
        require(self._is_fixed(self._chain.widened.get(weight, weight)))
        reads = (self._value(node.inputs[0]),)
        step = Step("floats", reads, weight, transposed, self._optional(bias), activation=activation)
        self._emit(step, node.outputs[0])

    def _integers(self, node: Node) -> None:
        attributes = self._plain(node, "QGemm")
        transposed = bool(attributes.pop("transB", 0))
        names = (*node.inputs[1:], *[""] * 8)[:8]
        value, reads = self._code_names(node.inputs[0], *names[:2])
        require(not attributes and all(map(self._is_fixed, names[2:5])))
        made = CodeNames(names[6], names[7]) if names[6] else None
        require(made is None or (self._is_fixed(made.scale) and self._is_fixed(made.zero)))
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
        require([high.inputs[1:], low.inputs[1:6]] == reads and len({*transposed}) == 1 and len(low.inputs) <= 7)
        require(all(map(self._is_fixed, weight)) and all(self._uses[node.outputs[0]] == 1 for node in (high, low)))
        names = (split.codes, weight[1], weight[2])
        step = Step("wide", split.reads, weight[0], transposed[0], self._optional(bias), *names, low=split.low)
        self._emit(step, total.outputs[0])
        return 3

    def _plain(self, node: Node, operator: str) -> dict[str, Attribute]:
        """The node's attributes, but those that must have and do have the values that make it a plain product."""
        attributes = dict(node.attributes)
        require(all(attributes.pop(name, value) == value for name, value in _SAME_OPERATOR[operator].items()))
        return attributes

    def _require_form(self, node: Node, *counts: int, fixed: int = 9) -> None:
        """No attributes, and so many inputs, of which those from one on are initializers."""
        is_plain = not node.attributes and len(node.inputs) in counts
        require(is_plain and all(map(self._is_fixed, node.inputs[fixed:])))

    def _optional(self, name: str) -> str:
        require(not name or self._is_fixed(name))
        return name

    def _is_fixed(self, name: str) -> bool:
        return bool(name) and name in self._graph.places


def _joins_columns(node: Node) -> bool:
    return node.attributes.keys() == {"axis"} and node.attributes["axis"] in _LAST_AXIS


def require(holds: bool) -> None:
    """Raises UnsuitedError where a condition of the kernels does not hold."""
    if not holds:
        raise UnsuitedError


def is_image(value: Value) -> bool:
    """Whether rows of it are images of bytes, (C, H, W)."""
    return (value.element, len(value.shape)) == (BYTE_TYPE, 4)
