"""A dense stack as one differentiable call: what the learner runs on a CPU, where torch's own pieces are slow.

torch's vectorised tanh is slow, and its gradient of a narrow layer's weight asks the matrix library for the slow one of
two orientations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

from accel.config.parts import Activation
from accel.networks import compiled_towers
from accel.networks.compiled_towers import CompiledTowers, Layer, Tower

FUNCTIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = MappingProxyType({
    "tanh": torch.tanh,
    "relu": F.relu,
    "elu": F.elu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "leaky_relu": F.leaky_relu,
    "sigmoid": torch.sigmoid,
    "hardtanh": F.hardtanh,
    "softplus": F.softplus,
})  # fmt: skip


def dense(x: Tensor, weights: tuple[Tensor, ...], biases: tuple[Tensor, ...], activation: Activation) -> Tensor:
    """h_i = φ(h_{i−1} W_iᵀ + b_i) with h_0 = x; gradients reach x, weights and biases.

    Args:
        x: [N, F] float32 on the CPU. weights, biases: [out, in] and [out] of each layer.
        activation: φ, which is ``by_hand``.
    Returns:
        The last layer's [N, out].
    """
    if not torch.is_grad_enabled():
        towers = [Tower([*map(Layer, weights, biases)])]
        if compiled_towers.takes(max(map(len, biases)), len(x)) and compiled_towers.suits(towers):
            return CompiledTowers(towers, activation).run(x)[0][0]
    return cast(Tensor, _Dense.apply(x, activation, *weights, *biases))  # type: ignore[no-untyped-call]


def _fast_tanh(x: Tensor) -> None:
    """In place: numpy's, which is many times as fast with AVX-512; else 2 σ(2x) − 1, which takes half as long."""
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        array = x.numpy()
        np.tanh(array, array)
    else:
        x.mul_(2.0).sigmoid_().mul_(2.0).sub_(1.0)


_aten = torch.ops.aten
# Activations whose derivative is a function of their output: in place, and from the gradient of the output to that of
# the input.
_IN_PLACE: Mapping[Activation, Callable[[Tensor], object]] = MappingProxyType(
    {"tanh": _fast_tanh, "relu": torch.relu_, "elu": partial(F.elu, inplace=True), "sigmoid": torch.sigmoid_}
)
_BACKWARD: Mapping[Activation, Callable[[Tensor, Tensor, Tensor], Tensor]] = MappingProxyType({
    "tanh": lambda gradient, output, into: _aten.tanh_backward.grad_input(gradient, output, grad_input=into),
    "relu": lambda gradient, output, into: _aten.threshold_backward.grad_input(gradient, output, 0, grad_input=into),
    "elu": lambda gradient, output, into: _aten.elu_backward.grad_input(
        gradient, 1.0, 1.0, 1.0, True, output, grad_input=into
    ),
    "sigmoid": lambda gradient, output, into: _aten.sigmoid_backward.grad_input(gradient, output, grad_input=into),
})  # fmt: skip


def by_hand(activation: Activation) -> bool:
    """Whether ``dense`` knows an activation and its derivative; autograd does the others."""
    return activation in _BACKWARD


_torch_alone: ContextVar[bool] = ContextVar("torch_alone", default=False)


@contextmanager
def torch_alone() -> Iterator[None]:
    """Within, torch computes every layer and its gradient: what a benchmark compares with."""
    token = _torch_alone.set(True)
    try:
        yield
    finally:
        _torch_alone.reset(token)


def suits(x: Tensor) -> bool:
    """Whether ``dense`` can take these inputs: float32 on the CPU, and no autocast that expects another dtype."""
    plain = x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return plain and not _torch_alone.get()


def run(x: Tensor, transposed: Sequence[Tensor], biases: Sequence[Tensor], activation: Activation) -> list[Tensor]:
    """``dense`` without a graph, of transposed weights [in, out]: x and every layer's output."""
    layers = [x]
    for weight, bias in zip(transposed, biases, strict=True):
        x = torch.addmm(bias, x, weight)
        _IN_PLACE[activation](x)
        layers.append(x)
    return layers


def pull(
    gradient: Tensor,
    layers: Sequence[Tensor],
    weights: Sequence[Tensor],
    activation: Activation,
    into: Sequence[Tensor | None],
    to_input: bool,
) -> tuple[Tensor | None, list[Tensor]]:
    """From the gradient of the last of ``run``'s layers those of x (None unless asked for), weights and biases.

    Args:
        into: where those of all weights, then of all biases, are written; None: into a new tensor.
    """
    depth = len(weights)
    found: list[Tensor] = [gradient] * (2 * depth)
    for index in range(depth - 1, -1, -1):
        output, inputs = layers[index + 1], layers[index]
        gradient = _of_sum(gradient, output, activation, own=index < depth - 1)
        found[index] = of_weight(gradient, inputs, into[index])
        found[depth + index] = of_bias(gradient, into[depth + index])
        if index > 0 or to_input:
            gradient = torch.mm(gradient, weights[index])
    return gradient if to_input else None, found


def pull_input(
    gradient: Tensor, layers: Sequence[Tensor], weights: Sequence[Tensor], activation: Activation, first: int
) -> Tensor:
    """From the gradient of the last of ``run``'s layers, which is overwritten, to that of x from column ``first``."""
    for index in range(len(weights) - 1, -1, -1):
        gradient = _of_sum(gradient, layers[index + 1], activation, own=True)
        gradient = torch.mm(gradient, weights[index] if index else weights[0][:, first:])
    return gradient


def _of_sum(gradient: Tensor, output: Tensor, activation: Activation, *, own: bool) -> Tensor:
    """From the gradient of an activation's output to that of its input; in place where it is our own."""
    into = gradient if own else torch.empty_like(output)
    return _BACKWARD[activation](gradient, output, into)


def of_weight(gradient: Tensor, inputs: Tensor, into: Tensor | None = None) -> Tensor:
    """The gradient [out, in] of a layer's weight from that of its output [N, out], in the quicker orientation."""
    if inputs.shape[1] < gradient.shape[1]:
        return of_weight(inputs, gradient, None if into is None else into.t()).t()
    return torch.mm(gradient.t(), inputs, out=into)


def of_bias(gradient: Tensor, into: Tensor | None = None) -> Tensor:
    """The gradient [out] of a layer's bias from that of its output [N, out]."""
    return torch.sum(gradient, 0, out=into)


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, activation: Activation, *parameters: Tensor) -> Tensor:
        depth = len(parameters) // 2
        layers = run(x, [weight.t() for weight in parameters[:depth]], parameters[depth:], activation)
        ctx.save_for_backward(*layers, *parameters[:depth])
        ctx.activation = activation  # type: ignore[attr-defined]
        return layers[-1]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        saved: tuple[Tensor, ...] = ctx.saved_tensors  # type: ignore[attr-defined]
        depth = len(saved) // 2
        layers, weights = saved[: depth + 1], saved[depth + 1 :]
        activation: Activation = ctx.activation  # type: ignore[attr-defined]
        needed: bool = ctx.needs_input_grad[0]  # type: ignore[attr-defined]
        of_x, found = pull(gradient, layers, weights, activation, [None] * (2 * depth), needed)
        return (of_x, None, *found)
