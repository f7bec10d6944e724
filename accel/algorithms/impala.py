"""IMPALA: one policy-gradient step on each batch, corrected for the policy that acted.

    ∇θ: E[ρ̂_t Ã_t ∇ log π_θ(a_t|x_t)],   critic towards the corrected targets,   entropy bonus

Source: Espeholt et al. 2018, arXiv:1802.01561, section 4.2. Deviations: advantages are normalised (an option), the
critic's loss is halved, and Retrace or no correction may take V-trace's place.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from accel.algorithms import losses
from accel.algorithms.actor_critic import BatchActorCritic, BatchStep
from accel.algorithms.base import Phase
from accel.config import TrainConfig
from accel.config.algorithms import A2cConfig, A3cConfig, ImpalaConfig
from accel.envs.spaces import EnvSpec
from accel.experience.batch import Batch


class Impala(BatchActorCritic):
    """Args: as for ``ActorCritic``; the options say which correction."""

    def __init__(
        self, config: TrainConfig, spec: EnvSpec, device: torch.device, options: ImpalaConfig | A2cConfig | A3cConfig
    ) -> None:
        super().__init__(config, spec, device, options, options.corrector)

    def descend(
        self, mark: Phase, batch: Batch, rewards: Tensor, weights: Tensor, final_values: Tensor | None
    ) -> BatchStep:
        """See ``BatchActorCritic.descend``."""
        output, pull = self.differentiated(self.network, batch.observations, batch.first, batch.states)
        scores = self.distribution(output.params[:-1].float(), None).scores(batch.actions)
        mark("forward")
        targets = self.targets(batch, rewards, output, scores.log_prob, weights, final_values)
        mark("correct")
        policy = losses.policy_gradient(scores.log_prob, targets.advantages, weights)
        terms, gradients = self.differentiate(policy, scores, targets.predictions, targets, weights)
        norm = self.step(*terms, pull=partial(self.pull_batch, pull, output, batch, *gradients), last=False)
        mark("backward")
        return terms, norm, targets, torch.zeros((), device=self.device)
