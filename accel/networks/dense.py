"""A dense stack as one differentiable call: what the learner runs on a CPU, where torch's own pieces are slow.

torch's vectorised tanh is 6 times slower than numpy's, and its gradient of a narrow layer's weight asks the matrix
library for the slow one of two orientations.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

Activation = Literal["tanh", "relu"]

_tanh_backward = torch.ops.aten.tanh_backward.default
_relu_backward = torch.ops.aten.threshold_backward.default


def dense(x: Tensor, weights: tuple[Tensor, ...], biases: tuple[Tensor, ...], activation: Activation) -> Tensor:
    """h_i = φ(h_{i−1} W_iᵀ + b_i) with h_0 = x; gradients reach x, weights and biases.

    Args:
        x: [N, F] float32 on the CPU.
        weights: one [out, in] each layer.
        biases: one [out] each layer.
        activation: φ.
    Returns:
        The last layer's [N, out].
    """
    output: Tensor = _Dense.apply(x, activation, *weights, *biases)  # type: ignore[no-untyped-call]
    return output


def suits(x: Tensor) -> bool:
    """Whether ``dense`` can take these inputs: float32 on the CPU, and no autocast that expects another dtype."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, activation: Activation, *parameters: Tensor) -> Tensor:
        depth = len(parameters) // 2
        layers = [x]
        for weight, bias in zip(parameters[:depth], parameters[depth:], strict=True):
            x = torch.addmm(bias, x, weight.t())
            if activation == "tanh":
                array = x.numpy()
                np.tanh(array, array)
            else:
                x.relu_()
            layers.append(x)
        ctx.save_for_backward(*layers, *parameters[:depth])
        ctx.activation = activation  # type: ignore[attr-defined]
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        saved: tuple[Tensor, ...] = ctx.saved_tensors  # type: ignore[attr-defined]
        depth = len(saved) // 2
        layers, weights = saved[: depth + 1], saved[depth + 1 :]
        tanh = ctx.activation == "tanh"  # type: ignore[attr-defined]
        weight_gradients: list[Tensor] = []
        bias_gradients: list[Tensor] = []
        for index in range(depth - 1, -1, -1):
            output, inputs = layers[index + 1], layers[index]
            gradient = _tanh_backward(gradient, output) if tanh else _relu_backward(gradient, output, 0)
            narrow = inputs.shape[1] < output.shape[1]
            weight_gradients.append((inputs.t() @ gradient).t() if narrow else gradient.t() @ inputs)
            bias_gradients.append(gradient.sum(0))
            if index > 0 or ctx.needs_input_grad[0]:  # type: ignore[attr-defined]
                gradient = gradient @ weights[index]
        to_inputs = gradient if ctx.needs_input_grad[0] else None  # type: ignore[attr-defined]
        return (to_inputs, None, *weight_gradients[::-1], *bias_gradients[::-1])
