"""The base of actor-critics: forward pass, corrected targets, the three terms of the loss, statistics."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from accel.algorithms import losses
from accel.algorithms.base import GradientAlgorithm, Phase, Update
from accel.algorithms.corrections import CORRECTIONS, OffPolicyBatch, by_retrace, centre_and_weight
from accel.algorithms.distributions import Scores
from accel.config import TrainConfig
from accel.config.algorithms import ActorCriticConfig
from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError
from accel.experience.batch import Batch
from accel.experience.stores.base import Sample
from accel.experience.transfer import to_device
from accel.networks import PolicyNetwork, build_from_config
from accel.networks.policy import Critic, NetworkOutput
from accel.networks.towers import Pull


@dataclass(frozen=True)
class Targets:
    """The correction's results for the loss, without gradient. All of one shape, [T, B] for a batch.

    Attributes:
        values: the critic's targets. advantages: of the policy gradient, times the importance weight where asked for.
        proximal_log_prob: log-probabilities under the policy that the batch was corrected with.
        log_rhos: log π − log μ at that moment. predictions: the critic's values then.
    """

    values: Tensor
    advantages: Tensor
    proximal_log_prob: Tensor
    log_rhos: Tensor
    predictions: Tensor


class ActorCritic(GradientAlgorithm):
    """A base: network with policy and critic, and a correction.

    Args:
        config, spec, device: as for ``GradientAlgorithm``.
        options: the algorithm's own. corrector: of ``CORRECTIONS``, makes the targets.
        network, networks: as for ``GradientAlgorithm``; None: the one that the run's options ask for.
    Raises:
        ConfigError: the network does not suit the environment or the correction.
    """

    def __init__(
        self,
        config: TrainConfig,
        spec: EnvSpec,
        device: torch.device,
        options: ActorCriticConfig,
        corrector: str,
        *,
        network: PolicyNetwork | None = None,
        networks: torch.nn.Module | None = None,
    ) -> None:
        self._correction = CORRECTIONS[corrector]
        if network is None:
            critic: Critic = "action-value" if self._correction is by_retrace else "value"
            network = build_from_config(config.policy, spec, critic=critic, seed=config.run.seed)
        super().__init__(config, spec, device, network, networks)
        self.options = options
        if network.state_shapes and spec.autoreset == "same_step":
            raise ConfigError(
                f"network '{config.policy.network}' is recurrent, and {config.environment.env} resets within a step, "
                "where the value of an episode's final observation would need a recurrent state that is gone: use a "
                "network without +lstm or +gru"
            )

    def inputs(self, sample: Sample) -> tuple[Batch, Tensor, Tensor, Tensor | None]:
        """What a step on a sample reads: the batch, rewards [T, B], weights [T, B], every valid row's share of a mean
        over all learners' batches, and ``final_values``."""
        batch = cast(Batch, sample.batch)
        weights = batch.valid / max(self.exchange.count(sample.valid_steps), 1.0)
        if sample.weights is not None:
            weights = weights * sample.weights
            weights = weights / weights.sum().clamp_min(1e-8)
        read = replace(batch, final_observations=None, on_host={})
        return read, cast(Tensor, sample.rewards), weights, self.final_values(batch)

    def targets(
        self,
        batch: Batch,
        rewards: Tensor,
        output: NetworkOutput,
        log_prob: Tensor,
        weights: Tensor,
        final_values: Tensor | None,
        *,
        weigh: bool = True,
    ) -> Targets:
        """Corrected targets.

        Args:
            batch, rewards, weights, final_values: of ``inputs``.
            output: the critic's network on the batch. log_prob: [T, B] of its actions under the policy to correct to.
            weigh: whether advantages are multiplied by the clipped importance weight.
        """
        log_rhos = log_prob - batch.behaviour_log_prob
        values = state_values(output)
        predictions = self.predictions(output, batch)
        corrected = self._correction(
            self.options,
            OffPolicyBatch(
                log_rhos=log_rhos,
                rewards=rewards,
                discounts=torch.where(batch.terminated, 0.0, self.options.discount),
                values=values[:-1],
                bootstrap_value=values[-1],
                predictions=predictions,
                valid=batch.valid,
                cut=None if final_values is None else batch.truncated,
                cut_values=final_values,
            ),
        )
        if not weigh:
            corrected = replace(corrected, weights=torch.ones_like(corrected.weights))
        advantages = centre_and_weight(
            corrected, weights, normalise=self.options.normalise_advantages, exchange=self.exchange
        )
        return Targets(corrected.targets, advantages, log_prob, log_rhos, predictions)

    def predictions(self, output: NetworkOutput, batch: Batch) -> Tensor:
        """[T, B] what the critic predicted."""
        if output.action_values is None:
            return state_values(output)[:-1]
        return output.action_values[:-1].float().gather(-1, batch.actions.unsqueeze(-1)).squeeze(-1)

    def differentiate(
        self, policy: tuple[Tensor, Tensor], scores: Scores, predictions: Tensor, targets: Targets, weights: Tensor
    ) -> tuple[losses.LossTerms, tuple[Tensor, Tensor]]:
        """policy + value_cost · value − entropy_cost · entropy.

        Args:
            policy: its loss, and the gradient in ``scores.log_prob``. scores: of the batch's actions.
            predictions: of the critic, for ``targets.values``. weights: of ``inputs``.
        Returns:
            The loss, and its gradients in the distribution's parameters and in the predictions.
        """
        loss, of_log_prob = policy
        value, of_predictions = losses.squared_error(predictions, targets.values, weights)
        entropy = losses.masked_mean(scores.entropy, weights)
        total = loss + self.options.value_cost * value - self.options.entropy_cost * entropy
        of_params = scores.pull(of_log_prob, weights * -self.options.entropy_cost)
        return losses.LossTerms(total, loss, value, entropy), (of_params, of_predictions.mul_(self.options.value_cost))

    def pull_batch(
        self, pull: Pull, output: NetworkOutput, batch: Batch, of_params: Tensor, of_predictions: Tensor
    ) -> None:
        """From gradients in the T rows of a loss to the parameters', by the way back of all T+1 rows."""
        if output.action_values is None:
            of_all = F.pad(of_predictions, (0, 0, 0, 1))
        else:
            of_all = torch.zeros_like(output.action_values, dtype=of_predictions.dtype)
            of_all[:-1].scatter_(-1, batch.actions.unsqueeze(-1), of_predictions.unsqueeze(-1))
        pull(F.pad(of_params, (0, 0, 0, 0, 0, 1)), of_all)

    @torch.no_grad()
    def final_values(self, batch: Batch) -> Tensor | None:
        """[T, B] values of the final observations where an episode was truncated, zero elsewhere; None where the
        environment resets in a step of its own. How many there are differs: this is no part of a recorded step."""
        if batch.final_observations is None:
            return None
        values = torch.zeros(batch.truncated.shape, device=self.device)
        rows = batch.rows("truncated")
        if len(rows):
            there = to_device(rows, self.device)
            chosen = batch.final_observations.flatten(0, 1)[there].unsqueeze(0)
            output = self.network(chosen, torch.zeros(1, len(rows), dtype=torch.bool), ())
            values.view(-1)[there] = state_values(output)[0]
        return values


BatchStep: TypeAlias = tuple[losses.LossTerms, Tensor, Targets, Tensor]
"""The loss, () the gradient's norm, the correction's targets, and () KL(π_batch ‖ π_θ), 0 where it is not known."""


class BatchActorCritic(ActorCritic):
    """A base: one step on each batch."""

    @torch.no_grad()
    def update(self, sample: Sample, progress: float, mark: Phase) -> Update:
        """See ``Algorithm.update``."""
        rate, inputs = self.begin(progress), self.inputs(sample)
        terms, norm, targets, kl = self.runner.run(self.descend, mark, *inputs)
        self.finish()
        return Update(partial(read_metrics, terms, norm, targets, inputs[2], kl, rate, self.options.clip_rho))

    @abstractmethod
    def descend(
        self, mark: Phase, batch: Batch, rewards: Tensor, weights: Tensor, final_values: Tensor | None
    ) -> BatchStep:
        """The step on a batch, to be run by ``runner``."""


def read_metrics(
    terms: losses.LossTerms,
    gradient_norm: Tensor,
    targets: Targets,
    weights: Tensor,
    kl_from_batch: Tensor,
    learning_rate: float,
    clip_rho: float | None,
    dropped_passes: float = 0.0,
) -> dict[str, float]:
    """Means over an update's valid steps by metric name; synchronises a CUDA device.

    Losses are in loss units, entropy and KL in nats; ``rho_mean`` is the untruncated π_θ/μ, ``rho_clipped`` the
    share of weights above clip_rho, ``behaviour_kl`` the sampled KL(μ ‖ π_θ). With several learners, losses and
    gradient are those of all, the rest is this one's. ``dropped_passes`` is there where a stop cut the update
    short: how many passes over its batch were left.
    """
    weights = weights / weights.sum().clamp_min(1e-8)  # of several learners each has a share
    rho = torch.exp(targets.log_rhos)
    clipped = (rho > (clip_rho or float("inf")) * 1.0001).float()
    error = targets.values - targets.predictions
    spread = targets.values - losses.masked_mean(targets.values, weights)
    variance = losses.masked_mean(spread.square(), weights).clamp_min(1e-8)
    return {
        "loss": float(terms.total),
        "policy_loss": float(terms.policy),
        "value_loss": float(terms.value),
        "entropy": float(terms.entropy),
        "gradient_norm": float(gradient_norm),
        "rho_mean": float(losses.masked_mean(rho, weights)),
        "rho_clipped": float(losses.masked_mean(clipped, weights)),
        "behaviour_kl": float(-losses.masked_mean(targets.log_rhos, weights)),
        "kl_from_batch": float(kl_from_batch),
        "explained_variance": float(1.0 - losses.masked_mean(error.square(), weights) / variance),
        "learning_rate": learning_rate,
        **({"dropped_passes": dropped_passes} if dropped_passes else {}),
    }


def state_values(output: NetworkOutput) -> Tensor:
    """[T, B] state values; with an action-value critic their expectation under the policy, V = E_π Q."""
    if output.values is not None:
        return output.values.float()
    return (torch.softmax(output.params.float(), -1) * cast(Tensor, output.action_values).float()).sum(-1)
