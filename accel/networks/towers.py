"""Dense networks differentiated by hand: of small layers on a CPU, autograd takes longer than the arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from accel.networks import dense
from accel.networks.heads import GaussianHead
from accel.networks.torsos import MLPTorso

Pull = Callable[[Tensor, Tensor], None]
"""Takes the gradients of a network's params and of its predictions, and writes those of all parameters."""


class Towers:
    """A policy and a critic, each an mlp and its head; without ``value_torso`` both heads are on one mlp.

    Args:
        policy_head: an ``nn.Linear`` or a ``GaussianHead``. critic_head: beside it.
    """

    def __init__(
        self, torso: MLPTorso, value_torso: MLPTorso | None, policy_head: nn.Module, critic_head: nn.Linear
    ) -> None:
        self._gaussian = policy_head if isinstance(policy_head, GaussianHead) else None
        linear = cast(nn.Linear, policy_head if self._gaussian is None else self._gaussian.mean)
        self._towers = [_Tower(torso, [linear, critic_head] if value_torso is None else [linear])]
        if value_torso is not None:
            self._towers.append(_Tower(value_torso, [critic_head]))

    def run(self, x: Tensor) -> tuple[Tensor, Tensor, Pull]:
        """Params [N, P] and predictions [N, n] of x [N, F], which ``dense.suits``, and their way back."""
        layers = [tower.run(x) for tower in self._towers]
        params, predictions = (
            output for tower, its in zip(self._towers, layers, strict=True) for output in tower.heads(its)
        )

        def pull(of_params: Tensor, of_predictions: Tensor) -> None:
            if self._gaussian is not None:
                of_params, of_log_std = of_params.chunk(2, dim=-1)
                torch.sum(of_log_std, 0, out=_slot(self._gaussian.log_std))
            if len(layers) == 1:
                self._towers[0].pull([of_params, of_predictions], layers[0])
            else:
                self._towers[0].pull([of_params], layers[0])
                self._towers[1].pull([of_predictions], layers[1])

        return params if self._gaussian is None else self._gaussian.join(params), predictions, pull


class _Tower:
    """An mlp and the heads on it."""

    def __init__(self, torso: MLPTorso, heads: Sequence[nn.Linear]) -> None:
        self._rows, self._activation = torso.rows, torso.activation
        self._weights, self._biases = torso.weights, torso.biases
        self._heads = [(head.weight, head.bias) for head in heads]
        self._into = [_slot(parameter) for parameter in (*self._weights, *self._biases)]
        self._of_heads = [(_slot(weight), _slot(bias)) for weight, bias in self._heads]

    def run(self, x: Tensor) -> list[Tensor]:
        """The layers' outputs."""
        return dense.run(self._rows(x), self._weights, self._biases, self._activation)

    def heads(self, layers: Sequence[Tensor]) -> list[Tensor]:
        """The heads' outputs."""
        return [torch.addmm(bias, layers[-1], weight.t()) for weight, bias in self._heads]

    def pull(self, gradients: Sequence[Tensor], layers: Sequence[Tensor]) -> None:
        """From the gradient of each output to those of the parameters."""
        total: Tensor | None = None
        for gradient, (weight, _), (of_weight, of_bias) in zip(gradients, self._heads, self._of_heads, strict=True):
            dense.of_weight(gradient, layers[-1], of_weight)
            torch.sum(gradient, 0, out=of_bias)
            total = torch.mm(gradient, weight) if total is None else total.addmm_(gradient, weight)
        dense.pull(cast(Tensor, total), layers, self._weights, self._activation, self._into, to_input=False)


def _slot(parameter: Tensor) -> Tensor:
    """The tensor that holds a parameter's gradient."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
