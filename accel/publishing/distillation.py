"""What ``distill(64x2)`` needs from the pipeline: students made of our networks, and the divergence they minimise.

A student of size ``64x2`` is an mlp of 2 layers of 64 units; for images of at least 36 × 36 these follow Nature-CNN's
convolutions with 64/256 of its channels: 61 thousand parameters for frames of 84 × 84, where ``nature-cnn`` has 1.69
and ``impala-resnet`` 1.09 million. A student larger than its policy is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accel.algorithms.base import Algorithm
from accel.algorithms.distributions import ActionDistribution, make_distribution
from accel.config.parts import Activation
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.networks import PolicyNetwork, build_network
from accel.networks.initialisation import orthogonal
from accel.networks.policy import ActingModule, PolicyModule
from accel.networks.torsos import NatureCNN, Torso

Array = npt.NDArray[np.generic]
Distribution = Callable[[Tensor, Tensor | None], ActionDistribution]

# width at which a student has Nature-CNN's number of channels
_FULL_WIDTH = 256
_SMALLEST_IMAGE = 36


class StudentFactory:
    """Makes students of the size that the scheme names, behind the policy's own observation normaliser: an mlp, or, for
    images of at least 36 x 36, a ``StudentCNN``.

    Args:
        spec: the environment's layout.
        activation: of mlps.
        seed: of the initial weights.
    """

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
        if not spec.is_image or min(spec.observation_shape[1:]) < _SMALLEST_IMAGE:
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


class PolicyDivergence:
    """KL(policy ‖ acting policy) in nats, of the action distributions in the first outputs; a ``Divergence``.

    In this direction it keeps importance weights bounded: the acting policy must cover the policy's actions."""

    def __init__(self, action: ActionSpec, distribution: Distribution | None = None) -> None:
        """Args: action: the action space; distribution: what outputs describe, None for the space's own."""
        self._action = action
        self._distribution = distribution

    def __call__(self, student: Tensor, policy: Tensor) -> Tensor:
        """[N, P] each to the mean, a scalar."""
        return self._kl(policy, student).mean()

    def of_rows(self, reference: Array, acting: Array) -> Array:
        """[N, P] each to [N]."""
        return self._kl(*(torch.as_tensor(params, dtype=torch.float32) for params in (reference, acting))).numpy()

    def upper_bound(self, reference: Array, acting: Array) -> float:
        """An upper bound on every row's divergence, in nats, ten times faster; infinite for Gaussians and for an action
        rule's own distribution.

        With d the difference of logits, KL(softmax(p) ‖ softmax(p + d)) = log E_p[exp(d − E_p[d])] ≤ (max d − min d)²/8
        for each of the categorical actions, and the range of d is twice its greatest absolute value at most.

        Source:
            Hoeffding 1963, Probability inequalities for sums of bounded random variables, eq. 4.16.
        """
        if self._action.kind == "gaussian" or self._distribution is not None:
            return math.inf
        difference = np.asarray(acting, np.float32) - np.asarray(reference, np.float32)
        greatest = float(np.abs(difference).max())
        return 0.5 * greatest * greatest * len(self._action.sizes)

    def _kl(self, policy: Tensor, acting: Tensor) -> Tensor:
        if self._distribution is not None:
            return self._distribution(policy, None).kl(self._distribution(acting, None))
        return make_distribution(self._action, policy).kl(make_distribution(self._action, acting))


def make_divergence(algorithm: Algorithm) -> PolicyDivergence:
    """The divergence of an algorithm's policies, as its action rule sees them."""
    own = algorithm.rule.name != "stochastic"
    return PolicyDivergence(algorithm.network.spec.action, algorithm.distribution if own else None)
