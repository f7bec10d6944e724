"""Torsos: observations [N, *shape] to features [N, F]."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from accel.config.parts import Activation
from accel.errors import ConfigError
from accel.networks import dense
from accel.networks.initialisation import SQRT2, orthogonal


class Torso(nn.Module):
    """Base of the built-in torsos; ``features`` is F, the size of the output."""

    features: int

    def train_features(self, observations: Tensor) -> Tensor:
        """What ``forward`` gives, the way that trains fastest; ``forward`` is made of modules, to export and prune."""
        features: Tensor = self(observations)
        return features


def train_features(torso: nn.Module, observations: Tensor | Mapping[str, Tensor]) -> Tensor:
    """A torso's features, the way that trains fastest; the user's own has one way only."""
    features: Tensor = torso(observations) if not isinstance(torso, Torso) else torso.train_features(observations)  # type: ignore[arg-type]
    return features


class MLPTorso(Torso):
    """Layers of such widths, an activation behind each; observations of any shape are flattened."""

    def __init__(self, shape: tuple[int, ...], widths: tuple[int, ...], activation: Activation) -> None:
        super().__init__()
        self._inputs = math.prod(shape)
        self._flatten = len(shape) != 1
        self.activation = activation
        sizes = [self._inputs, *widths]
        self.layers = nn.ModuleList(orthogonal(nn.Linear(a, b)) for a, b in pairwise(sizes))
        self.features = widths[-1]

    def forward(self, observations: Tensor) -> Tensor:
        """[N, *shape] float to [N, widths[-1]]."""
        x = self.rows(observations)
        for layer in self.layers:
            x = dense.FUNCTIONS[self.activation](layer(x))
        return x

    def train_features(self, observations: Tensor) -> Tensor:
        """``forward`` in one call where it runs on a CPU."""
        x = self.rows(observations)
        if dense.by_hand(self.activation) and dense.suits(x):
            return dense.dense(x, self.weights, self.biases, self.activation)
        return self.forward(x)

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """[out, in] of each layer."""
        return tuple(cast(Tensor, layer.weight) for layer in self.layers)

    @property
    def biases(self) -> tuple[Tensor, ...]:
        """[out] of each layer."""
        return tuple(cast(Tensor, layer.bias) for layer in self.layers)

    def rows(self, observations: Tensor) -> Tensor:
        """[N, *shape] to [N, F]."""
        return observations.reshape(-1, self._inputs) if self._flatten else observations


class NatureCNN(Torso):
    """Three convolutions and a layer of 512 units, ReLU (Mnih et al. 2015); ``multiple`` scales the channels."""

    def __init__(self, shape: tuple[int, ...], multiple: float) -> None:
        super().__init__()
        channels, height, width = shape
        self.convolutions = nn.ModuleList()
        for out, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            out = _scaled(out, multiple)
            self.convolutions.append(orthogonal(nn.Conv2d(channels, out, kernel, stride)))
            channels, height, width = out, (height - kernel) // stride + 1, (width - kernel) // stride + 1
            if min(height, width) < 1:
                raise ConfigError(
                    f"nature-cnn needs images of at least 36 x 36, not {shape[1]} x {shape[2]}: use impala-resnet"
                )
        self.features = 512
        self.hidden = orthogonal(nn.Linear(channels * height * width, self.features))

    def forward(self, images: Tensor) -> Tensor:
        """[N, C, H, W] float to [N, 512]."""
        x = images
        for convolution in self.convolutions:
            x = F.relu(convolution(x))
        return F.relu(self.hidden(x.flatten(1)))


class ImpalaResNet(Torso):
    """Three stages of convolution, pooling and two residual blocks, then 256 units (Espeholt et al. 2018, fig. 3).

    ``multiple`` scales the channels (16, 32, 32). Deviation: the second convolution of a residual block starts scaled
    by 1/√(number of blocks), so that the variance of the features does not double from block to block.
    """

    def __init__(self, shape: tuple[int, ...], multiple: float) -> None:
        super().__init__()
        channels, height, width = shape
        self.stages = nn.ModuleList()
        for out in (16, 32, 32):
            out = _scaled(out, multiple)
            self.stages.append(_Stage(channels, out))
            channels, height, width = out, (height + 1) // 2, (width + 1) // 2
        self.features = 256
        self.hidden = orthogonal(nn.Linear(channels * height * width, self.features))

    def forward(self, images: Tensor) -> Tensor:
        """[N, C, H, W] float to [N, 256]."""
        x = images
        for stage in self.stages:
            x = stage(x)
        return F.relu(self.hidden(F.relu(x).flatten(1)))


class _Stage(nn.Module):
    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.convolution = orthogonal(nn.Conv2d(channels, out, 3, padding=1))
        self.blocks = nn.ModuleList(_ResidualBlock(out) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.convolution(x), kernel_size=3, stride=2, padding=1)
        for block in self.blocks:
            x = block(x)
        return x


class _ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = orthogonal(nn.Conv2d(channels, channels, 3, padding=1))
        self.second = orthogonal(nn.Conv2d(channels, channels, 3, padding=1), SQRT2 / math.sqrt(6.0))

    def forward(self, x: Tensor) -> Tensor:
        residual: Tensor = self.second(F.relu(self.first(F.relu(x))))
        return x + residual


def _scaled(channels: int, multiple: float) -> int:
    return max(1, round(channels * multiple))
