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
from accel.algorithms.actor_critic import ActorCritic, BatchStep, Statistics, step_inputs, unrolls_of
from accel.algorithms.base import Phase, Update
from accel.algorithms.corrections import CORRECTIONS
from accel.config import TrainConfig
from accel.config.algorithms import A2cConfig, A3cConfig, ImpalaConfig
from accel.envs.spaces import EnvSpec
from accel.experience.batch import Batch
from accel.experience.stores.base import Sample


class Impala(ActorCritic):
    """Args: as for ``ActorCritic``; the options say which correction."""

    def __init__(
        self, config: TrainConfig, spec: EnvSpec, device: torch.device, options: ImpalaConfig | A2cConfig | A3cConfig
    ) -> None:
        super().__init__(config, spec, device, options, CORRECTIONS[options.corrector](options))

    @torch.no_grad()
    def update(self, sample: Sample, progress: float, mark: Phase) -> Update:
        """See ``Algorithm.update``."""
        batch, rewards = unrolls_of(sample)
        rate = self.begin(progress)
        weights = self.mean_weights(batch, sample.valid_steps)
        inputs = step_inputs(batch), rewards, weights, self.final_values(batch)
        terms, norm, targets, _ = self.runner.run(self.descend, mark, *inputs)
        self.finish()
        kl = torch.zeros((), device=self.device)
        return Statistics(terms, norm, targets, weights, kl, rate, self.options.clip_rho).update()

    def descend(
        self, mark: Phase, batch: Batch, rewards: Tensor, weights: Tensor, final_values: Tensor | None
    ) -> BatchStep:
        """The step on a batch, to be run by ``runner``."""
        output, pull = self.forward_and_back(batch)
        scores = self.distribution(output.params[:-1].float(), None).scores(batch.actions)
        mark("forward")
        targets = self.targets(batch, rewards, output, scores.log_prob, weights, final_values)
        mark("correct")
        policy = losses.policy_gradient(scores.log_prob, targets.advantages, weights)
        terms, gradients = self.differentiate(policy, scores, targets.predictions, targets, weights)
        norm = self.step(*terms, pull=partial(self.pull_batch, pull, output, batch, *gradients), last=False)
        mark("backward")
        return BatchStep(terms, norm, targets)
