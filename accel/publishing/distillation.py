"""What ``distill(64x2)`` needs from the pipeline: students made of our networks, and the divergence they learn by."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from accel.config import TrainConfig
from accel.networks import PolicyNetwork, build_network
from accel.networks.policy import ActingModule
from accel.spaces import ActionSpec


class StudentFactory:
    """Makes students: an mlp of the size that the scheme names, behind the policy's own observation normaliser.

    Args:
        config: the run's, for the seed and the activation.
        network: whose policy the students follow.
    """

    def __init__(self, config: TrainConfig, network: PolicyNetwork) -> None:
        self._config = config
        self._spec = network.spec

    def __call__(self, size: str, policy: nn.Module) -> nn.Module:
        """A student such as ``64x2`` on the policy's device."""
        network = build_network(f"mlp:{size}", self._spec, activation=self._config.activation, seed=self._config.seed)
        student: ActingModule = network.acting_module().to(next(policy.parameters()).device)
        if isinstance(policy, ActingModule):
            student.normaliser = policy.normaliser
        return student


class PolicyDivergence:
    """Mean KL(policy ‖ student) in nats: a student must cover all that the policy does, for importance weights to
    stay bounded."""

    def __init__(self, action: ActionSpec) -> None:
        self._action = action

    def __call__(self, student_params: Tensor, policy_params: Tensor) -> Tensor:
        """[N, P] each to a scalar."""
        from accel.distributions import make_distribution

        policy = make_distribution(self._action, policy_params)
        return policy.kl(make_distribution(self._action, student_params)).mean()

    def of_arrays(self, policy_params: object, acting_params: object) -> float:
        """The same for numpy arrays, the policy's first."""
        policy, acting = (torch.as_tensor(params, dtype=torch.float32) for params in (policy_params, acting_params))
        return float(self(acting, policy))
