"""IMPACT: a clipped surrogate around a target network, on batches that a circular buffer hands out several times.

    −E[min(r A, clip(r, 1−ε, 1+ε) A)],   r = min(π_worker/π_target, ρ) · π_θ/π_worker = π_θ / max(π_target, β π_worker)

with ρ = 1/β. V-trace's targets are for π_target; the target network is replaced by the trained one every
``target_interval_updates`` updates. π_worker is the policy that acted, compressed and stale.

Source: Luo et al. 2020, arXiv:1912.00167, eq. 3 to 5 and algorithm 1. Deviations: values are the trained critic's;
the correction's clips are options; a batch is used whole at each of its K uses; advantages are normalised (an option).
"""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import Tensor, nn

from accel.algorithms import losses
from accel.algorithms.actor_critic import BatchActorCritic, BatchStep
from accel.algorithms.base import Phase
from accel.config import TrainConfig
from accel.config.algorithms import ImpactConfig
from accel.envs.spaces import EnvSpec
from accel.experience.batch import Batch
from accel.networks import build_from_config


class Impact(BatchActorCritic):
    """Args: as for ``ActorCritic``."""

    options: ImpactConfig

    def __init__(self, config: TrainConfig, spec: EnvSpec, device: torch.device, options: ImpactConfig) -> None:
        network = build_from_config(config.policy, spec, seed=config.run.seed)
        self.target = copy.deepcopy(network).requires_grad_(False)
        networks = nn.ModuleDict({"online": network, "target": self.target})
        super().__init__(config, spec, device, options, "vtrace", network=network, networks=networks)

    def begin(self, progress: float) -> float:
        """With the base's, the target network's turn."""
        rate = super().begin(progress)
        self.target.follow(self.network, copy_weights=self.updates % self.options.target_interval_updates == 0)
        return rate

    def descend(
        self, mark: Phase, batch: Batch, rewards: Tensor, weights: Tensor, final_values: Tensor | None
    ) -> BatchStep:
        """See ``BatchActorCritic.descend``."""
        options = self.options
        output, pull = self.differentiated(self.network, batch.observations, batch.first, batch.states)
        distribution = self.distribution(output.params[:-1].float(), None)
        scores = distribution.scores(batch.actions)
        with self.autocast():
            of_target = self.target(batch.observations, batch.first, batch.states).params[:-1].float()
        target_distribution = self.distribution(of_target, None)
        target_log_prob = target_distribution.log_prob(batch.actions)
        mark("forward")
        # r holds the clipped ratio of target to worker: advantages are not weighted a second time.
        targets = self.targets(batch, rewards, output, target_log_prob, weights, final_values, weigh=False)
        mark("correct")
        ratio = surrogate_log_ratio(
            scores.log_prob, target_log_prob, batch.behaviour_log_prob, options.clip_target_worker
        )
        policy = losses.clipped_surrogate(
            ratio, torch.zeros_like(ratio), targets.advantages, weights, options.clip_ratio
        )  # whose gradient in log r is the one in log π_θ
        terms, gradients = self.differentiate(policy, scores, targets.predictions, targets, weights)
        norm = self.step(*terms, pull=partial(self.pull_batch, pull, output, batch, *gradients), last=False)
        mark("backward")
        return terms, norm, targets, losses.masked_mean(target_distribution.kl(distribution), weights)


def surrogate_log_ratio(
    log_prob: Tensor, target_log_prob: Tensor, worker_log_prob: Tensor, clip_target_worker: float
) -> Tensor:
    """log r = log π_θ − log max(π_target, β π_worker), any shape, nats.

    As published: r = min(π_worker/π_target, ρ) · π_θ/π_worker, ρ = 1/β.
    """
    limit = float(torch.log(torch.tensor(clip_target_worker)))
    return torch.clamp(worker_log_prob - target_log_prob, max=limit) + log_prob - worker_log_prob
