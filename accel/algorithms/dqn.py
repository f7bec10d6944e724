"""DQN: double, duelling, n-step Q-learning from replay; actors are ε-greedy.

    y = R_t + γ^m Q_target(o_{t+m}, argmax_a Q(o_{t+m}, a)),   loss: ½ (Q(o_t, a_t) − y)²

of normalised rewards. With ``--corrector retrace``,

    y = q_t,   q_i = r_i + γ [Q_i+1(a*) + c_i+1 (q_i+1 − Q_i+1(a_i+1))],   c_i = λ [a_i = a*] min(1, 1/μ(a_i|o_i))

over n steps, Q_i the target network's Q_target(o_i, ·) and a* the bootstrap's action above: π is greedy, so that a
return ends before an action that π would not take. μ ≤ 1, so the recorded probability leaves c = λ where a_i = a*.

Q estimates a mean: the error is squared, and rewards are normalised for the size of the returns. Of an even chance of
24 Huber's loss, as Mnih et al. clip errors, rates all values from 1 to 23 alike, and a square after a rescaling h of
values gives h⁻¹(E[h(y)]) = 8, less than a certain 10. Importance weights correct a sample by priority in full, β = 1:
with Horgan et al.'s 0.4 great errors count for more, and a rare reward is rated too high.

The duelling head gives n advantages and the state's value, Q = V + A − mean A, the mean over allowed actions. Actors
run it as it is: the greatest advantage is the greatest Q-value, so a compressed policy has no arithmetic behind it.

Ape-X is the same from prioritised replay, with actors that differ in their ε and compute priorities; GORILA the same by
several learners, each with a replay of its own (``learning/asynchronous.py``).

Source: Mnih et al. 2015 (DQN); Nair et al. 2015, arXiv:1507.04296 (GORILA); van Hasselt et al. 2016, arXiv:1509.06461
(double); Wang et al. 2016, arXiv:1511.06581, eq. 9 (duelling); Hessel et al. 2018, arXiv:1710.02298 (n-step); Horgan
et al. 2018, arXiv:1803.00933 (Ape-X); Munos et al. 2016, arXiv:1606.02647 (Retrace). Deviations: the plain square, on
normalised rewards; β = 1; both streams of the duelling head are one linear layer on the shared torso; observations are
normalised, and the target network keeps the statistics that its weights were copied with; n-step returns are not
corrected for the policy that acted unless that is asked for.
"""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn

from accel.acting.rules import RuleSpec
from accel.algorithms import losses
from accel.algorithms.base import GradientAlgorithm, Phase, Update, ValueStep, value_metrics
from accel.algorithms.corrections import shifted
from accel.algorithms.distributions import ActionDistribution, epsilon_greedy
from accel.config import TrainConfig
from accel.config.actor import PriorityOptions
from accel.config.algorithms import DqnConfig, LadderConfig, QLearningConfig
from accel.correctors import retrace
from accel.envs.spaces import ALLOWED_ABOVE, MASKED, EnvSpec
from accel.errors import ConfigError
from accel.experience.stores.base import Sample, Steps, Transitions
from accel.networks import build_from_config

COMPARED_EPSILON = 0.05
"""At which policies are compared where no ε is anybody's final one."""


class Dqn(GradientAlgorithm):
    """Args: as for ``GradientAlgorithm``; the options say which parts of DQN are on."""

    explores = True
    recurrent = False

    def __init__(
        self, config: TrainConfig, spec: EnvSpec, device: torch.device, options: DqnConfig | LadderConfig
    ) -> None:
        if spec.action.kind != "categorical":
            raise ConfigError(
                f"{config.algorithm.algorithm} needs one discrete action, {config.environment.env} has "
                f"{spec.action.kind} actions: use --algorithm ppo"
            )
        self.actions = spec.action.sizes[0]
        outputs = self.actions + options.duelling
        network = build_from_config(config.policy, spec, critic="none", outputs=outputs, seed=config.run.seed)
        if self.recurrent and not network.state_shapes:
            raise ConfigError(
                f"{config.algorithm.algorithm} is recurrent, network '{config.policy.network}' is not: add "
                "+lstm:128, or use --algorithm apex"
            )
        if network.state_shapes and not self.recurrent:
            raise ConfigError(
                f"{config.algorithm.algorithm} learns from single steps, network '{config.policy.network}' is "
                "recurrent: leave +lstm, +gru or +transformer out"
            )
        self.target = copy.deepcopy(network).requires_grad_(False)
        networks = nn.ModuleDict({"online": network, "target": self.target})
        super().__init__(config, spec, device, network, networks)
        self.options: QLearningConfig = options
        self._lambda = options.trace.lambda_
        self.output_size = outputs
        explores: dict[str, object]
        if isinstance(options, LadderConfig):
            self._final_epsilon = COMPARED_EPSILON
            explores = {"initial_epsilon": options.base_epsilon, "exponent": options.epsilon_exponent}
        else:
            self._final_epsilon = options.final_epsilon
            explores = {
                "initial_epsilon": options.initial_epsilon,
                "exploration_env_steps": options.exploration_env_steps,
            }
        self.rule = RuleSpec(
            "epsilon-greedy", {"duelling": options.duelling, "final_epsilon": self._final_epsilon, **explores}
        )
        self.initial_priorities = PriorityOptions(
            options.n_step,
            options.discount,
            options.duelling,
            config.rewards.reward_scale,
            config.rewards.reward_clip,
            config.rewards.normalise_rewards,
        )

    def q_values(self, outputs: Tensor) -> Tensor:
        """[..., P] to Q [..., n]."""
        if not self.options.duelling:
            return outputs
        advantages, value = outputs[..., :-1], outputs[..., -1:]
        if not self.spec.action.masked:
            return value + advantages - advantages.mean(-1, keepdim=True)
        allowed = advantages > ALLOWED_ABOVE
        total = torch.where(allowed, advantages, 0.0).sum(-1, keepdim=True)
        mean = total / allowed.sum(-1, keepdim=True).clamp_min(1)
        return torch.where(allowed, value + advantages - mean, MASKED)

    def of_outputs(self, outputs: Tensor, of_q: Tensor) -> Tensor:
        """From the gradient of Q [..., n] of allowed actions to that of the outputs [..., P]."""
        if not self.options.duelling:
            return of_q
        total = of_q.sum(-1, keepdim=True)
        allowed = outputs[..., :-1] > ALLOWED_ABOVE
        return torch.cat((of_q - allowed * (total / allowed.sum(-1, keepdim=True).clamp_min(1)), total), -1)

    def distribution(self, outputs: Tensor, exploration: Tensor | None) -> ActionDistribution:
        """The ε-greedy policy; without ε, of the final one, as publication checks compare policies."""
        if exploration is None:
            exploration = torch.full(outputs.shape[:-1], self._final_epsilon, device=outputs.device)
        return epsilon_greedy(outputs[..., : self.actions].float(), exploration)

    def update(self, sample: Sample, progress: float, mark: Phase) -> Update:
        """See ``Algorithm.update``."""
        steps, rate = cast(Transitions, sample.transitions), self.begin(progress)
        self.refresh_target()
        learned = self.runner.run(self.descend, mark, steps, sample.steps, sample.weights)
        self.finish()
        return Update(lambda: value_metrics(learned, rate), learned.errors.abs())

    @torch.no_grad()
    def descend(self, mark: Phase, steps: Transitions, between: Steps | None, weights: Tensor | None) -> ValueStep:
        """The step on a sample, to be run by ``runner``."""
        targets = self._targets(steps) if between is None else self.retrace_targets(between)
        mark("correct")
        rows, actions = len(targets), steps.actions.unsqueeze(-1)
        outputs, pull = self.outputs(self.network, steps.observations)
        q = self.q_values(outputs)
        taken = q.gather(-1, actions).squeeze(-1)
        mark("forward")
        shares = torch.full_like(targets, 1.0 / rows) if weights is None else weights / rows
        loss, of_taken = losses.squared_error(taken, targets, shares)
        of_q = torch.zeros_like(q).scatter_(-1, actions, of_taken.unsqueeze(-1))
        norm = self.step(loss, pull=lambda: pull(self.of_outputs(outputs, of_q)), last=False)
        mark("backward")
        return ValueStep(loss, norm, taken, taken - targets, targets)

    def apply(self, gradient: Tensor, progress: float) -> None:
        """See ``GradientAlgorithm.apply``."""
        self.refresh_target()
        super().apply(gradient, progress)

    def refresh_target(self) -> None:
        """Before every update: copy the trained network where its turn has come."""
        self.target.follow(self.network, copy_weights=self.updates % self.options.target_interval_updates == 0)

    @torch.no_grad()
    def _targets(self, steps: Transitions) -> Tensor:
        """[N] y."""
        following, best = self._rated(steps.next_observations)
        return steps.returns + steps.discounts * following.gather(-1, best).squeeze(-1)

    @torch.no_grad()
    def retrace_targets(self, steps: Steps) -> Tensor:
        """[N] y by Retrace."""
        following, best = self._rated(steps.observations[1:].flatten(0, 1))
        shape = steps.rewards.shape
        values = following.gather(-1, best).squeeze(-1).view(shape)
        taken = following.gather(-1, steps.actions.roll(-1, 0).reshape(-1, 1)).squeeze(-1).view(shape)
        greedy = shifted(best.view(shape)) == steps.actions
        return retrace(
            torch.where(greedy, 0.0, -torch.inf) - steps.behaviour_log_prob, steps.rewards, steps.discounts,
            shifted(taken), shifted(values), values[-1], lambda_=self._lambda, valid=steps.valid,
        ).q_targets[0]  # fmt: skip

    def _rated(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """The target network's Q [N, n] and the actions [N, 1] to bootstrap from."""
        following = self.q_values(self.outputs(self.target, observations)[0])
        chooser = self.q_values(self.outputs(self.network, observations)[0]) if self.options.double else following
        return following, chooser.argmax(-1, keepdim=True)
