"""Policy heads: features [N, F] to the parameters [N, P] of the action distribution."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from accel.envs.spaces import ActionSpec
from accel.networks.initialisation import orthogonal

_POLICY_GAIN = 0.01


class GaussianHead(nn.Module):
    """Means, and log standard deviations [k] that do not depend on the state."""

    def __init__(self, features: int, size: int, initial_log_std: float) -> None:
        super().__init__()
        self.mean = orthogonal(nn.Linear(features, size), _POLICY_GAIN)
        self.log_std = nn.Parameter(torch.full((size,), float(initial_log_std)))

    def forward(self, features: Tensor) -> Tensor:
        """[N, F] to [N, 2k]: means, then log standard deviations."""
        return self.join(self.mean(features))

    def join(self, mean: Tensor) -> Tensor:
        """[N, k] means to [N, 2k]."""
        return torch.cat((mean, self.log_std.expand_as(mean)), dim=-1)


def make_policy_head(action: ActionSpec, features: int, initial_log_std: float) -> nn.Module:
    """The head of an action space; it starts close to uniform, or to zero means."""
    if action.kind == "gaussian":
        return GaussianHead(features, action.sizes[0], initial_log_std)
    return orthogonal(nn.Linear(features, action.param_size), _POLICY_GAIN)


def value_head(features: int, outputs: int) -> nn.Linear:
    """A head of values: of states, of actions, or of both."""
    return orthogonal(nn.Linear(features, outputs), 1.0)


def in_single_precision(head: nn.Module, features: Tensor) -> Tensor:
    """[N, F] to a head's output, float32 whatever autocast asks for: probabilities are made of it."""
    device = features.device.type
    if not torch.is_autocast_enabled(device):
        output: Tensor = head(features)
        return output
    with torch.autocast(device, enabled=False):
        return in_single_precision(head, features.float())
