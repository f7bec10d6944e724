"""D4PG: a deterministic policy and a distributional critic, n-step, from replay.

    y = R_t + γ^m Z̄(o', tanh π̄(o')), projected onto the atoms,   critic −E[y · log Z(o, a)]
    policy −E[E Z(o, tanh π(o))],   actors a = tanh π(o) + σ ε

The derivative of tanh is replaced by that of Hausknecht & Stone 2016, arXiv:1511.04143 ("inverting gradients"), so that
an action at its bound is left again when the critic comes to prefer another: see ``bounded``.

Source: Barth-Maron et al. 2018, arXiv:1804.08617, algorithm 1; the projection is that of Bellemare et al. 2017,
arXiv:1707.06887, algorithm 1. Deviations: policy and critic step at once, with one optimiser, each at the parameters
before the step; rewards are normalised (an option), so that one range of atoms serves most environments; replay is
uniform by default; returns are not corrected for the policy that acted.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor

from accel.algorithms.base import Phase, Update
from accel.algorithms.continuous import DeterministicControl, bounded
from accel.config import TrainConfig
from accel.config.algorithms import D4pgConfig
from accel.envs.spaces import EnvSpec
from accel.experience.stores.base import Sample, Transitions


class D4pgStep(NamedTuple):
    """What one step gives, without a graph.

    Attributes:
        loss, critic_loss, gradient_norm: (). values: [N] of the policy's actions. errors: [N] the critic's cross
            entropies. targets: [N, atoms].
    """

    loss: Tensor
    critic_loss: Tensor
    gradient_norm: Tensor
    values: Tensor
    errors: Tensor
    targets: Tensor


class D4pg(DeterministicControl):
    """Args: as for ``GradientAlgorithm``; the options give the atoms, the noise and the targets' interval."""

    def __init__(self, config: TrainConfig, spec: EnvSpec, device: torch.device, options: D4pgConfig) -> None:
        super().__init__(config, spec, device, options.noise, critic_outputs=options.atoms)
        self.options = options
        self._atoms = torch.linspace(options.least_value, options.greatest_value, options.atoms, device=device)

    def update(self, sample: Sample, progress: float, mark: Phase) -> Update:
        """See ``Algorithm.update``."""
        steps, rate = cast(Transitions, sample.transitions), self.begin(progress)
        due = self.updates % self.options.target_interval_updates == 0
        self.target.follow(self.network, copy_weights=due)
        if due:
            self.target_critics.load_state_dict(self.critics.state_dict())
        learned = self.runner.run(self.descend, mark, steps, sample.weights)
        self.finish()

        def read() -> dict[str, float]:
            edges = (learned.targets[:, 0] + learned.targets[:, -1]).mean()
            return {
                "loss": float(learned.loss),
                "value_loss": float(learned.critic_loss),
                "policy_loss": float(-learned.values.mean()),
                "q_mean": float((learned.targets @ self._atoms).mean()),
                "edge_probability": float(edges),
                "gradient_norm": float(learned.gradient_norm),
                "learning_rate": rate,
            }

        return Update(read, learned.errors)

    @torch.no_grad()
    def descend(self, mark: Phase, steps: Transitions, weights: Tensor | None) -> D4pgStep:
        """The step on a sample, to be run by ``runner``."""
        rows, targets = len(steps.returns), self._target_distributions(steps)
        mark("correct")
        observations, shares = self.normalised(steps.observations), self.shares(rows, weights)
        with self.autocast():
            critic = self.rate(observations, steps.actions.clamp(-1.0, 1.0))
        log_probs = torch.log_softmax(critic.values[0], -1)
        errors = -(targets * log_probs).sum(-1)
        critic_loss = torch.dot(errors, shares)
        outputs, pull_policy = self.outputs(self.network, steps.observations)
        actions, pull_bounded = bounded(outputs)
        with self.autocast():
            rated = self.rate(observations, actions)
        probs = torch.softmax(rated.values[0], -1)
        values = probs @ self._atoms
        loss = critic_loss - values.mean()
        mark("forward")

        def pull() -> None:
            critic.pull(((log_probs.exp() - targets) * shares.unsqueeze(-1)).unsqueeze(0))
            of_logits = probs * (self._atoms - values.unsqueeze(-1)) / -rows
            pull_policy(pull_bounded(rated.pull_actions(of_logits.unsqueeze(0))))

        norm = self.step(loss, pull=pull, last=False)
        mark("backward")
        return D4pgStep(loss, critic_loss, norm, values, errors, targets)

    @torch.no_grad()
    def _target_distributions(self, steps: Transitions) -> Tensor:
        """[N, atoms] probabilities of y."""
        with self.autocast():
            actions = torch.tanh(self.outputs(self.target, steps.next_observations)[0])
            logits = self.rate_by_target(self.normalised(steps.next_observations), actions).values[0]
        values = steps.returns.unsqueeze(-1) + steps.discounts.unsqueeze(-1) * self._atoms
        return project(torch.softmax(logits, -1), values, self._atoms)


def project(probabilities: Tensor, values: Tensor, atoms: Tensor) -> Tensor:
    """A distribution over ``values`` as one over evenly spaced ``atoms``: each value's probability goes to its two
    neighbours by nearness; values outside go to the ends.

    Args:
        probabilities: [N, n]. values: [N, n]. atoms: [n], increasing.
    Returns:
        [N, n]; rows sum to what they did, and keep their mean where no value lies outside.
    """
    last = len(atoms) - 1
    places = (values - atoms[0]) * (last / (atoms[-1] - atoms[0]))
    places = places.clamp(0.0, float(last))
    lower = places.floor().clamp_max(last - 1)
    share = places - lower
    index = lower.nan_to_num(0.0).long()
    found = torch.zeros_like(probabilities).scatter_add_(1, index, probabilities * (1.0 - share))
    return found.scatter_add_(1, index + 1, probabilities * share)
