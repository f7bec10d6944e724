"""A policy that is a chain of dense layers, in one call of a compiled kernel. No torch, no onnx.

A graph runtime looks up, checks and calls a kernel for each node: for a policy of 64×2 that takes five to eight times
as long as the whole call here. Here the whole chain, from observations to distribution parameters, is one function.
Equal codes give onnxruntime's answers to the bit; sums of floats differ by rounding, and a code made of them may round
the other way.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isclose, pi, prod
from typing import NamedTuple, cast

import numpy as np

from accel.compressors.arrays import Array, FloatArray
from accel.compressors.artifact import CompressedPolicy, TensorSpec
from accel.compressors.kernels.graph import Graph, Node, Value, read_graph
from accel.compressors.kernels.library import lanes_here, load_kernels

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
_OPERATORS = frozenset({
    "Gemm", "FusedGemm", "QGemm", "QuantizeLinear", "Flatten", "Sub", "Mul", "Cast", "Relu", "Tanh", "Sigmoid", "Elu",
    "Erf", "Add", "Div", "LeakyRelu", "Clip", "Softplus",
})  # fmt: skip
_ALIGNMENT = 64
# products of two bytes are summed in pairs, in 16 bits, without VNNI
_GREATEST_WITHOUT_VNNI = 64
_FLOAT_TYPE = 1  # of ONNX
_DOMAINS = {"FusedGemm": "com.microsoft", "QGemm": "com.microsoft"}
_SAME_OPERATOR = {"Gemm": {"alpha": 1.0, "beta": 1.0, "transA": 0}, "QGemm": {"alpha": 1.0, "transA": 0}}


class _UnsuitedError(Exception):
    """The model is no chain of the layers that the kernels know."""


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
class DenseLayer:
    """One layer: names of initializers.

    Attributes:
        weight: [outputs, inputs] where ``transposed``, else [inputs, outputs].
        bias: "" without one.
        reads: codes of the input; None: floats.
        scale, zero: of the weight's codes.
        activation: of the sums.
        writes: codes of the output; None: floats.
        rescales: whether sums become codes by one factor, without floats in between.
    """

    weight: str
    transposed: bool
    bias: str
    reads: CodeNames | None = None
    scale: str = ""
    zero: str = ""
    activation: Activation = _IDENTITY
    writes: CodeNames | None = None
    rescales: bool = False


@dataclass(frozen=True)
class DenseChain:
    """A model as these layers: observations less ``mean``, times ``factor``, clipped, as ``codes`` or as floats."""

    layers: tuple[DenseLayer, ...]
    mean: str
    factor: str
    clips: tuple[tuple[str, str], ...]
    codes: CodeNames | None
    widened: dict[str, str]
    """Weights in single precision, to the ones in half precision that they are made of."""
    constants: dict[str, float]
    """What initializers must hold for the activations to be what they look like."""


def find_chain(graph: Graph) -> DenseChain | None:
    """The chain that a model is; None where it is none."""
    if len(graph.inputs) != 1 or len(graph.outputs) != 1:
        return None
    try:
        return _Reader(graph).chain()
    except _UnsuitedError:
        return None


class _Reader:
    """Follows the value from the model's input through its nodes."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._value = graph.inputs[0].name
        self._is_flat = len(graph.inputs[0].shape) == 2
        self._codes: CodeNames | None = None  # the value's, while it is in codes
        self._layers: list[DenseLayer] = []
        self._chain = DenseChain((), "", "", (), None, {}, {})

    def chain(self) -> DenseChain:
        nodes = list(self._graph.nodes)
        while nodes:
            if self._layers and self._codes is None and self._composed(nodes):
                continue
            node = nodes.pop(0)
            if not node.inputs or len(node.outputs) != 1 or self._graph.places.keys() & {*node.outputs}:
                raise _UnsuitedError
            if node.domain != _DOMAINS.get(node.operator, ""):
                raise _UnsuitedError
            if node.operator == "Cast" and node.attributes == {"to": _FLOAT_TYPE} and self._is_fixed(node.inputs[0]):
                self._chain.widened[node.outputs[0]] = node.inputs[0]
                continue
            if node.inputs[0] != self._value:
                raise _UnsuitedError
            self._value = node.outputs[0]
            self._follow(node)
        if not self._layers or self._codes is not None or self._value != self._graph.outputs[0].name:
            raise _UnsuitedError
        return replace(self._chain, layers=tuple(self._layers))

    def _follow(self, node: Node) -> None:
        operator = node.operator
        if operator not in ("Gemm", "FusedGemm", "QGemm", "Flatten", *_ALPHAS) and node.attributes:
            raise _UnsuitedError
        if operator == "QGemm":
            self._integers(node)
        elif self._codes is not None:
            raise _UnsuitedError
        elif operator in ("Gemm", "FusedGemm"):
            self._floats(node)
        elif operator == "QuantizeLinear":
            self._quantise(node)
        elif self._layers:
            self._activate(self._activation(node))
        else:
            self._normalise(node)

    def _normalise(self, node: Node) -> None:
        chain, others = self._chain, node.inputs[1:]
        if node.operator == "Flatten" and node.attributes in ({}, {"axis": 1}):
            self._is_flat = True
            return
        if not others or not all(map(self._is_fixed, others)) or (len(others) > 1 and node.operator != "Clip"):
            raise _UnsuitedError
        if node.operator == "Sub" and not (chain.mean or chain.factor or chain.clips):
            self._chain = replace(chain, mean=others[0])
        elif node.operator == "Mul" and not (chain.factor or chain.clips):
            self._chain = replace(chain, factor=others[0])
        elif node.operator == "Clip" and len(others) == 2:
            self._chain = replace(chain, clips=(*chain.clips, (others[0], others[1])))
        else:
            raise _UnsuitedError

    def _quantise(self, node: Node) -> None:
        if len(node.inputs) != 3 or not all(map(self._is_fixed, node.inputs[1:])):
            raise _UnsuitedError
        self._codes = CodeNames(node.inputs[1], node.inputs[2])
        if self._layers:
            self._layers[-1] = replace(self._layers[-1], writes=self._codes)
        else:
            self._chain = replace(self._chain, codes=self._codes)

    def _activation(self, node: Node) -> Activation:
        kind, others = node.operator, node.inputs[1:]
        if kind == "Clip":
            least, greatest = (*map(self._optional, others), "", "")[:2]
            return Activation(kind, bounds=(least, greatest))
        alpha = node.attributes.get("alpha", _ALPHAS.get(kind, 0.0))
        if kind not in _ACTIVATIONS or others or node.attributes.keys() - {"alpha"} or not isinstance(alpha, float):
            raise _UnsuitedError
        return Activation(kind, alpha)

    def _activate(self, activation: Activation) -> None:
        if self._layers[-1].activation.kind:
            raise _UnsuitedError
        self._layers[-1] = replace(self._layers[-1], activation=activation)

    def _composed(self, nodes: list[Node]) -> bool:
        """Take an activation of several nodes, if they are the next."""
        for kind, operations in _PATTERNS.items():
            found = nodes[: len(operations)]
            constants = self._constants_of(found, operations)
            if constants is not None:
                self._activate(Activation(kind))
                self._chain.constants.update(constants)
                self._value = found[-1].outputs[0]
                del nodes[: len(operations)]
                return True
        return False

    def _constants_of(
        self, nodes: list[Node], operations: tuple[tuple[str, tuple[str | int | float, ...]], ...]
    ) -> dict[str, float] | None:
        """The constants that make these nodes the operations on the present value; None if they are others."""
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
                    name = self._value if operand == "x" else nodes[cast(int, operand)].outputs[0]
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
        self._layers.append(DenseLayer(weight, transposed, self._optional(bias), activation=activation))

    def _integers(self, node: Node) -> None:
        attributes = self._plain(node, "QGemm")
        transposed = bool(attributes.pop("transB", 0))
        names = (*node.inputs[1:], *[""] * 8)[:8]
        reads = CodeNames(names[0], names[1])
        if attributes or reads != self._codes or not all(map(self._is_fixed, names[2:5])):
            raise _UnsuitedError
        made = CodeNames(names[6], names[7]) if names[6] else None
        if made is not None and not (self._is_fixed(made.scale) and self._is_fixed(made.zero)):
            raise _UnsuitedError
        layer = DenseLayer(names[2], transposed, self._optional(names[5]), reads, names[3], names[4])
        self._layers.append(replace(layer, writes=made, rescales=made is not None))
        self._codes = made

    def _plain(self, node: Node, operator: str) -> dict[str, float | int | str | None]:
        """The node's attributes, but those that must have and do have the values that make it a plain product."""
        attributes = dict(node.attributes)
        if not self._is_flat:
            raise _UnsuitedError
        if any(attributes.pop(name, value) != value for name, value in _SAME_OPERATOR[operator].items()):
            raise _UnsuitedError
        return attributes

    def _optional(self, name: str) -> str:
        if name and not self._is_fixed(name):
            raise _UnsuitedError
        return name

    def _is_fixed(self, name: str) -> bool:
        return bool(name) and name in self._graph.places


class _CLayer(ctypes.Structure):
    _fields_ = (
        ("is_integer", ctypes.c_int32), ("activation", ctypes.c_int32), ("quantises", ctypes.c_int32),
        ("inputs", ctypes.c_int32), ("outputs", ctypes.c_int32), ("weights", ctypes.c_void_p),
        ("bias", ctypes.c_void_p), ("scale", ctypes.c_void_p), ("alpha", ctypes.c_float), ("beta", ctypes.c_float),
        ("step", ctypes.c_float), ("zero", ctypes.c_int32),
    )  # fmt: skip


class _CChain(ctypes.Structure):
    _fields_ = (
        ("layers", ctypes.c_int32), ("features", ctypes.c_int32), ("outputs", ctypes.c_int32),
        ("stride", ctypes.c_int32), ("mean", ctypes.c_void_p), ("factor", ctypes.c_void_p), ("least", ctypes.c_float),
        ("greatest", ctypes.c_float), ("step", ctypes.c_float), ("zero", ctypes.c_int32),
        ("layer", ctypes.POINTER(_CLayer)), ("floats", ctypes.c_void_p * 2), ("codes", ctypes.c_void_p * 2),
    )  # fmt: skip
    kept: tuple[object, ...] = ()
    """What its pointers point to, alive as long as it is."""


_latest: tuple[Graph, DenseChain | None] | None = None


def _chain_of(model: bytes) -> tuple[Graph, DenseChain | None]:
    """What a model is; read once for models that differ in their numbers alone, as a policy's versions do."""
    global _latest
    found = _latest  # once: another thread may change it
    if found is None or not found[0].is_of(model):
        graph = read_graph(model)
        _latest = found = graph, find_chain(graph)
    return found


def make_chain(artifact: CompressedPolicy, lanes: int | None = None) -> ChainKernel | None:
    """The artifact as a kernel; None where it is no chain, or no kernel for it runs on this CPU.

    Args:
        artifact: its header need not be true: names, types and sizes are compared with the model's.
        lanes: floats in a vector, 16 or 8; None: the most that this CPU has.
    """
    lanes = lanes_here() if lanes is None else lanes
    if not lanes or len(artifact.inputs) != 1 or len(artifact.outputs) != 1:
        return None
    try:
        graph, chain = _chain_of(artifact.model)
        if chain is None or not (
            _is_as_declared(artifact.inputs[0], graph.inputs[0])
            and _is_as_declared(artifact.outputs[0], graph.outputs[0])
        ):
            return None
        return ChainKernel(artifact, graph, chain, lanes)
    except (ValueError, _UnsuitedError):  # no such model, or other types and sizes: onnxruntime says what is wrong
        return None


def why_no_chain(artifact: CompressedPolicy) -> str:
    """Why the compiled kernels do not run an artifact whose ``make_chain`` is None: the operators that they lack."""
    lacking = sorted({node.operator for node in read_graph(artifact.model).nodes} - _OPERATORS)
    if lacking:
        return f"{', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not in the compiled kernels"
    return "its layers do not follow each other in one chain, which is what the compiled kernels run"


class ChainKernel:
    """A chain's packed weights; ``bind`` makes what runs it. Built by ``make_chain``."""

    def __init__(self, artifact: CompressedPolicy, graph: Graph, chain: DenseChain, lanes: int) -> None:
        self._model, self._graph, self._chain, self._lanes = artifact.model, graph, chain, lanes
        kernels = load_kernels()
        if kernels is None:
            raise _UnsuitedError
        self._kernels = kernels
        self._kept: list[Array] = []
        source, target = artifact.inputs[0], artifact.outputs[0]
        if not all(isclose(self._scalar(name, np.float32), x, rel_tol=1e-6) for name, x in chain.constants.items()):
            raise _UnsuitedError
        self._features = prod(cast("tuple[int, ...]", source.shape[1:]))
        if len(target.shape) != 2:
            raise _UnsuitedError
        self._layers = (_CLayer * len(chain.layers))()
        width, sizes = self._features, [self._features]
        for made, layer in zip(self._layers, chain.layers, strict=True):
            width = self._fill(made, layer, width)
            sizes.append(made.outputs)
        if width != target.shape[1]:
            raise _UnsuitedError
        self._outputs = width
        # room for a whole vector, or four codes, behind the last observation
        self._stride = max(_up(size, 2 * lanes) for size in sizes)
        self._observed = _CChain()
        self._observe(self._observed, source.shape[1:])

    def bind(self, x: FloatArray, y: FloatArray) -> Callable[[], None]:
        """What computes ``y`` [rows, P] from ``x`` [rows, *observation], both contiguous: they are its for good.

        Raises ValueError: another shape or type.
        """
        rows = x.shape[0]
        fits = x.size == rows * self._features and y.shape == (rows, self._outputs)
        plain = all(array.dtype == np.float32 and array.flags.c_contiguous for array in (x, y))
        if not fits or not plain:
            raise ValueError(
                f"{x.dtype}{list(x.shape)} and {y.dtype}{list(y.shape)} are not rows of {self._features} and "
                f"{self._outputs} contiguous float32"
            )
        kept = [self._zeros(rows * self._stride, kind) for kind in (np.float32, np.float32, np.uint8, np.uint8)]
        chain = _CChain.from_buffer_copy(self._observed)
        chain.layers, chain.features, chain.outputs = len(self._layers), self._features, self._outputs
        chain.stride, chain.layer = self._stride, self._layers
        chain.floats[:] = [array.ctypes.data for array in kept[:2]]
        chain.codes[:] = [array.ctypes.data for array in kept[2:]]
        function = self._kernels.run_avx512 if self._lanes == 16 else self._kernels.run_avx2
        arguments = (
            ctypes.byref(chain), ctypes.c_int(rows), ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data)
        )  # fmt: skip
        chain.kept = (self, x, y, *kept)
        return partial(function, *arguments)

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
        chain.step, chain.zero = self._step(self._chain.codes)

    def _fill(self, made: _CLayer, layer: DenseLayer, inputs: int) -> int:
        """Pack one layer; returns how many outputs it has."""
        integers = layer.reads is not None
        weight = self._weight(layer, np.int8 if integers else np.float32)
        n, k = weight.shape
        if k != inputs:
            raise _UnsuitedError
        outputs = _up(n, 2 * self._lanes)
        made.is_integer = integers
        self._activate(made, layer.activation)
        made.inputs, made.outputs = _up(k, 4) if integers else k, outputs
        bias = self._zeros(outputs, np.int32 if integers else np.float32)
        if layer.bias:
            given = self._array(layer.bias, bias.dtype)
            if given.shape != (n,):
                raise _UnsuitedError
            bias[:n] = given
        packed = self._zeros(outputs * made.inputs, weight.dtype)
        strides = (step // weight.itemsize for step in weight.strides)
        arguments = (weight.ctypes.data, n, k, *strides, self._lanes)
        if layer.reads is not None:
            made.scale = self._keep(self._scales(layer, layer.reads, weight, outputs))
            zero = int(self._scalar(layer.reads.zero, np.uint8))
            self._kernels.pack_codes(*arguments, zero, packed.ctypes.data, bias.ctypes.data)
        else:
            self._kernels.pack_floats(*arguments, packed.ctypes.data)
        made.weights, made.bias = self._keep(packed), self._keep(bias)
        made.quantises = layer.writes is not None
        made.step, made.zero = self._step(layer.writes)
        if layer.rescales:
            made.step = 1.0
        return int(n)

    def _activate(self, made: _CLayer, activation: Activation) -> None:
        made.activation = _ACTIVATIONS.index(activation.kind)
        made.alpha = activation.alpha
        if activation.kind == "Clip":
            made.alpha, made.beta = (
                float(self._scalar(name, np.float32)) if name else unbounded
                for name, unbounded in zip(activation.bounds, (-inf, inf), strict=True)
            )

    def _weight(self, layer: DenseLayer, dtype: type[np.generic]) -> Array:
        half = self._chain.widened.get(layer.weight)
        found = self._array(layer.weight, dtype) if half is None else self._array(half, np.float16).astype(np.float32)
        if found.ndim != 2:
            raise _UnsuitedError
        return found if layer.transposed else found.T

    def _scales(self, layer: DenseLayer, reads: CodeNames, weight: Array, outputs: int) -> Array:
        """Of the integer sums, one for each output, with the rounding of single precision at every product."""
        n = len(weight)
        scale = self._array(layer.scale, np.float32)
        if scale.shape not in ((), (1,), (n,)) or self._array(layer.zero, np.int8).any():
            raise _UnsuitedError
        if self._lanes == 8 and np.abs(weight.view(np.int8).astype(np.int16)).max() > _GREATEST_WITHOUT_VNNI:
            raise _UnsuitedError
        with np.errstate(all="ignore"):  # what is not finite becomes so in the answers too
            factors = np.multiply(scale, self._scalar(reads.scale, np.float32))
            if layer.rescales and layer.writes is not None:
                factors = np.divide(factors, self._scalar(layer.writes.scale, np.float32))
        padded = self._zeros(outputs, np.float32)
        padded[:n] = factors
        return padded

    def _step(self, codes: CodeNames | None) -> tuple[float, int]:
        if codes is None:
            return 1.0, 0
        return float(self._scalar(codes.scale, np.float32)), int(self._scalar(codes.zero, np.uint8))

    def _array(self, name: str, dtype: type[np.generic] | np.dtype[np.generic]) -> Array:
        array = self._graph.array(self._model, name)
        if array.dtype != dtype:
            raise _UnsuitedError
        return array

    def _scalar(self, name: str, dtype: type[np.generic]) -> Array:
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


def _is_as_declared(spec: TensorSpec, value: Value) -> bool:
    """Whether an artifact's header says of a tensor what its model says: floats, any number of rows, these sizes."""
    shape = spec.shape
    if (spec.name, spec.dtype, value.element) != (value.name, "float32", _FLOAT_TYPE) or len(shape) < 2:
        return False
    return shape[0] is None and None not in shape[1:] and value.shape == shape


def _up(size: int, multiple: int) -> int:
    return (size + multiple - 1) // multiple * multiple
