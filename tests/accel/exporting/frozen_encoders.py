"""Networks with a wide, frozen encoder, as a pre-trained one would be: dear to act with row by row, cheap to learn.

On a few cores the actors are then the bottleneck, which with networks that learn as a whole the learner is.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from accel.envs.spaces import EnvSpec

WIDTH = 2048


def frozen(spec: EnvSpec) -> nn.Module:
    """Two tanh layers of fixed random features, on which only the heads learn."""
    first = nn.Linear(math.prod(spec.observation_shape), WIDTH)
    second = nn.Linear(WIDTH, WIDTH)
    with torch.no_grad():
        nn.init.normal_(first.weight, std=1.0)
        nn.init.normal_(second.weight, std=1.0 / math.sqrt(WIDTH))
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh()).requires_grad_(False)
