"""PPO: several passes of the clipped surrogate over each batch, on advantages corrected for the policy that acted.

    −E[min(r Â, clip(r, 1−ε, 1+ε) Â)],   r = π_θ/π_prox,   Â = min(ρ̄, π_prox/μ) A

π_prox is the learner's policy when the batch arrived: the trust region is around it, while the truncated weight in Â
corrects for the stale, compressed policy μ (decoupled PPO).

Source: Schulman et al. 2017, arXiv:1707.06347; Hilton et al. 2021, arXiv:2110.00641, for the two policies. Deviations:
the critic is not clipped; targets are those of the correction, made once a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial

import torch
from torch import Tensor

from accel.algorithms import losses
from accel.algorithms.actor_critic import ActorCritic, Statistics, Targets, state_values, unrolls_of
from accel.algorithms.base import Phase, Update
from accel.algorithms.corrections import CORRECTIONS
from accel.algorithms.distributions import ActionDistribution
from accel.algorithms.exchange import GradientExchange
from accel.config import TrainConfig
from accel.config.algorithms import SurrogateConfig
from accel.envs.spaces import EnvSpec
from accel.experience.batch import Batch
from accel.experience.stores.base import Sample


class Ppo(ActorCritic):
    """Args: as for ``ActorCritic``; the options say how many passes and minibatches."""

    options: SurrogateConfig

    def __init__(self, config: TrainConfig, spec: EnvSpec, device: torch.device, options: SurrogateConfig) -> None:
        super().__init__(config, spec, device, options, CORRECTIONS[options.corrector](options))

    def update(self, sample: Sample, progress: float, mark: Phase) -> Update:
        """See ``Algorithm.update``."""
        return self.learn(sample, progress, mark).update()

    @torch.no_grad()
    def learn(self, sample: Sample, progress: float, mark: Phase) -> Statistics:
        """One update, as ``update`` makes it; its tensors."""
        batch, rewards = unrolls_of(sample)
        options, rate = self.options, self.set_learning_rate(progress)
        weights = self.mean_weights(batch, sample.valid_steps)
        if sample.weights is not None:
            weights = weights * sample.weights
            weights = weights / weights.sum().clamp_min(1e-8)
        output = self.forward(batch)
        params = output.params[:-1].float()
        log_prob = self.distribution(params, None).log_prob(batch.actions)
        mark("forward")
        targets = self.targets(batch, rewards, output, log_prob, weights)
        mark("correct")
        differentiate = self.network.differentiator()
        split = split_environments if self.network.state_shapes else split_steps
        for done in range(options.passes):
            kl = torch.zeros((), device=self.device)
            measures_kl = options.target_kl is not None or done == options.passes - 1
            for part in split(batch, targets, params, weights, options.minibatches, self.generator, self.exchange):
                with self.autocast():
                    out, pull = differentiate(part.observations, part.first, part.states)
                mark("forward")
                distribution = self.distribution(out.params.float(), None)
                scores, of_part = distribution.scores(part.actions), part.targets
                policy = losses.clipped_surrogate(
                    scores.log_prob, of_part.proximal_log_prob, of_part.advantages, part.weights, options.clip_ratio
                )
                terms, gradients = self.differentiate(policy, scores, state_values(out), of_part, part.weights)
                norm = self.step(*terms, pull=partial(pull, *gradients), last=False)
                mark("backward")
                if measures_kl:
                    kl += part.share * self._kl_from_batch(part, distribution)
            if measures_kl:
                self.exchange.sum([kl])
            if options.target_kl is not None and float(kl) > options.target_kl:
                break
        self.check()
        return Statistics(terms, norm, targets, weights, kl, rate, options.clip_rho)

    def _kl_from_batch(self, part: Minibatch, distribution: ActionDistribution) -> Tensor:
        """Mean KL(π_prox ‖ π_θ) over a minibatch, nats."""
        return losses.masked_mean(self.distribution(part.params, None).kl(distribution), part.weights)


@dataclass(frozen=True)
class Minibatch:
    """One optimiser step's share of a batch, as [T', B', ...]; weights sum to one over its valid steps, on average.

    Attributes:
        share: of the batch's valid steps. Weights and shares are of all learners together.
    """

    observations: Tensor
    first: Tensor
    states: tuple[Tensor, ...]
    actions: Tensor
    params: Tensor
    targets: Targets
    weights: Tensor
    share: Tensor | float


def split_steps(
    batch: Batch,
    targets: Targets,
    params: Tensor,
    weights: Tensor,
    count: int,
    generator: torch.Generator,
    exchange: GradientExchange,
) -> Iterator[Minibatch]:
    """Shuffle the valid steps of all times and environments into ``count`` minibatches of one row each."""
    rows = torch.nonzero(batch.valid.reshape(-1)).squeeze(1)
    parts = _least(min(count, len(rows)), exchange)
    if parts == 0:
        yield from split_environments(batch, targets, params, weights, 1, generator, exchange)
        return
    order = rows[torch.randperm(len(rows), generator=generator).to(rows.device)]
    observations = batch.observations[:-1].flatten(0, 1)
    first = torch.zeros(1, len(rows), dtype=torch.bool, device=rows.device)

    def pieces(values: Tensor) -> Sequence[Tensor]:
        return values.flatten(0, 1).index_select(0, order).unsqueeze(0).tensor_split(parts, dim=1)

    total = exchange.count(len(order))
    # Observations are shuffled by the minibatch: as images they are large.
    shuffled = [batch.actions, params, weights, *(getattr(targets, field.name) for field in fields(targets))]
    for chosen, *part in zip(order.tensor_split(parts), *map(pieces, shuffled), strict=True):
        steps = exchange.count(len(chosen))
        acted, params_then, part_weights, *part_targets = part
        yield Minibatch(
            _rows(observations, chosen).unsqueeze(0),
            first[:, : len(chosen)],
            (),
            acted,
            params_then,
            Targets(*part_targets),
            part_weights * (total / steps),
            steps / total,
        )


def split_environments(
    batch: Batch,
    targets: Targets,
    params: Tensor,
    weights: Tensor,
    count: int,
    generator: torch.Generator,
    exchange: GradientExchange,
) -> Iterator[Minibatch]:
    """Shuffle environments, each with its whole unroll, so that a recurrent core runs through time."""
    order = torch.randperm(batch.valid.shape[1], generator=generator).to(batch.valid.device)
    total = weights.sum()
    exchange.sum([total])
    for chosen in order.tensor_split(_least(min(count, len(order)), exchange)):
        part_weights = weights[:, chosen]
        part_total = part_weights.sum()
        exchange.sum([part_total])

        def select(values: Tensor, chosen: Tensor = chosen) -> Tensor:
            return values[:, chosen]

        yield Minibatch(
            batch.observations[:-1, chosen],
            batch.first[:-1, chosen],
            tuple(state[chosen] for state in batch.states),
            batch.actions[:, chosen],
            params[:, chosen],
            _select(targets, select),
            part_weights / part_total.clamp_min(1e-8),
            part_total / total.clamp_min(1e-8),
        )


def _least(number: int, exchange: GradientExchange) -> int:
    """The least of the learners' numbers: all make equally many steps."""
    return int(min(theirs for (theirs,) in exchange.gather([number])))


def _select(targets: Targets, function: Callable[[Tensor], Tensor]) -> Targets:
    """The same selection of every field."""
    return Targets(*(function(getattr(targets, field.name)) for field in fields(targets)))


def _rows(observations: Tensor, chosen: Tensor) -> Tensor:
    """[N, *obs] to the chosen rows, in the same memory order: index_select copies whole rows only where they lie in
    one piece, and is several times as fast as indexing."""
    if observations.dim() == 4 and observations.is_contiguous(memory_format=torch.channels_last):
        return observations.permute(0, 2, 3, 1).index_select(0, chosen).permute(0, 3, 1, 2)
    return observations.index_select(0, chosen)
