"""Networks that tell when the learner is in an update: the file that ``UPDATING`` names appears.

With a million passes over each batch, that update is the run's last.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor, nn

from accel.envs.spaces import EnvSpec

UPDATING = "TEST_UPDATING"
ENDLESS_UPDATE = ("--algorithm", "dppo", "--passes", "1000000", "--total-env-steps", "1000000000")
_CALLS = 20  # with gradients: more than are made before the first update


class Told(nn.Module):
    """A torso that counts its differentiated calls."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers
        self._calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """[N, width] to [N, features]."""
        self._calls += torch.is_grad_enabled()
        if self._calls == _CALLS:
            Path(os.environ[UPDATING]).touch()
        features: Tensor = self.layers(x)
        return features


def small(spec: EnvSpec) -> nn.Module:
    """16×1."""
    (size,) = spec.observation_shape
    return Told(nn.Sequential(nn.Linear(size, 16), nn.Tanh()))


def large(spec: EnvSpec) -> nn.Module:
    """2048×3: its checkpoint, with Adam's moments, has about 100 MB."""
    (size,) = spec.observation_shape
    layers = [nn.Linear(size, 2048), nn.Tanh(), nn.Linear(2048, 2048), nn.Tanh(), nn.Linear(2048, 2048), nn.Tanh()]
    return Told(nn.Sequential(*layers))
