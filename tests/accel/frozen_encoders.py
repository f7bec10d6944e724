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
    return _encoder(spec, outlier=0.0)


def frozen_with_outliers(spec: EnvSpec) -> nn.Module:
    """The same, but for one silent unit whose weights are so large that in 8 bits all others round to zero."""
    return _encoder(spec, outlier=1e3)


def _encoder(spec: EnvSpec, outlier: float) -> nn.Module:
    first = nn.Linear(math.prod(spec.observation_shape), WIDTH)
    second = nn.Linear(WIDTH, WIDTH)
    with torch.no_grad():
        nn.init.normal_(first.weight, std=1.0)
        nn.init.normal_(second.weight, std=1.0 / math.sqrt(WIDTH))
        if outlier:
            first.weight[0], first.bias[0], second.weight[:, 0] = 0.0, 0.0, outlier
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh()).requires_grad_(False)
