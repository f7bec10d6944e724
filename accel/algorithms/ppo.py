"""PPO: several passes of the clipped surrogate over each batch, on advantages corrected for the policy that acted.

    −E[min(r Â, clip(r, 1−ε, 1+ε) Â)],   r = π_θ/π_prox,   Â = min(ρ̄, π_prox/μ) A

π_prox is the learner's policy when the batch arrived: the trust region is around it, while the truncated weight in Â
corrects for the stale, compressed policy μ (decoupled PPO).

Source: Schulman et al. 2017, arXiv:1707.06347; Hilton et al. 2021, arXiv:2110.00641, for the two policies. Deviations:
the critic is not clipped; targets are those of the correction, made once a batch; its advantage on-policy is
δ_t + γ GAE_{t+1}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor

from accel.algorithms import losses
from accel.algorithms.actor_critic import (
    ActorCritic,
    Targets,
    read_metrics,
    state_values,
)
from accel.algorithms.base import Phase, Update
from accel.algorithms.gradient_exchange import GradientExchange
from accel.config import TrainConfig
from accel.config.algorithms import SurrogateConfig
from accel.envs.spaces import EnvSpec
from accel.experience.batch import Batch
from accel.experience.stores.base import Sample
from accel.experience.transfer import to_device
from accel.networks.policy import NetworkOutput


class Ppo(ActorCritic):
    """Args: as for ``ActorCritic``; the options say how many passes and minibatches."""

    options: SurrogateConfig

    def __init__(self, config: TrainConfig, spec: EnvSpec, device: torch.device, options: SurrogateConfig) -> None:
        super().__init__(config, spec, device, options, options.corrector)

    @torch.no_grad()
    def update(self, sample: Sample, progress: float, mark: Phase) -> Update:
        """See ``Algorithm.update``. For ``target_kl`` the host waits for each pass's KL."""
        options, rate = self.options, self.begin(progress)
        batch, inputs = cast(Batch, sample.batch), self.inputs(sample)
        params, targets = self.runner.run(self.correct, mark, *inputs)
        weights = inputs[2]
        whole = Minibatch(
            batch.observations[:-1], batch.first[:-1], batch.states, batch.actions, params, targets, weights
        )
        split: Callable[..., Shares] = split_environments
        if not self.network.state_shapes:
            split = partial(split_steps, rows=batch.rows("valid"), padded=self.runner.fixed_shapes)
        left: Tensor | float = options.passes
        is_cut = False
        for done in range(options.passes):
            kl = torch.zeros((), device=self.device)
            measures_kl = options.target_kl is not None or done == options.passes - 1
            for share, part in split(whole, options.minibatches, self.generator, self.exchange):
                terms, norm, part_kl = self.runner.run(self.descend, mark, part, measures_kl)
                left = left - share
                if part_kl is not None:
                    kl += share * part_kl
                # Learner 0's word counts for all: the same minibatch is everybody's last.
                if is_cut := any(stops for (stops,) in self.exchange.gather([float(bool(mark("backward")))])):
                    break
            if measures_kl:
                self.exchange.sum([kl])
            if is_cut or (options.target_kl is not None and float(kl) > options.target_kl):
                break
        self.finish()
        dropped = float(left) if is_cut else 0.0
        read = partial(read_metrics, terms, norm, targets, weights, kl, rate, options.clip_rho, dropped)
        return Update(read, self.priorities(batch, targets))

    def priorities(self, batch: Batch, targets: Targets) -> Tensor | None:
        """[B] of a batch's trajectories, for stores that rank them; None: they are all alike."""
        return None

    def correct(
        self, mark: Phase, batch: Batch, rewards: Tensor, weights: Tensor, final_values: Tensor | None
    ) -> tuple[Tensor, Targets]:
        """The distribution's parameters [T, B, P] and the targets, to be run by ``runner``."""
        with self.autocast():
            output: NetworkOutput = self.network(batch.observations, batch.first, batch.states)
        params = output.params[:-1].float()
        log_prob = self.distribution(params, None).log_prob(batch.actions)
        mark("forward")
        targets = self.targets(batch, rewards, output, log_prob, weights, final_values)
        mark("correct")
        return params, targets

    def descend(
        self, mark: Phase, part: Minibatch, measures_kl: bool
    ) -> tuple[losses.LossTerms, Tensor, Tensor | None]:
        """One step on a minibatch, to be run by ``runner``: the loss, the gradient's norm, and, if asked for, the
        minibatch's mean KL(π_prox ‖ π_θ), nats."""
        out, pull = self.differentiated(self.network, part.observations, part.first, part.states)
        mark("forward")
        distribution = self.distribution(out.params.float(), None)
        scores, of_part = distribution.scores(part.actions), part.targets
        policy = losses.clipped_surrogate(
            scores.log_prob, of_part.proximal_log_prob, of_part.advantages, part.weights, self.options.clip_ratio
        )
        terms, gradients = self.differentiate(policy, scores, state_values(out), of_part, part.weights)
        kl = None
        if measures_kl:
            kl = losses.masked_mean(self.distribution(part.params, None).kl(distribution), part.weights)
        return terms, self.step(*terms, pull=partial(pull, *gradients), last=False), kl


@dataclass(frozen=True)
class Minibatch:
    """One optimiser step's part of a batch, as [T', B', ...]; weights are of all learners together, and sum to one over
    its valid steps, on average."""

    observations: Tensor
    first: Tensor
    states: tuple[Tensor, ...]
    actions: Tensor
    params: Tensor
    targets: Targets
    weights: Tensor


Shares = Iterator[tuple[Tensor | float, Minibatch]]
"""Minibatches, and each one's share of the batch's valid steps, those of all learners together."""


def split_steps(
    whole: Minibatch,
    count: int,
    generator: torch.Generator,
    exchange: GradientExchange,
    *,
    rows: Tensor,
    padded: bool = False,
) -> Shares:
    """Shuffle the valid steps of all times and environments into ``count`` minibatches of one row each.

    Args:
        rows: of ``Batch.rows``, the valid ones.
        padded: all are as long as if every step were valid, filled up with steps whose weight is zero.
    """
    parts = _least(min(count, len(rows)), exchange)
    if parts == 0:
        yield from split_environments(whole, 1, generator, exchange)
        return
    order = rows[torch.randperm(len(rows), generator=generator)]
    lengths, counts = [len(part) for part in order.tensor_split(parts)], None
    if padded:
        order, counts = _pad(order, parts, -(-whole.weights.numel() // parts))
        counts = to_device(counts, whole.weights.device)
    order = to_device(order, whole.weights.device)
    observations = whole.observations.flatten(0, 1)
    first = torch.zeros(1, len(order), dtype=torch.bool)

    def pieces(values: Tensor) -> Sequence[Tensor]:
        return values.flatten(0, 1).index_select(0, order).unsqueeze(0).tensor_split(parts, dim=1)

    total = exchange.count(len(rows))
    # Observations are shuffled by the minibatch: as images they are large.
    shuffled = [whole.actions, whole.params, whole.weights, *vars(whole.targets).values()]
    places = order.tensor_split(parts)
    for number, (chosen, *part) in enumerate(zip(places, *map(pieces, shuffled), strict=True)):
        steps = exchange.count(lengths[number])
        acted, params_then, part_weights, *part_targets = part
        part_weights = part_weights * (total / steps)
        yield (
            steps / total,
            Minibatch(
                _rows(observations, chosen).unsqueeze(0),
                first[:, : len(chosen)],
                (),
                acted,
                params_then,
                Targets(*part_targets),
                part_weights if counts is None else part_weights * counts[number],
            ),
        )


def _pad(order: Tensor, parts: int, length: int) -> tuple[Tensor, Tensor]:
    """Every part of an order [N] at the same length, its first step repeated: [parts · length], and [parts, length]
    ones where a step counts, zeros where it is a repetition."""
    padded, counts = order.new_empty(parts, length), torch.zeros(parts, length)
    for number, part in enumerate(order.tensor_split(parts)):
        padded[number, : len(part)], padded[number, len(part) :] = part, part[0]
        counts[number, : len(part)] = 1.0
    return padded.flatten(), counts


def split_environments(whole: Minibatch, count: int, generator: torch.Generator, exchange: GradientExchange) -> Shares:
    """Shuffle environments, each with its whole unroll, so that a recurrent core runs through time."""
    order = torch.randperm(whole.weights.shape[1], generator=generator)
    total = whole.weights.sum()
    exchange.sum([total])
    for chosen in order.tensor_split(_least(min(count, len(order)), exchange)):
        there = to_device(chosen, whole.weights.device)
        weights = whole.weights[:, there]
        part_total = weights.sum()
        exchange.sum([part_total])
        yield (
            part_total / total.clamp_min(1e-8),
            Minibatch(
                whole.observations[:, there],
                whole.first[:, chosen],
                tuple(state[there] for state in whole.states),
                whole.actions[:, there],
                whole.params[:, there],
                Targets(*(values[:, there] for values in vars(whole.targets).values())),
                weights / part_total.clamp_min(1e-8),
            ),
        )


def _least(number: int, exchange: GradientExchange) -> int:
    """The least of the learners' numbers: all make equally many steps."""
    return int(min(theirs for (theirs,) in exchange.gather([number])))


def _rows(observations: Tensor, chosen: Tensor) -> Tensor:
    """[N, *obs] to the chosen rows, in the same memory order: index_select copies whole rows only where they lie in
    one piece, and is several times as fast as indexing."""
    if observations.dim() == 4 and observations.is_contiguous(memory_format=torch.channels_last):
        return observations.permute(0, 2, 3, 1).index_select(0, chosen).permute(0, 3, 1, 2)
    return observations.index_select(0, chosen)
