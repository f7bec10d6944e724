"""SAC: soft actor-critic, from replay: twin critics, a squashed Gaussian policy, a learnt temperature.

    y = R_t + γ^m (min_i Q̄_i(o', a') − α log π(a'|o')),   a' ~ π(·|o'),   m ≤ n steps
    critics ½ Σ_i E[(Q_i(o, a) − y)²],   policy E[α log π(ã|o) − min_i Q_i(o, ã)],   α: −log α E[log π(ã|o) + H̄]

With ``--corrector retrace`` and n > 1 the targets are Retrace's, V the bracket above and Q̄ the least target critic:

    y = q_t,   q_i = r_i + γ [V(o_i+1) + c_i+1 (q_i+1 − Q̄(o_i+1, a_i+1))],   c_i = λ min(1, π(a_i|o_i)/μ(a_i|o_i))

Actions are tanh of a Gaussian sample u, log π(tanh u) = log N(u) − Σ log(1 − tanh² u). What actors record is log N(u):
the Jacobian is the same for any policy and leaves every ratio alone.

Source: Haarnoja et al. 2018, arXiv:1812.05905, eq. 5 to 7, 17 and 18, algorithm 1; H̄ = −k by default. Deviations: the
temperature's gradient is that of log α; policy, critics and temperature step at once, with one optimiser, each at the
parameters before the step; with n > 1 the entropy of the steps between is left out, and returns are not corrected for
the policy that acted, but by Retrace (Munos et al. 2016, arXiv:1606.02647), which has both; no steps of random actions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from accel.acting.rules import LOG_STD_BOUNDS, RuleSpec
from accel.algorithms.base import Phase, Update, ValueStep, value_metrics
from accel.algorithms.continuous import ContinuousControl
from accel.algorithms.corrections import shifted
from accel.algorithms.distributions import ActionDistribution, SquashedSample, make_distribution, squashed_sample
from accel.config import TrainConfig
from accel.config.algorithms import SacConfig
from accel.correctors import retrace
from accel.envs.spaces import EnvSpec
from accel.experience.stores.base import Sample, Steps, Transitions


class SacStep(NamedTuple):
    """What one step gives, without a graph.

    Attributes:
        loss, policy_loss, temperature: (). critics: their part, and the norm of all gradients. log_prob: [N] of the
            policy's actions.
    """

    loss: Tensor
    policy_loss: Tensor
    temperature: Tensor
    critics: ValueStep
    log_prob: Tensor


class Sac(ContinuousControl):
    """Args: as for ``GradientAlgorithm``; the options say how the temperature and the targets are learned."""

    rule = RuleSpec("squashed-gaussian")

    def __init__(self, config: TrainConfig, spec: EnvSpec, device: torch.device, options: SacConfig) -> None:
        initial = torch.tensor(math.log(options.initial_temperature))
        temperature = nn.ParameterDict({"log": nn.Parameter(initial)})
        outputs, others = spec.action.param_size, {"temperature": temperature}
        super().__init__(config, spec, device, outputs=outputs, critics=2, others=others)
        self.options = options
        self._log_temperature = temperature["log"]
        self._target_entropy = -options.target_entropy * spec.action.action_size
        self._online: list[Tensor] = list(self.critics.parameters())
        self._targets: list[Tensor] = list(self.target_critics.parameters())

    def distribution(self, outputs: Tensor, exploration: Tensor | None) -> ActionDistribution:
        """A Gaussian before squashing, whose log deviation is kept within bounds."""
        mean, log_std = outputs.float().chunk(2, -1)
        return make_distribution(self.spec.action, torch.cat((mean, log_std.clamp(*LOG_STD_BOUNDS)), -1))

    def update(self, sample: Sample, progress: float, mark: Phase) -> Update:
        """See ``Algorithm.update``."""
        steps, rate = cast(Transitions, sample.transitions), self.begin(progress)
        between = sample.steps
        rows = len(steps.returns)
        noise = self.noise(rows if between is None else between.rewards.numel()), self.noise(rows)
        learned = self.runner.run(self.descend, mark, steps, between, sample.weights, noise)
        self.finish()

        def read() -> dict[str, float]:
            return value_metrics(learned.critics, rate) | {
                "loss": float(learned.loss),
                "policy_loss": float(learned.policy_loss),
                "entropy": float(-learned.log_prob.mean()),
                "temperature": float(learned.temperature),
            }

        return Update(read, learned.critics.errors.abs().mean(0))

    @torch.no_grad()
    def descend(
        self,
        mark: Phase,
        steps: Transitions,
        between: Steps | None,
        weights: Tensor | None,
        noise: tuple[Tensor, Tensor],
    ) -> SacStep:
        """The step on a sample, to be run by ``runner``; ``noise``: of the targets' actions, and of the policy's."""
        log_temperature, rows = self._log_temperature, len(steps.returns)
        temperature = log_temperature.detach().exp()
        if between is None:
            targets = self.soft_targets(steps, temperature, noise[0])
        else:
            targets = self.retrace_targets(between, temperature, noise[0])
        mark("correct")
        observations, shares = self.normalised(steps.observations), self.shares(rows, weights)
        with self.autocast():
            critics = self.rate(observations, torch.tanh(steps.actions))
        values = critics.values.squeeze(-1)
        errors = values - targets
        critic_loss = 0.5 * torch.dot(errors.square().sum(0), shares)
        policy, pull_policy = self.sample_actions(steps.observations, noise[1])
        with self.autocast():
            rated = self.rate(observations, policy.actions)
        least, which = rated.values.min(0, keepdim=True)
        policy_loss = (temperature * policy.log_prob - least.flatten()).mean()
        surplus = policy.log_prob.mean() + self._target_entropy
        loss = critic_loss + policy_loss - log_temperature.detach() * surplus
        mark("forward")

        def pull() -> None:
            critics.pull((errors * shares).unsqueeze(-1))
            of_values = torch.zeros_like(rated.values).scatter_(0, which, -1.0 / rows)
            pull_policy(policy.pull(rated.pull_actions(of_values), (temperature / rows).expand(rows)))
            cast(Tensor, log_temperature.grad).copy_(-surplus)

        norm = self.step(loss, pull=pull, last=False)
        torch._foreach_lerp_(self._targets, self._online, self.options.target_rate)
        mark("backward")
        step = ValueStep(critic_loss, norm, values, errors, targets)
        return SacStep(loss, policy_loss, temperature, step, policy.log_prob)

    @torch.no_grad()
    def soft_targets(self, steps: Transitions, temperature: Tensor, noise: Tensor) -> Tensor:
        """[N] y."""
        policy, _ = self.sample_actions(steps.next_observations, noise)
        with self.autocast():
            rated = self.rate_by_target(self.normalised(steps.next_observations), policy.actions).values.squeeze(-1)
        values: Tensor = rated.amin(0) - temperature * policy.log_prob
        return steps.returns + steps.discounts * values

    @torch.no_grad()
    def retrace_targets(self, steps: Steps, temperature: Tensor, noise: Tensor) -> Tensor:
        """[N] y by Retrace."""
        shape, following = steps.rewards.shape, steps.observations[1:].flatten(0, 1)
        acted = steps.actions.roll(-1, 0).flatten(0, 1)
        outputs, _ = self.outputs(self.network, following)
        policy = squashed_sample(outputs, noise, LOG_STD_BOUNDS)
        with self.autocast():
            observations = self.normalised(following)
            rated = self.rate_by_target(observations, policy.actions).values.squeeze(-1).amin(0)
            taken = self.rate_by_target(observations, torch.tanh(acted)).values.squeeze(-1).amin(0)
        values = (rated - temperature * policy.log_prob).view(shape)
        log_policy = self.distribution(outputs, None).log_prob(acted).view(shape)
        return retrace(
            shifted(log_policy) - steps.behaviour_log_prob, steps.rewards, steps.discounts,
            shifted(taken.view(shape)), shifted(values), values[-1], lambda_=self.options.lambda_,
            valid=steps.valid,
        ).q_targets[0]  # fmt: skip

    def sample_actions(self, observations: Tensor, noise: Tensor) -> tuple[SquashedSample, Callable[[Tensor], None]]:
        """The policy's actions at [N, n], made of noise [N, k]; and the way back from the gradient of its outputs."""
        outputs, pull = self.outputs(self.network, observations)
        return squashed_sample(outputs, noise, LOG_STD_BOUNDS), pull
