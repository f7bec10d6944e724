"""The operators of ONNX policies as functions of torch; what depends on constants and shapes alone is not among them.

Source: the operator specification of ONNX, opsets 7 to 22. Deviations: inference only; pooling and convolutions with
explicit padding; LSTM and GRU forward, with their default activations.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from onnx import NodeProto, helper
from torch import Tensor

from accel.errors import ConfigError

Array = npt.NDArray[np.generic]
Result = Tensor | Sequence[Tensor]


@dataclass(frozen=True)
class Call:
    """One node with its inputs.

    Attributes:
        tensors: the inputs in torch; None where one is left out. constants: those that are known, as arrays.
        opset: version of the operators.
    """

    node: NodeProto
    tensors: Sequence[Tensor | None]
    constants: Sequence[Array | None]
    opset: int

    def __getitem__(self, index: int) -> Tensor:
        """An input that the operator requires."""
        found = self.get(index)
        if found is None:
            raise ConfigError(f"operator {self.node.op_type} {self.node.name!r} lacks input {index}")
        return found

    def get(self, index: int) -> Tensor | None:
        """An input that may be left out."""
        return self.tensors[index] if index < len(self.tensors) else None

    def operand(self, index: int) -> Tensor | float:
        """An input, as a number where it is a constant one."""
        constant = self.constants[index]
        return self[index] if constant is None or constant.ndim or constant.dtype.kind != "f" else float(constant)

    def number(self, name: str, default: float) -> float:
        """An attribute."""
        return float(self._attribute(name, default))  # type: ignore[arg-type]

    def integers(self, name: str, index: int = 99, default: Sequence[int] | None = None) -> list[int] | None:
        """Integers that are an attribute in old opsets, and a constant input in new ones."""
        if index < len(self.node.input) and self.node.input[index]:
            constant = self.constants[index]
            if constant is None:
                raise ConfigError(f"operator {self.node.op_type} {self.node.name!r} takes {name} from observations")
            return [int(value) for value in constant.reshape(-1)]
        value = self._attribute(name, default)
        return None if value is None else [int(item) for item in np.atleast_1d(np.asarray(value))]

    def text(self, name: str, default: str) -> str:
        """An attribute."""
        value = self._attribute(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def axis(self, default: int) -> int:
        """The attribute ``axis``."""
        return int(self.number("axis", default))

    def _attribute(self, name: str, default: object) -> object:
        found = next((a for a in self.node.attribute if a.name == name), None)
        return default if found is None else helper.get_attribute_value(found)


def _gemm(c: Call) -> Tensor:
    x, weight, bias = c[0], c[1], c.get(2)
    x = x.t() if c.number("transA", 0) else x
    weight = weight if c.number("transB", 0) else weight.t()
    alpha, beta = c.number("alpha", 1.0), c.number("beta", 1.0)
    if alpha == 1.0 and beta == 1.0 and (bias is None or bias.shape == weight.shape[:1]):
        return F.linear(x, weight, bias)
    product = alpha * F.linear(x, weight)
    return product if bias is None else product + beta * bias


def _matmul(c: Call) -> Tensor:
    return F.linear(c[0], c[1].t()) if c[1].dim() == 2 and c.constants[1] is not None else torch.matmul(c[0], c[1])


def _clip(c: Call) -> Tensor:
    low, high = (
        c.number(name, math.nan) if c.constants[index : index + 1] in ([], [None]) else float(c.constants[index])  # type: ignore[arg-type]
        for index, name in ((1, "min"), (2, "max"))
    )
    return torch.clamp(c[0], None if math.isnan(low) else low, None if math.isnan(high) else high)


def _split(c: Call) -> Sequence[Tensor]:
    axis, sizes = c.axis(0), c.integers("split", 1)
    if sizes is None:
        return torch.split(c[0], -(-c[0].shape[axis] // len(c.node.output)), axis)
    return torch.split(c[0], sizes, axis)


def _slice(c: Call) -> Tensor:
    starts, ends = c.integers("starts", 1) or [], c.integers("ends", 2) or []
    axes = c.integers("axes", 3) or list(range(len(starts)))
    steps = c.integers("steps", 4) or [1] * len(starts)
    x, places = c[0], [slice(None)] * c[0].dim()
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step > 0:
            places[axis] = slice(start, end, step)
        else:
            backwards = range(*slice(start, end, step).indices(x.shape[axis]))
            x = torch.index_select(x, axis, torch.tensor([*backwards]))
    return x[tuple(places)]


def _gather(c: Call) -> Tensor:
    index, axis = c.integers("indices", 1) or [], c.axis(0)
    chosen = torch.index_select(c[0], axis, torch.tensor(index) % c[0].shape[axis])
    shape = () if c.constants[1] is None else c.constants[1].shape
    return chosen.squeeze(axis) if shape == () else chosen


def _reshape(c: Call) -> Tensor:
    sizes = c.integers("shape", 1) or []
    return c[0].reshape([c[0].shape[i] if size == 0 else size for i, size in enumerate(sizes)])


def _flatten(c: Call) -> Tensor:
    axis = c.axis(1)
    return c[0].flatten(1) if axis == 1 else c[0].reshape(math.prod(c[0].shape[:axis]), -1)


def _squeezed(c: Call) -> Tensor:
    axes = c.integers("axes", 1)
    return c[0].squeeze() if axes is None else reduce(Tensor.squeeze, sorted(axes, reverse=True), c[0])


def _unsqueezed(c: Call) -> Tensor:
    axes, rank = c.integers("axes", 1) or [], c[0].dim()
    return reduce(Tensor.unsqueeze, sorted(axis % (rank + len(axes)) for axis in axes), c[0])


def _reduced(function: Callable[..., Tensor]) -> Callable[[Call], Tensor]:
    def call(c: Call) -> Tensor:
        axes = c.integers("axes", 1) or list(range(c[0].dim()))
        return function(c[0], axes, keepdim=bool(c.number("keepdims", 1)))

    return call


def _normalised_over(function: Callable[..., Tensor]) -> Callable[[Call], Tensor]:
    def call(c: Call) -> Tensor:
        axis = c.axis(-1 if c.opset >= 13 else 1)
        return function(c[0], axis)

    return call


def _padding(c: Call) -> list[int]:
    """Explicit padding as ``torch.nn.functional.pad`` takes it: of the last dimension first."""
    if c.text("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise ConfigError(f"operator {c.node.op_type} {c.node.name!r} pads automatically: export it with explicit pads")
    return _sides(c.integers("pads") or [0] * (2 * (c[0].dim() - 2)))


def _sides(pads: Sequence[int]) -> list[int]:
    half = len(pads) // 2
    return [size for i in reversed(range(half)) for size in (pads[i], pads[half + i])]


def _convolution(c: Call) -> Tensor:
    x, weight, ones = F.pad(c[0], _padding(c)), c[1], [1] * (c[0].dim() - 2)
    stride, dilation = c.integers("strides", default=ones) or ones, c.integers("dilations", default=ones) or ones
    function = F.conv1d if x.dim() == 3 else F.conv2d
    return function(x, weight, c.get(2), stride, 0, dilation, int(c.number("group", 1)))


def _pooled(maximum: bool) -> Callable[[Call], Tensor]:
    def call(c: Call) -> Tensor:
        kernel = c.integers("kernel_shape") or []
        stride = c.integers("strides", default=[1] * len(kernel))
        padding = _padding(c)
        if maximum:
            return F.max_pool2d(F.pad(c[0], padding, value=-math.inf), kernel, stride)
        if any(padding) and not c.number("count_include_pad", 0):
            raise ConfigError(f"operator AveragePool {c.node.name!r} does not count its padding, as torch does")
        return F.avg_pool2d(F.pad(c[0], padding), kernel, stride)

    return call


def _padded(c: Call) -> Tensor:
    value, sides = c.constants[2] if len(c.constants) > 2 else None, _sides(c.integers("pads", 1) or [])
    mode = {"constant": "constant", "edge": "replicate", "reflect": "reflect"}[c.text("mode", "constant")]
    return F.pad(c[0], sides, mode, 0.0 if value is None or mode != "constant" else float(value))


def _layer_norm(c: Call) -> Tensor:
    axis = c.axis(-1) % c[0].dim()
    return F.layer_norm(c[0], c[0].shape[axis:], c[1], c.get(2), c.number("epsilon", 1e-5))


def _batch_norm(c: Call) -> Tensor:
    """As a product and a sum, of whatever shape."""
    shape = [1, -1, *[1] * (c[0].dim() - 2)]
    scale = c[1] / torch.sqrt(c[4] + c.number("epsilon", 1e-5))
    return c[0] * scale.reshape(shape) + (c[2] - c[3] * scale).reshape(shape)


def _recurrent(gates: int) -> Callable[[Call], Sequence[Tensor]]:
    """LSTM and GRU over a sequence [T, B, I], one direction; gates are i, o, f, c and z, r, h."""

    def call(c: Call) -> Sequence[Tensor]:
        if c.text("direction", "forward") != "forward" or c.number("layout", 0) or c.get(4) is not None:
            raise ConfigError(f"operator {c.node.op_type} {c.node.name!r} is not a plain one that runs forward")
        x, weight, recurrent = c[0], c[1].squeeze(0), c[2].squeeze(0)
        size = recurrent.shape[1]
        zeros = x.new_zeros((x.shape[1], size))
        biases = c.get(3)
        input_bias, hidden_bias = (None, None) if biases is None else biases.squeeze(0).chunk(2)
        first = [c.get(index) for index in (5, 6)[: gates - 2]]
        states = [zeros if state is None else state.squeeze(0) for state in first]
        outputs = []
        for step in x.unbind(0):
            given, held = F.linear(step, weight, input_bias), F.linear(states[0], recurrent, hidden_bias)
            if gates == 4:
                entered, shown, kept, new = (given + held).chunk(4, 1)
                cell = torch.sigmoid(kept) * states[1] + torch.sigmoid(entered) * torch.tanh(new)
                states = [torch.sigmoid(shown) * torch.tanh(cell), cell]
            else:
                if not c.number("linear_before_reset", 0):
                    raise ConfigError(f"operator GRU {c.node.name!r} resets before its product, unlike torch's")
                (z, r, n), (hz, hr, hn) = given.chunk(3, 1), held.chunk(3, 1)
                update = torch.sigmoid(z + hz)
                states = [(1 - update) * torch.tanh(n + torch.sigmoid(r + hr) * hn) + update * states[0]]
            outputs.append(states[0])
        return torch.stack(outputs).unsqueeze(1), *(state.unsqueeze(0) for state in states)

    return call


def _divided(first: Tensor, second: Tensor | float) -> Tensor:
    whole = isinstance(second, Tensor) and not first.is_floating_point() and not second.is_floating_point()
    return torch.div(first, second, rounding_mode="trunc" if whole else None)


def _cast(c: Call) -> Tensor:
    """To another kind of numbers; floats are all of single precision."""
    kind = helper.tensor_dtype_to_np_dtype(int(c.number("to", 1)))
    return c[0].to(torch.float32 if kind.kind == "f" else getattr(torch, str(kind)))


def _cumulated(c: Call) -> Tensor:
    if c.number("exclusive", 0) or c.number("reverse", 0):
        raise ConfigError(f"operator CumSum {c.node.name!r} is exclusive or goes backwards, which torch does not")
    return torch.cumsum(c[0], (c.integers("axis", 1) or [0])[0])


def _refused(c: Call) -> Tensor:
    raise ConfigError(
        f"the graph ends in actions chosen by {c.node.op_type}: export the outputs that they are chosen by, logits or "
        "means, so that quality can be measured and other runtimes can choose"
    )


_SAME_IN_TORCH = (
    *("Relu", "Tanh", "Sigmoid", "Exp", "Log", "Sqrt", "Abs", "Neg", "Erf", "Sin", "Cos", "Sign", "Floor", "Ceil"),
    *("Reciprocal", "Round"),
)
_PLAIN: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {
        "Equal": torch.eq,
        "Greater": torch.gt,
        "Less": torch.lt,
        "GreaterOrEqual": torch.ge,
        "LessOrEqual": torch.le,
        "And": torch.logical_and,
        "Or": torch.logical_or,
        "Not": torch.logical_not,
        "Where": torch.where,
        **{name: getattr(torch, name.lower()) for name in _SAME_IN_TORCH},
        "Softplus": F.softplus,
        "Softsign": F.softsign,
        "HardSwish": F.hardswish,
        "Mish": F.mish,
        "Identity": lambda x: x,
        "Dropout": lambda x, *_: x,
        "Min": lambda *values: reduce(torch.minimum, values),
        "Max": lambda *values: reduce(torch.maximum, values),
    }
)
"""Operators that are functions of their inputs alone."""

_ARITHMETIC: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {"Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Div": _divided, "Pow": operator.pow}
)
"""Operators of two operands, of which one may be a number."""

_WITH_ATTRIBUTES: Mapping[str, Callable[[Call], Result]] = MappingProxyType(
    {
        "Elu": lambda c: F.elu(c[0], c.number("alpha", 1.0)),
        "Celu": lambda c: F.celu(c[0], c.number("alpha", 1.0)),
        "LeakyRelu": lambda c: F.leaky_relu(c[0], c.number("alpha", 0.01)),
        "PRelu": lambda c: torch.where(c[0] < 0, c[0] * c[1], c[0]),
        "Selu": lambda c: c.number("gamma", 1.0507009873554805) * F.elu(c[0], c.number("alpha", 1.6732632423543772)),
        "HardSigmoid": lambda c: torch.clamp(c[0] * c.number("alpha", 0.2) + c.number("beta", 0.5), 0, 1),
        "Gelu": lambda c: F.gelu(c[0], approximate=c.text("approximate", "none")),
        "Swish": lambda c: c[0] * torch.sigmoid(c.number("alpha", 1.0) * c[0]),
        "ThresholdedRelu": lambda c: torch.where(c[0] > c.number("alpha", 1.0), c[0], torch.zeros_like(c[0])),
        "Clip": _clip,
        "CumSum": _cumulated,
        "Einsum": lambda c: torch.einsum(c.text("equation", ""), *(c[i] for i in range(len(c.tensors)))),
        "LpNormalization": lambda c: F.normalize(c[0], c.number("p", 2), c.axis(-1)),
        "TopK": lambda c: torch.topk(c[0], (c.integers("k", 1) or [1])[0], c.axis(-1), bool(c.number("largest", 1))),
        "Softmax": _normalised_over(torch.softmax),
        "LogSoftmax": _normalised_over(torch.log_softmax),
        "Gemm": _gemm,
        "MatMul": _matmul,
        "Conv": _convolution,
        "MaxPool": _pooled(maximum=True),
        "AveragePool": _pooled(maximum=False),
        "GlobalAveragePool": lambda c: c[0].mean(list(range(2, c[0].dim())), keepdim=True),
        "BatchNormalization": _batch_norm,
        "LayerNormalization": _layer_norm,
        "LSTM": _recurrent(4),
        "GRU": _recurrent(3),
        "Concat": lambda c: torch.cat([c[i] for i in range(len(c.tensors))], c.axis(1)),
        "Split": _split,
        "Slice": _slice,
        "Gather": _gather,
        "Reshape": _reshape,
        "Flatten": _flatten,
        "Transpose": lambda c: c[0].permute(c.integers("perm", default=range(c[0].dim())[::-1])),  # type: ignore[arg-type]
        "Squeeze": _squeezed,
        "Unsqueeze": _unsqueezed,
        "Expand": lambda c: c[0] * torch.ones(c.integers("shape", 1) or []),
        "Tile": lambda c: c[0].repeat(c.integers("repeats", 1) or []),
        "Pad": _padded,
        "Cast": _cast,
        "ReduceMean": _reduced(torch.mean),
        "ReduceSum": _reduced(torch.sum),
        "ReduceMax": _reduced(torch.amax),
        "ReduceMin": _reduced(torch.amin),
        "ReduceL2": _reduced(torch.linalg.vector_norm),
        "ArgMax": _refused,
    }
)


def apply(call: Call) -> Result | None:
    """The outputs of a node; None for an operator that is not known."""
    name = call.node.op_type
    if name in _ARITHMETIC:
        return _ARITHMETIC[name](call.operand(0), call.operand(1))
    if name in _PLAIN:
        return _PLAIN[name](*call.tensors)
    return _WITH_ATTRIBUTES[name](call) if name in _WITH_ATTRIBUTES else None
