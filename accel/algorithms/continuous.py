"""What the algorithms of continuous actions from replay share: a policy, critics of its actions, and their targets."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from accel.algorithms.base import GradientAlgorithm
from accel.config import TrainConfig
from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError
from accel.experience.stores.base import Sample, Transitions
from accel.experience.transfer import to_device
from accel.networks import build_from_config
from accel.networks.critics import ActionCritics

_POLICY_GAIN = 0.01


class ContinuousControl(GradientAlgorithm):
    """A base: policy and critics are trained in one step of one optimiser.

    Actions are bounded, tanh-squashed and rescaled; critics see them in [-1, 1].

    Args:
        config, spec, device: as for ``GradientAlgorithm``.
        outputs: of the policy. critics, critic_outputs: of ``ActionCritics``. others: further trained parts, by name.
    Attributes:
        critics, target_critics: Q. rate, rate_by_target: them without a graph, see ``ActionCritics.differentiator``.
    Raises:
        ConfigError: actions are not continuous, or not bounded, or the network does not suit.
    """

    def __init__(
        self,
        config: TrainConfig,
        spec: EnvSpec,
        device: torch.device,
        *,
        outputs: int,
        critics: int = 1,
        critic_outputs: int = 1,
        others: Mapping[str, nn.Module] | None = None,
    ) -> None:
        name = config.algorithm.algorithm
        if spec.action.kind != "gaussian":
            raise ConfigError(
                f"{name} needs continuous (Box) actions, {config.environment.env} has {spec.action.kind} actions: "
                "use --algorithm dqn or ppo"
            )
        if not spec.action.squash:
            raise ConfigError(f"{name} squashes actions into their bounds: leave --no-squash-actions out")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.run.seed)
            self.critics = ActionCritics(config.policy, spec, critics=critics, outputs=critic_outputs)
            network = build_from_config(config.policy, spec, critic="none", outputs=outputs)
        with torch.no_grad():  # The first actions are around the middle, whatever the observation.
            for parameter in network.policy_head.parameters():
                parameter.mul_(_POLICY_GAIN)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        parts = {"online": network, "critics": self.critics, **(others or {})}
        networks = nn.ModuleDict({**parts, "target_critics": self.target_critics})
        super().__init__(config, spec, device, network, networks)
        self.output_size = outputs
        self.rate, self.rate_by_target = self.critics.differentiator(), self.target_critics.differentiator()

    def steps_of(self, sample: Sample) -> Transitions:
        """The transitions of a sample. Raises ConfigError: it has none."""
        if sample.transitions is None:
            raise ConfigError(f"{self.config.algorithm.algorithm} learns from transitions: use --store replay")
        return sample.transitions

    def noise(self, rows: int) -> Tensor:
        """[rows, k] standard normal, drawn on the host, so that seeds mean the same on every device and a recorded step
        draws nothing."""
        shape = rows, self.spec.action.action_size
        return to_device(torch.randn(shape, generator=self.generator), self.device)

    def normalised(self, observations: Tensor) -> Tensor:
        """[N, n] as critics see them."""
        normaliser = self.network.normaliser
        return observations if normaliser is None else normaliser(observations)

    def shares(self, rows: int, weights: Tensor | None) -> Tensor:
        """[N] what each row's loss counts for in the mean, under a sample's importance weights."""
        return torch.full((rows,), 1.0 / rows, device=self.device) if weights is None else weights / rows
