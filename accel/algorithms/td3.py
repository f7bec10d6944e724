"""TD3: a deterministic policy, twin critics, smoothed target actions, a delayed policy, from replay.

    y = R_t + γ^m min_i Q̄_i(o', clip(tanh π̄(o') + clip(σ̃ ε, −c, c), −1, 1)),   m ≤ n steps
    critics ½ Σ_i E[(Q_i(o, a) − y)²],   every d-th update: policy −E[Q_1(o, tanh π(o))], targets by Polyak averaging
    actors a = tanh π(o) + σ ε

Source: Fujimoto et al. 2018, arXiv:1802.09477, algorithm 1. Deviations: the policy's gradient is that at the critics
before their step; tanh's derivative is that of ``bounded``; n steps are an option, whose returns are not corrected for
the policy that acted; no steps of random actions; observations are normalised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from accel.algorithms.base import Phase, Update, ValueStep, make_optimizer, value_metrics
from accel.algorithms.continuous import DeterministicControl, bounded
from accel.algorithms.state_tree import Tree
from accel.config import TrainConfig
from accel.config.algorithms import Td3Config
from accel.envs.spaces import EnvSpec
from accel.errors import CheckpointError
from accel.experience.stores.base import Sample, Transitions


class Td3(DeterministicControl):
    """Args: as for ``GradientAlgorithm``; the options give the noises, the delay and the targets' rate."""

    def __init__(self, config: TrainConfig, spec: EnvSpec, device: torch.device, options: Td3Config) -> None:
        super().__init__(config, spec, device, options.noise, critics=2)
        self.options = options
        # The policy's moments must not fade in the updates that leave it alone.
        policy, every = sum(p.numel() for p in self.network.parameters()), self.parameters.values.numel()
        self._policy_optimizer = make_optimizer(config.optimiser, self.parameters.part(0, policy))
        self.optimizer = make_optimizer(config.optimiser, self.parameters.part(policy, every))
        self._online: list[Tensor] = [*self.network.parameters(), *self.critics.parameters()]
        self._targets: list[Tensor] = [*self.target.parameters(), *self.target_critics.parameters()]

    def update(self, sample: Sample, progress: float, mark: Phase) -> Update:
        """See ``Algorithm.update``."""
        steps, rate = cast(Transitions, sample.transitions), self.begin(progress)
        self._policy_optimizer.learning_rate = self.optimizer.learning_rate
        self.target.follow(self.network, copy_weights=False)
        due = self.updates % self.options.policy_interval_updates == 0
        learned = self.runner.run(self.descend, mark, steps, sample.weights, self.noise(len(steps.returns)), due)
        self.finish()
        return Update(lambda: value_metrics(learned, rate), learned.errors.abs().mean(0))

    @torch.no_grad()
    def descend(self, mark: Phase, steps: Transitions, weights: Tensor | None, noise: Tensor, due: bool) -> ValueStep:
        """The step on a sample, to be run by ``runner``; ``noise``: of targets' actions; ``due``: the policy's too."""
        rows, targets = len(steps.returns), self._targets_of(steps, noise)
        mark("correct")
        observations, shares = self.normalised(steps.observations), self.shares(rows, weights)
        with self.autocast():
            critics = self.rate(observations, steps.actions.clamp(-1.0, 1.0))
        values = critics.values.squeeze(-1)
        errors = values - targets
        loss = 0.5 * torch.dot(errors.square().sum(0), shares)
        mark("forward")

        def pull() -> None:
            critics.pull((errors * shares).unsqueeze(-1))
            if due:
                outputs, pull_policy = self.outputs(self.network, steps.observations)
                actions, pull_bounded = bounded(outputs)
                with self.autocast():
                    rated = self.rate(observations, actions)
                of_values = torch.zeros_like(rated.values)
                of_values[0] = -1.0 / rows  # of −mean Q_1(o, tanh π(o))
                pull_policy(pull_bounded(rated.pull_actions(of_values)))

        norm = self.step(loss, pull=pull, last=False)
        if due:
            self._policy_optimizer.skip = self.optimizer.skip
            self._policy_optimizer.step()
            torch._foreach_lerp_(self._targets, self._online, self.options.target_rate)
        mark("backward")
        return ValueStep(loss, norm, values, errors, targets)

    def _targets_of(self, steps: Transitions, noise: Tensor) -> Tensor:
        """[N] y."""
        smoothing = (self.options.target_noise * noise).clamp(
            -self.options.target_noise_clip, self.options.target_noise_clip
        )
        actions = (torch.tanh(self.outputs(self.target, steps.next_observations)[0]) + smoothing).clamp(-1.0, 1.0)
        with self.autocast():
            rated = self.rate_by_target(self.normalised(steps.next_observations), actions).values.squeeze(-1)
        return steps.returns + steps.discounts * rated.amin(0)

    def save(self) -> dict[str, Tree]:
        """The base's, and the policy's optimiser."""
        return super().save() | {"policy_optimizer": self._policy_optimizer.save()}

    def load(self, state: Mapping[str, Tree]) -> None:
        """Inverse of ``save``. Raises CheckpointError."""
        super().load(state)
        if not isinstance(saved := state.get("policy_optimizer"), Mapping):
            raise CheckpointError("the checkpoint lacks TD3's optimiser of the policy: it is of another algorithm")
        self._policy_optimizer.load(cast(Mapping[str, Tree], saved))
