"""Critics of continuous actions: Q(o, a) as one dense stack each, several side by side in one batched product."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from accel.config.parts import Activation, NetworkConfig
from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError
from accel.networks import dense
from accel.networks.compiled_towers import Layer, Tower
from accel.networks.text import parse_network
from accel.networks.towers import Towers, slot_of


class Rating(NamedTuple):
    """What critics say of actions, without a graph, and the ways back from a loss in it; each is called once at most.

    Attributes:
        values: [E, N, outputs].
        pull: from their gradient to the parameters', which it writes.
        pull_actions: from their gradient to that of the actions [N, k]; the parameters' stay.
    """

    values: Tensor
    pull: Callable[[Tensor], None]
    pull_actions: Callable[[Tensor], Tensor]


Rate = Callable[[Tensor, Tensor], Rating]


class ActionCritics(nn.Module):
    """E mlps of the run's widths and activation, from [observation, action] to some outputs each.

    Raises:
        ConfigError: observations are images, or the network is no plain mlp.
    """

    def __init__(self, config: NetworkConfig, spec: EnvSpec, *, critics: int = 1, outputs: int = 1) -> None:
        super().__init__()
        text = parse_network(config.network)
        if text.torso != "mlp" or text.core is not None or spec.has_images:
            raise ConfigError(
                f"a critic of continuous actions needs a plain mlp on vectors, not network '{config.network}' on "
                f"observations of shape {spec.observation_shape}: use --network mlp:256x2, or --algorithm ppo"
            )
        features = spec.observation_shape[0] + spec.action.action_size
        self._name: Activation = config.activation
        self._activation = dense.FUNCTIONS[config.activation]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for before, after in pairwise([features, *map(int, text.sizes), outputs]):
            bound = before**-0.5
            self.weights.append(nn.Parameter(torch.empty(critics, before, after).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.empty(critics, 1, after).uniform_(-bound, bound)))

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """[N, n] normalised observations and [N, k] actions in [-1, 1] to [E, N, outputs], always float32."""
        joined = torch.cat((observations, actions), -1)
        x = joined.expand(len(self.weights[0]), *joined.shape)
        *hidden, (weight, bias) = zip(self.weights, self.biases, strict=True)
        for its_weight, its_bias in hidden:
            x = self._activation(torch.baddbmm(its_bias, x, its_weight))
        with torch.autocast(x.device.type, enabled=False):
            return torch.baddbmm(bias, x.float(), weight)

    def differentiator(self) -> Rate:
        """``forward`` without a graph, and its ways back: by hand where ``dense.suits``, else by autograd.

        Parameters and their gradients must stay where they are; the gradients must be zero before a ``pull``.
        """
        return partial(self._rate, self._make_towers() if dense.by_hand(self._name) else None)

    def _rate(self, towers: Towers | None, observations: Tensor, actions: Tensor) -> Rating:
        with torch.no_grad():
            joined = torch.cat((observations, actions), -1)
            if towers is None or not dense.suits(joined):
                return self._rate_by_autograd(observations, actions)
            values, way = towers.run(joined)

        def pull_actions(of_values: Tensor) -> Tensor:
            return way.pull_input(of_values.unbind(), observations.shape[1])

        return Rating(torch.stack(values), lambda of_values: way.pull(of_values.unbind()), pull_actions)

    def _rate_by_autograd(self, observations: Tensor, actions: Tensor) -> Rating:
        actions = actions.detach().requires_grad_()
        with torch.enable_grad():
            values = self(observations, actions)

        def pull(of_values: Tensor) -> None:
            torch.autograd.backward([values], [of_values], inputs=list(self.parameters()))

        def pull_actions(of_values: Tensor) -> Tensor:
            return torch.autograd.grad([values], [actions], [of_values])[0]

        return Rating(values.detach(), pull, pull_actions)

    def _make_towers(self) -> Towers:
        def layer(weight: Tensor, bias: Tensor, which: int) -> Layer:
            of_weight, of_bias = slot_of(weight), slot_of(bias)
            return Layer(
                weight.detach()[which].t(),
                bias.detach()[which, 0],
                None if of_weight is None else of_weight[which].t(),
                None if of_bias is None else of_bias[which, 0],
            )

        stacks = [
            [layer(weight, bias, which) for weight, bias in zip(self.weights, self.biases, strict=True)]
            for which in range(len(self.weights[0]))
        ]
        return Towers([Tower(layers[:-1], layers[-1:]) for layers in stacks], self._name)
