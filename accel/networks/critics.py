"""Critics of continuous actions: Q(o, a) as one dense stack each, several side by side in one batched product."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accel.config.parts import NetworkConfig
from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError
from accel.networks.text import parse_network


class ActionCritics(nn.Module):
    """E mlps of the run's width, depth and activation, from [observation, action] to some outputs each.

    Args:
        config: the run's network options. spec: the environment's layout.
        critics: E. outputs: of each.
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
        width, depth = (int(size) for size in text.sizes)
        features = spec.observation_shape[0] + spec.action.action_size
        self._activation = torch.tanh if config.activation == "tanh" else F.relu
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for before, after in pairwise([features, *[width] * depth, outputs]):
            bound = before**-0.5
            self.weights.append(nn.Parameter(torch.empty(critics, before, after).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.empty(critics, 1, after).uniform_(-bound, bound)))

    def forward(self, observations: Tensor, actions: Tensor, *, frozen: bool = False) -> Tensor:
        """[N, n] normalised observations and [N, k] actions in [-1, 1] to [E, N, outputs], float32 under autocast too.

        ``frozen``: no gradient reaches the critics' own parameters, only the actions.
        """
        joined = torch.cat((observations, actions), -1)
        x = joined.expand(len(self.weights[0]), *joined.shape)
        *hidden, (weight, bias) = (
            (weight.detach(), bias.detach()) if frozen else (weight, bias)
            for weight, bias in zip(self.weights, self.biases, strict=True)
        )
        for its_weight, its_bias in hidden:
            x = self._activation(torch.baddbmm(its_bias, x, its_weight))
        with torch.autocast(x.device.type, enabled=False):
            return torch.baddbmm(bias, x.float(), weight)
