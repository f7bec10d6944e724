"""Dense networks differentiated by hand: of small layers on a CPU, autograd takes longer than the arithmetic.

A network's forward pass gives its outputs and a *pull*: a function from the gradient of a loss in these outputs to that
of the parameters, which it writes, or of the inputs. This is the one place where a network's is more than autograd's;
those of losses and actions are beside their formulas (``losses``, ``distributions``, an algorithm's ``descend``).
``PolicyNetwork.differentiator`` and ``ActionCritics.differentiator`` leave what ``Towers`` cannot run to autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from accel.config.parts import Activation
from accel.networks import compiled_towers, dense
from accel.networks.compiled_towers import CompiledTowers, CompiledWay, Layer, Tower
from accel.networks.heads import GaussianHead
from accel.networks.torsos import MLPTorso

Pull = Callable[[Tensor, Tensor | None], None]
"""Takes the gradients of a network's params and of its predictions (None where it has none), and writes those of all
parameters."""


class PolicyTowers:
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
        towers = [_tower_of(torso, heads)]
        if critic_head is not None and value_torso is not None:
            towers.append(_tower_of(value_torso, [critic_head]))
        self._towers = Towers(towers, torso.activation)

    def run(self, x: Tensor) -> tuple[Tensor, Tensor | None, Pull]:
        """Params [N, P] and predictions [N, n] of x [N, F], which ``dense.suits``, and their way back."""
        (params, *rest), way = self._towers.run(self._rows(x))

        def pull(of_params: Tensor, of_predictions: Tensor | None) -> None:
            if self._gaussian is not None:
                of_params, of_log_std = of_params.chunk(2, dim=-1)
                torch.sum(of_log_std, 0, out=slot_of(self._gaussian.log_std))
            way.pull([of_params] if of_predictions is None else [of_params, of_predictions])

        predictions = rest[0] if self._predicts else None
        return params if self._gaussian is None else self._gaussian.join(params), predictions, pull


class Towers:
    """Mlps on the same inputs, each with heads: compiled where that is quicker, else by torch's products.

    Args:
        activation: one that ``dense`` does by hand.
    """

    def __init__(self, towers: Sequence[Tower], activation: Activation) -> None:
        self._stacks = [_Stack(tower, activation) for tower in towers]
        self._compiled = CompiledTowers(towers, activation) if compiled_towers.suits(towers) else None

    def run(self, x: Tensor) -> tuple[list[Tensor], CompiledWay | _TorchWay]:
        """The outputs of all heads of x [N, F], and the way back."""
        if self._compiled is not None and compiled_towers.takes(self._compiled.widest, x.shape[0]):
            return self._compiled.run(x)
        passes = [(stack, stack.run(x)) for stack in self._stacks]
        outputs = [
            torch.addmm(head.bias, layers[-1], head.weight.t()) for stack, layers in passes for head in stack.heads
        ]
        return outputs, _TorchWay(passes)


class _Stack:
    """A tower as ``dense`` takes it."""

    def __init__(self, tower: Tower, activation: Activation) -> None:
        self.heads, self.activation = tower.heads, activation
        self.weights, self._biases = [layer.weight for layer in tower.layers], [layer.bias for layer in tower.layers]
        self._transposed = [weight.t() for weight in self.weights]
        self.into = [layer.of_weight for layer in tower.layers] + [layer.of_bias for layer in tower.layers]

    def run(self, x: Tensor) -> list[Tensor]:
        return dense.run(x, self._transposed, self._biases, self.activation)

    def of_features(self, gradients: Sequence[Tensor]) -> Tensor:
        total = torch.mm(gradients[0], self.heads[0].weight)
        for gradient, head in zip(gradients[1:], self.heads[1:], strict=True):
            total.addmm_(gradient, head.weight)
        return total


@dataclass(frozen=True)
class _TorchWay:
    """Each stack, and x and the outputs of its layers."""

    passes: Sequence[tuple[_Stack, list[Tensor]]]

    def pull(self, gradients: Sequence[Tensor]) -> None:
        for stack, layers, its in self._each(gradients):
            for gradient, head in zip(its, stack.heads, strict=True):
                dense.of_weight(gradient, layers[-1], head.of_weight)
                dense.of_bias(gradient, head.of_bias)
            dense.pull(stack.of_features(its), layers, stack.weights, stack.activation, stack.into, to_input=False)

    def pull_input(self, gradients: Sequence[Tensor], first: int) -> Tensor:
        parts = [
            dense.pull_input(stack.of_features(its), layers, stack.weights, stack.activation, first)
            for stack, layers, its in self._each(gradients)
        ]
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)

    def _each(self, gradients: Sequence[Tensor]) -> Iterator[tuple[_Stack, list[Tensor], Sequence[Tensor]]]:
        start = 0
        for stack, layers in self.passes:
            yield stack, layers, gradients[start : start + len(stack.heads)]
            start += len(stack.heads)


def _tower_of(torso: MLPTorso, heads: Sequence[nn.Linear]) -> Tower:
    layers = [_layer(*parameters) for parameters in zip(torso.weights, torso.biases, strict=True)]
    return Tower(layers, [_layer(head.weight, head.bias) for head in heads])


def _layer(weight: Tensor, bias: Tensor) -> Layer:
    return Layer(weight.detach(), bias.detach(), slot_of(weight), slot_of(bias))


def slot_of(parameter: Tensor) -> Tensor | None:
    """The tensor that holds a parameter's gradient; None of one that is not trained."""
    if not parameter.requires_grad:
        return None
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
