"""What the algorithms of continuous actions from replay share: a policy, critics of its actions, and their targets."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from accel.acting.rules import RuleSpec
from accel.algorithms.base import GradientAlgorithm
from accel.algorithms.distributions import ActionDistribution, make_distribution
from accel.config import TrainConfig
from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError
from accel.experience.transfer import to_device
from accel.networks import build_from_config
from accel.networks.critics import ActionCritics

_POLICY_GAIN = 0.01


class ContinuousControl(GradientAlgorithm):
    """A base: one optimiser trains policy and critics in one step, unless a class has another.

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


class DeterministicControl(ContinuousControl):
    """A base: the policy has no noise of its own, actors add a Gaussian's; beside it is a target policy.

    Args:
        noise: σ of the actors', in halves of the action range. The others: as for ``ContinuousControl``.
    Attributes:
        target: the target policy, which normalises observations as the policy, the critics and their targets do.
    """

    def __init__(
        self,
        config: TrainConfig,
        spec: EnvSpec,
        device: torch.device,
        noise: float,
        *,
        critics: int = 1,
        critic_outputs: int = 1,
    ) -> None:
        outputs = spec.action.action_size
        super().__init__(config, spec, device, outputs=outputs, critics=critics, critic_outputs=critic_outputs)
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        self.target.normaliser = self.network.normaliser
        self.networks.add_module("target", self.target)
        self.rule = RuleSpec("gaussian-noise", {"noise": noise})
        self._log_noise = math.log(noise)

    def distribution(self, outputs: Tensor, exploration: Tensor | None) -> ActionDistribution:
        """What actors sample: the policy's action in [-1, 1], with noise around it."""
        means = torch.tanh(outputs.float())
        return make_distribution(self.spec.action, torch.cat((means, torch.full_like(means, self._log_noise)), -1))


def bounded(outputs: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """tanh of a policy's outputs [N, n], and the way back from the gradient of the actions to that of the outputs.

    It fades only towards the bound that a descent step moves to: g (1 − a) where that raises the action, g (1 + a)
    where it lowers it. tanh's own, g (1 − a²), is nothing at either bound, and a policy that an early critic has driven
    there stays.
    """
    actions = torch.tanh(outputs)
    return actions, lambda gradient: gradient * torch.where(gradient < 0.0, 1.0 - actions, 1.0 + actions)
