"""Corrected targets, and how a batch is cut into minibatches for several passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from accel.experience.batch import Batch


@dataclass(frozen=True)
class Targets:
    """What the correction hands to the objective; nothing carries a gradient. All of one shape, [T, B] for a batch.

    Attributes:
        values: the critic's targets. advantages: of the policy gradient, importance weight included.
        proximal_log_prob: log-probabilities under the learner's policy when the batch arrived.
        log_rhos: log π − log μ at that moment. predictions: the critic's values then.
    """

    values: Tensor
    advantages: Tensor
    proximal_log_prob: Tensor
    log_rhos: Tensor
    predictions: Tensor

    def map(self, function: Callable[[Tensor], Tensor]) -> Targets:
        """The same selection of every field."""
        return Targets(*(function(getattr(self, field.name)) for field in fields(self)))


@dataclass(frozen=True)
class Minibatch:
    """One optimiser step's share of a batch, as [T', B', ...]; weights sum to one over its valid steps."""

    observations: Tensor
    first: Tensor
    states: tuple[Tensor, ...]
    actions: Tensor
    params: Tensor
    targets: Targets
    weights: Tensor


def split_steps(
    batch: Batch, targets: Targets, params: Tensor, weights: Tensor, count: int, generator: torch.Generator
) -> Iterator[Minibatch]:
    """Shuffle the valid steps of all times and environments into ``count`` minibatches of one row each."""
    rows = torch.nonzero(batch.valid.reshape(-1)).squeeze(1)
    order = rows[torch.randperm(len(rows), generator=generator).to(rows.device)]
    observations, actions = batch.observations[:-1].flatten(0, 1), batch.actions.flatten(0, 1)
    first = torch.zeros(1, len(rows), dtype=torch.bool, device=rows.device)
    for chosen in order.tensor_split(min(count, len(order))):

        def select(values: Tensor, chosen: Tensor = chosen) -> Tensor:
            return values.flatten(0, 1).index_select(0, chosen).unsqueeze(0)

        part = targets.map(select)
        yield Minibatch(
            _rows(observations, chosen).unsqueeze(0),
            first[:, : len(chosen)],
            (),
            actions.index_select(0, chosen).unsqueeze(0),
            select(params),
            part,
            torch.full_like(part.values, 1.0 / len(chosen)),
        )


def split_environments(
    batch: Batch, targets: Targets, params: Tensor, weights: Tensor, count: int, generator: torch.Generator
) -> Iterator[Minibatch]:
    """Shuffle environments, each with its whole unroll, so that a recurrent core runs through time."""
    order = torch.randperm(batch.valid.shape[1], generator=generator).to(batch.valid.device)
    for chosen in order.tensor_split(min(count, len(order))):
        part_weights = weights[:, chosen]

        def select(values: Tensor, chosen: Tensor = chosen) -> Tensor:
            return values[:, chosen]

        yield Minibatch(
            batch.observations[:-1, chosen],
            batch.first[:-1, chosen],
            tuple(state[chosen] for state in batch.states),
            batch.actions[:, chosen],
            params[:, chosen],
            targets.map(select),
            part_weights / part_weights.sum().clamp_min(1e-8),
        )


def _rows(observations: Tensor, chosen: Tensor) -> Tensor:
    """[N, *obs] to the chosen rows, in the same memory order: index_select copies whole rows only where they lie in
    one piece, and is several times as fast as indexing."""
    if observations.dim() == 4 and observations.is_contiguous(memory_format=torch.channels_last):
        return observations.permute(0, 2, 3, 1).index_select(0, chosen).permute(0, 3, 1, 2)
    return observations.index_select(0, chosen)
