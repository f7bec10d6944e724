"""The learner: batch → forward → correct → objective → optimiser step. One update at a time, no I/O."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from accel.algorithms import losses as objectives
from accel.algorithms.distributions import ActionDistribution, make_distribution
from accel.algorithms.minibatches import Targets, split_environments, split_steps
from accel.algorithms.optimizers import QuickAdam, QuickRMSprop
from accel.config import TrainConfig
from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError, DivergenceError
from accel.experience.batch import Batch
from accel.networks import NetworkOutput, build_network_from_config
from correctors import nstep, retrace, vtrace

Phase = Callable[[str], None]


@dataclass(frozen=True)
class UpdateStatistics:
    """The last update's tensors, on the device; ``read`` turns them into host values when they are wanted."""

    terms: objectives.LossTerms
    gradient_norm: Tensor
    targets: Targets
    weights: Tensor
    kl_from_batch: Tensor
    learning_rate: float
    clip_rho: float | None

    def read(self) -> dict[str, float]:
        """Means over valid steps by metric name; synchronises a CUDA device.

        Losses are in loss units, entropy and KL in nats; ``rho_mean`` is the untruncated π_θ/μ, ``rho_clipped`` the
        share of weights above clip_rho, ``behaviour_kl`` the sampled KL(μ ‖ π_θ).
        """
        weights, targets = self.weights, self.targets
        rho = torch.exp(targets.log_rhos)
        mean_rho = objectives.masked_mean(rho, weights)
        clipped = objectives.masked_mean((rho > (self.clip_rho or float("inf")) * 1.0001).float(), weights)
        error = targets.values - targets.predictions
        spread = targets.values - objectives.masked_mean(targets.values, weights)
        variance = objectives.masked_mean(spread.square(), weights).clamp_min(1e-8)
        unexplained = objectives.masked_mean(error.square(), weights) / variance
        return {
            "loss": float(self.terms.total.detach()),
            "policy_loss": float(self.terms.policy),
            "value_loss": float(self.terms.value),
            "entropy": float(self.terms.entropy),
            "gradient_norm": float(self.gradient_norm),
            "rho_mean": float(mean_rho),
            "rho_clipped": float(clipped),
            "behaviour_kl": float(-objectives.masked_mean(targets.log_rhos, weights)),
            "kl_from_batch": float(self.kl_from_batch),
            "explained_variance": float(1.0 - unexplained),
            "learning_rate": self.learning_rate,
        }


class Learner:
    """Trains one network from corrected off-policy batches.

    Args:
        config: the run's configuration, its precision chosen (``accel.learning.device``).
        spec: the environment's layout.
        device: where the network lives.
    """

    def __init__(self, config: TrainConfig, spec: EnvSpec, device: torch.device) -> None:
        self.config = config
        self.spec = spec
        self.device = device
        self.generator = torch.Generator().manual_seed(config.seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.network = build_network_from_config(config.to_json(), spec)
        self.network.to(device)
        self.parameters = [p for p in self.network.parameters() if p.requires_grad]
        self.optimizer = self._make_optimizer()
        self.env_steps = 0
        self.version = 0
        if self.network.state_shapes and spec.autoreset == "same_step":
            raise ConfigError(
                f"network '{config.network}' is recurrent, and {config.env} resets within a step, where the value of "
                "an episode's final observation would need a recurrent state that is gone: use a network without +lstm"
            )

    def update(self, batch: Batch, rewards: Tensor, valid_steps: int, mark: Phase) -> UpdateStatistics:
        """One batch: correct once, then ``passes`` × ``minibatches`` optimiser steps.

        Args:
            batch: the experience, on this learner's device.
            rewards: [T, B] after the run's reward transform.
            valid_steps: how many rows are valid; they are counted into ``env_steps``.
            mark: called with a phase's name when it ends: forward, correct, backward.
        Raises:
            DivergenceError: a gradient is NaN or infinite; the parameters are still those before the step.
        """
        self._schedule()
        if self.network.normaliser is not None:
            self.network.normaliser.update(batch.observations[:-1][batch.valid])
        weights = batch.valid / float(max(valid_steps, 1))
        if self.config.objective == "actor-critic":
            statistics = self._actor_critic(batch, rewards, weights, mark)
        else:
            statistics = self._clipped_surrogate(batch, rewards, weights, mark)
        self.env_steps += valid_steps
        self.version += 1
        return statistics

    def _actor_critic(self, batch: Batch, rewards: Tensor, weights: Tensor, mark: Phase) -> UpdateStatistics:
        with self._autocast():
            output = self.network(batch.observations, batch.first, batch.states)
        params = output.params[:-1].float()
        distribution = make_distribution(self.spec.action, params)
        log_prob = distribution.log_prob(batch.actions)
        mark("forward")
        with torch.no_grad():
            targets = self._correct(batch, rewards, output, params, log_prob)
        mark("correct")
        terms = self._terms(distribution, log_prob, targets, self._predictions(output, batch), weights)
        norm = self._step(terms.total)
        mark("backward")
        return self._statistics(terms, norm, targets, weights, torch.zeros((), device=self.device))

    def _clipped_surrogate(self, batch: Batch, rewards: Tensor, weights: Tensor, mark: Phase) -> UpdateStatistics:
        with torch.no_grad(), self._autocast():
            output = self.network(batch.observations, batch.first, batch.states)
        with torch.no_grad():
            params = output.params[:-1].float()
            log_prob = make_distribution(self.spec.action, params).log_prob(batch.actions)
            mark("forward")
            targets = self._correct(batch, rewards, output, params, log_prob)
            mark("correct")
        split = split_environments if self.network.state_shapes else split_steps
        for _ in range(self.config.passes):
            for part in split(batch, targets, params, weights, self.config.minibatches, self.generator):
                with self._autocast():
                    output = self.network(part.observations, part.first, part.states)
                distribution = make_distribution(self.spec.action, output.params.float())
                new_log_prob = distribution.log_prob(part.actions)
                mark("forward")
                terms = self._terms(distribution, new_log_prob, part.targets, _state_values(output), part.weights)
                norm = self._step(terms.total)
                mark("backward")
            with torch.no_grad():
                old = make_distribution(self.spec.action, part.params)
                kl = objectives.masked_mean(old.kl(distribution), part.weights)
            if self.config.target_kl is not None and float(kl) > self.config.target_kl:
                break
        return self._statistics(terms, norm, targets, weights, kl)

    def _correct(
        self, batch: Batch, rewards: Tensor, output: NetworkOutput, params: Tensor, log_prob: Tensor
    ) -> Targets:
        """Off-policy targets under the learner's policy; see the corrector's docstring for the recursion."""
        config = self.config
        log_rhos = log_prob.detach() - batch.behaviour_log_prob
        discounts = torch.where(batch.terminated, 0.0, config.discount)
        lambda_, valid = config.lambda_, batch.valid
        cut = cut_values = None
        if batch.final_observations is not None:
            cut, cut_values = batch.truncated, self._final_values(batch)
        values = _state_values(output).detach()
        if config.corrector == "retrace":
            q_taken = self._predictions(output, batch)
            traced = retrace(
                log_rhos, rewards, discounts, q_taken, values[:-1], values[-1], clip_c=config.clip_c,
                clip_pg_rho=config.clip_pg_rho, lambda_=lambda_, valid=valid, cut=cut, cut_values=cut_values,
            )  # fmt: skip
            return Targets(
                traced.q_targets, self._advantages(traced.pg_advantages, batch), log_prob, log_rhos, q_taken.detach()
            )
        if config.corrector == "vtrace":
            returns = vtrace(
                log_rhos, rewards, discounts, values[:-1], values[-1], clip_rho=config.clip_rho, clip_c=config.clip_c,
                clip_pg_rho=config.clip_pg_rho, lambda_=lambda_, valid=valid, cut=cut, cut_values=cut_values,
            )  # fmt: skip
            return Targets(returns.vs, self._advantages(returns.pg_advantages, batch), log_prob, log_rhos, values[:-1])
        plain = nstep(
            log_rhos, rewards, discounts, values[:-1], values[-1],
            lambda_=lambda_, valid=valid, cut=cut, cut_values=cut_values,
        )  # fmt: skip
        return Targets(plain.vs, self._advantages(plain.pg_advantages, batch), log_prob, log_rhos, values[:-1])

    def _advantages(self, advantages: Tensor, batch: Batch) -> Tensor:
        if not self.config.normalise_advantages:
            return advantages
        weights = batch.valid / batch.valid.sum().clamp_min(1)
        return objectives.normalise(advantages, weights)

    def _final_values(self, batch: Batch) -> Tensor:
        """[T, B] values of the final observations where an episode was truncated, zero elsewhere."""
        values = torch.zeros(batch.truncated.shape, device=self.device)
        rows = torch.nonzero(batch.truncated.reshape(-1)).squeeze(1)
        if len(rows) and batch.final_observations is not None:
            chosen = batch.final_observations.flatten(0, 1)[rows].unsqueeze(0)
            output = self.network(chosen, torch.zeros(1, len(rows), dtype=torch.bool, device=self.device), ())
            values.view(-1)[rows] = _state_values(output)[0]
        return values

    def _predictions(self, output: NetworkOutput, batch: Batch) -> Tensor:
        """[T, B] what the critic predicted, with its gradient."""
        if output.action_values is None:
            return _state_values(output)[:-1]
        return output.action_values[:-1].float().gather(-1, batch.actions.unsqueeze(-1)).squeeze(-1)

    def _terms(
        self, distribution: ActionDistribution, log_prob: Tensor, targets: Targets, predictions: Tensor, weights: Tensor
    ) -> objectives.LossTerms:
        config = self.config
        if config.objective == "actor-critic":
            policy = objectives.policy_gradient(log_prob, targets.advantages, weights)
        else:
            policy = objectives.clipped_surrogate(
                log_prob, targets.proximal_log_prob, targets.advantages, weights, config.clip_ratio
            )
        value = objectives.squared_error(predictions, targets.values, weights)
        entropy = objectives.masked_mean(distribution.entropy(), weights)
        total = policy + config.value_cost * value - config.entropy_cost * entropy
        return objectives.LossTerms(total, policy.detach(), value.detach(), entropy.detach())

    def _step(self, loss: Tensor) -> Tensor:
        """Backward and one optimiser step; returns the gradient's global norm. Raises DivergenceError, unstepped."""
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        if not (math.isfinite(float(norm)) and math.isfinite(float(loss.detach()))):
            raise DivergenceError(f"loss {float(loss.detach())}, gradient norm {float(norm)} at update {self.version}")
        limit = self.config.max_gradient_norm
        if limit is not None and float(norm) > limit:
            torch._foreach_mul_(gradients, limit / float(norm))
        self.optimizer.step()
        return norm

    def is_finite(self) -> bool:
        """Whether every parameter and buffer is a finite number."""
        return all(bool(torch.isfinite(tensor).all()) for tensor in self.network.state_dict().values())

    def _statistics(
        self, terms: objectives.LossTerms, norm: Tensor, targets: Targets, weights: Tensor, kl: Tensor
    ) -> UpdateStatistics:
        return UpdateStatistics(
            terms, norm, targets, weights, kl, self.optimizer.param_groups[0]["lr"], self.config.clip_rho
        )

    def _schedule(self) -> None:
        """Set the rate even where it is constant: a resumed run has its checkpoint's in the optimiser."""
        left = 1.0
        if self.config.learning_rate_schedule == "linear":
            left = max(1.0 - self.env_steps / self.config.total_env_steps, 0.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * left

    def _autocast(self) -> AbstractContextManager[object]:
        if self.config.mixed_precision != "bf16":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        config = self.config
        if config.optimizer == "rmsprop":
            return QuickRMSprop(
                self.parameters,
                config.learning_rate,
                alpha=config.rmsprop_decay,
                eps=config.optimizer_epsilon,
                foreach=True,
            )
        return QuickAdam(
            self.parameters,
            config.learning_rate,
            betas=(0.9, config.adam_beta2),
            eps=config.optimizer_epsilon,
            fused=True,
        )


def _state_values(output: NetworkOutput) -> Tensor:
    """[T, B] state values; with an action-value critic their expectation under the policy, V = E_π Q."""
    if output.values is not None:
        return output.values.float()
    if output.action_values is None:
        raise ConfigError("the network has neither state values nor action values: give it a critic head")
    return (torch.softmax(output.params.float(), -1) * output.action_values.float()).sum(-1)
