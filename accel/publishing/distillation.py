"""What ``distill(64x2)`` needs from the pipeline: students made of our networks.

A student of size ``64x2`` is an mlp of 2 layers of 64 units; for images of at least 36 × 36 these follow Nature-CNN's
convolutions with 64/256 of its channels: 61 thousand parameters for frames of 84 × 84, where ``nature-cnn`` has 1.69
and ``impala-resnet`` 1.09 million. A student larger than its policy is refused.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accel.config.parts import Activation
from accel.envs.spaces import EnvSpec
from accel.networks import PolicyNetwork, build_network
from accel.networks.initialisation import orthogonal
from accel.networks.policy import ActingModule, PolicyModule
from accel.networks.text import SMALLEST_NATURE_IMAGE
from accel.networks.torsos import NatureCNN, Torso

# width at which a student has Nature-CNN's number of channels
_FULL_WIDTH = 256


class StudentFactory:
    """Makes students of the size that the scheme names, behind the policy's own observation normaliser: an mlp, or, for
    images of at least 36 x 36, a ``StudentCNN``. ``activation`` is that of mlps."""

    def __init__(self, spec: EnvSpec, activation: Activation, seed: int) -> None:
        self._spec, self._activation, self._seed = spec, activation, seed

    def __call__(self, size: str, policy: nn.Module) -> nn.Module:
        """A student such as ``64x2`` on the policy's device."""
        student: ActingModule = self._network(size).acting_module().to(next(policy.parameters()).device)
        if isinstance(policy, PolicyModule):
            student.normaliser = policy.normaliser
        return student

    def _network(self, size: str) -> PolicyNetwork:
        spec, seed = self._spec, self._seed
        if not spec.is_image or min(spec.observation_shape[1:]) < SMALLEST_NATURE_IMAGE:
            return build_network(f"mlp:{size}", spec, activation=self._activation, seed=seed)
        width, depth = map(int, size.split("x"))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return PolicyNetwork(spec, StudentCNN(spec.observation_shape, width, depth), width, channels_last=True)


class StudentCNN(Torso):
    """Nature-CNN's three convolutions with ``width`` / 256 of its channels, then ``depth`` layers of ``width`` units,
    ReLU. An mlp's first layer would have a weight for every pixel and unit."""

    def __init__(self, shape: tuple[int, ...], width: int, depth: int) -> None:
        super().__init__()
        nature = NatureCNN(shape, width / _FULL_WIDTH)
        self.convolutions = nature.convolutions
        sizes = [nature.hidden.in_features, *[width] * depth]
        self.layers = nn.ModuleList(orthogonal(nn.Linear(a, b)) for a, b in pairwise(sizes))
        self.features = width

    def forward(self, images: Tensor) -> Tensor:
        """[N, C, H, W] float to [N, width]."""
        x = images
        for convolution in self.convolutions:
            x = F.relu(convolution(x))
        x = x.flatten(1)
        for layer in self.layers:
            x = F.relu(layer(x))
        return x
