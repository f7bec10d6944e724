"""Dense networks differentiated by hand: of small layers on a CPU, autograd takes longer than the arithmetic.

A network's forward pass gives its outputs and a *pull*: a function from the gradient of a loss in these outputs to that
of the parameters, which it writes, or of the inputs. This is the one place where a pull is more than autograd's.
``PolicyNetwork.differentiator`` and ``ActionCritics.differentiator`` leave what ``Tower`` cannot run to autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from accel.config.parts import Activation
from accel.networks import dense
from accel.networks.heads import GaussianHead
from accel.networks.torsos import MLPTorso

BLOCK = 4096
"""Rows that pass through all layers together, so that a CPU's caches hold what one layer leaves to the next."""
Pull = Callable[[Tensor, Tensor | None], None]
"""Takes the gradients of a network's params and of its predictions (None where it has none), and writes those of all
parameters."""


class Towers:
    """A policy and, unless ``critic_head`` is None, a critic, each an mlp and its head.

    Args:
        value_torso: the critic's mlp; None: both heads are on one.
        policy_head: an ``nn.Linear`` or a ``GaussianHead``. critic_head: beside it.
    """

    def __init__(
        self, torso: MLPTorso, value_torso: MLPTorso | None, policy_head: nn.Module, critic_head: nn.Linear | None
    ) -> None:
        self._rows = torso.rows
        self._gaussian = policy_head if isinstance(policy_head, GaussianHead) else None
        heads = [cast(nn.Linear, policy_head if self._gaussian is None else self._gaussian.mean)]
        self._predicts = critic_head is not None
        if critic_head is not None and value_torso is None:
            heads.append(critic_head)
        self._towers = [_tower_of(torso, heads)]
        if critic_head is not None and value_torso is not None:
            self._towers.append(_tower_of(value_torso, [critic_head]))

    def run(self, x: Tensor) -> tuple[Tensor, Tensor | None, Pull]:
        """Params [N, P] and predictions [N, n] of x [N, F], which ``dense.suits``, and their way back."""
        blocks = [self._run_block(block) for block in torch.split(self._rows(x), BLOCK)]
        params, *rest = (
            parts[0] if len(parts) == 1 else torch.cat(parts)
            for parts in zip(*(outputs for outputs, _ in blocks), strict=True)
        )

        def pull(of_params: Tensor, of_predictions: Tensor | None) -> None:
            if self._gaussian is not None:
                of_params, of_log_std = of_params.chunk(2, dim=-1)
                torch.sum(of_log_std, 0, out=_slot(self._gaussian.log_std))
            of_outputs = [of_params] if of_predictions is None else [of_params, of_predictions]
            parts = zip(*(torch.split(gradient, BLOCK) for gradient in of_outputs), strict=True)
            for number, ((_, layers), gradients) in enumerate(zip(blocks, parts, strict=True)):
                shared = len(layers) == 1
                self._towers[0].pull(gradients if shared else gradients[:1], layers[0], add=number > 0)
                if not shared:
                    self._towers[1].pull(gradients[1:], layers[1], add=number > 0)

        predictions = rest[0] if self._predicts else None
        return params if self._gaussian is None else self._gaussian.join(params), predictions, pull

    def _run_block(self, x: Tensor) -> tuple[list[Tensor], list[list[Tensor]]]:
        """The heads' outputs of some rows, and each tower's layers."""
        layers = [tower.run(x) for tower in self._towers]
        return [output for tower, its in zip(self._towers, layers, strict=True) for output in tower.heads(its)], layers


@dataclass(frozen=True)
class Layer:
    """A linear layer's weight [out, in] and bias [out], and where their gradients are written; all without a graph."""

    weight: Tensor
    bias: Tensor
    of_weight: Tensor | None
    of_bias: Tensor | None


class Tower:
    """An mlp and the heads on it."""

    def __init__(self, layers: Sequence[Layer], heads: Sequence[Layer], activation: Activation) -> None:
        self._heads, self._activation = heads, activation
        self._weights, self._biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
        self._transposed = [weight.t() for weight in self._weights]
        self._into = [layer.of_weight for layer in layers] + [layer.of_bias for layer in layers]

    def run(self, x: Tensor) -> list[Tensor]:
        """x [N, F] and every layer's output."""
        return dense.run(x, self._transposed, self._biases, self._activation)

    def heads(self, layers: Sequence[Tensor]) -> list[Tensor]:
        """The heads' outputs."""
        return [torch.addmm(head.bias, layers[-1], head.weight.t()) for head in self._heads]

    def pull(self, gradients: Sequence[Tensor], layers: Sequence[Tensor], *, add: bool = False) -> None:
        """From the gradient of each head's output to those of the parameters; ``add``: to what is there."""
        for gradient, head in zip(gradients, self._heads, strict=True):
            dense.of_weight(gradient, layers[-1], head.of_weight, add)
            dense.of_bias(gradient, head.of_bias, add)
        of_features = self._of_features(gradients)
        dense.pull(of_features, layers, self._weights, self._activation, self._into, to_input=False, add=add)

    def pull_input(self, gradients: Sequence[Tensor], layers: Sequence[Tensor], first: int) -> Tensor:
        """From the gradient of each head's output to that of x's columns from ``first`` on; parameters' stay."""
        return dense.pull_input(self._of_features(gradients), layers, self._weights, self._activation, first)

    def _of_features(self, gradients: Sequence[Tensor]) -> Tensor:
        total = torch.mm(gradients[0], self._heads[0].weight)
        for gradient, head in zip(gradients[1:], self._heads[1:], strict=True):
            total.addmm_(gradient, head.weight)
        return total


def _tower_of(torso: MLPTorso, heads: Sequence[nn.Linear]) -> Tower:
    layers = [_layer(*parameters) for parameters in zip(torso.weights, torso.biases, strict=True)]
    return Tower(layers, [_layer(head.weight, head.bias) for head in heads], torso.activation)


def _layer(weight: Tensor, bias: Tensor) -> Layer:
    return Layer(weight.detach(), bias.detach(), _slot(weight), _slot(bias))


def _slot(parameter: Tensor) -> Tensor | None:
    """The tensor that holds a parameter's gradient; None of one that is not trained."""
    if parameter.grad is None and parameter.requires_grad:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
