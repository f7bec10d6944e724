"""A network of your own: a function from the environment's layout to a torch module.

    accel train --env CartPole-v1 --network own_network:residual --compressor int8 --total-env-steps 60000

with this folder on ``PYTHONPATH`` or as the working directory. Policy and value heads, the observation normaliser and,
with ``own_network:residual+gru:64``, a recurrent core are put around it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from accel.envs.spaces import EnvSpec

WIDTH = 64


class Block(nn.Module):
    """y = x + W₂ relu(W₁ x)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[N, width] to [N, width]."""
        return x + self.narrow(torch.relu(self.wide(x)))


def residual(spec: EnvSpec) -> nn.Module:
    """[N, *observation_shape] to features [N, 64]: what ``--network own_network:residual`` calls."""
    (size,) = spec.observation_shape
    return nn.Sequential(nn.Linear(size, WIDTH), Block(WIDTH), Block(WIDTH), nn.ReLU())
