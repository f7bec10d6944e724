"""How batches are cut: every valid step once in each pass, nothing else, each step with what belongs to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import pytest
import torch

from accel.algorithms.actor_critic import Targets
from accel.algorithms.gradient_exchange import GradientExchange
from accel.algorithms.ppo import Minibatch, Shares, split_environments, split_steps
from accel.experience.batch import Batch

LENGTH, ENVS = 5, 6
Split = Callable[..., Shares]


def make(seed: int = 0) -> tuple[Batch, Targets, torch.Tensor, torch.Tensor]:
    """A batch whose every number names its row: 100 t + b."""
    names = (100 * torch.arange(LENGTH + 1)[:, None] + torch.arange(ENVS)).float()
    generator = torch.Generator().manual_seed(seed)
    valid = torch.rand(LENGTH, ENVS, generator=generator) > 0.3
    step = names[:-1]
    flags = torch.zeros(LENGTH, ENVS, dtype=torch.bool)
    batch = Batch(
        names[..., None].clone(), None, torch.zeros(LENGTH + 1, ENVS, dtype=torch.bool), valid, step.long(), step,
        flags, flags, step, step[..., None], (torch.arange(ENVS)[:, None].float(),),
    )  # fmt: skip
    return batch, Targets(*(step + k / 8 for k in range(5))), step[..., None], valid / valid.sum()


def run(split: Split, count: int, seed: int = 0) -> tuple[Batch, list[Minibatch]]:
    batch, targets, params, weights = make()
    found = list(split(batch, targets, params, weights, count, torch.Generator().manual_seed(seed), GradientExchange()))
    assert sum(float(share) for share, _ in found) == pytest.approx(1.0)
    return batch, [part for _, part in found]


@pytest.mark.parametrize("split", [split_steps, split_environments])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 50])
def test_each_valid_step_comes_once_with_what_belongs_to_it(split: Split, count: int) -> None:
    batch, parts = run(split, count)
    seen: list[float] = []
    for part in parts:
        assert part.weights.sum().item() == pytest.approx(1, abs=1e-6) or not (part.weights > 0).any()
        name = part.observations.squeeze(-1)
        chosen = part.weights > 0
        for other in (part.actions.float(), part.params.squeeze(-1), part.targets.values):
            assert torch.equal(other[chosen], name[chosen])
        assert torch.equal(part.targets.predictions[chosen], name[chosen] + 0.5)
        positive = part.weights[chosen]
        assert torch.allclose(positive, positive.mean().expand_as(positive))
        seen += name[chosen].tolist()
    valid = batch.rewards[batch.valid]
    assert sorted(seen) == sorted(valid.tolist())
    assert len(parts) == min(count, len(valid) if split is split_steps else ENVS)


@pytest.mark.parametrize("split", [split_steps, split_environments])
def test_the_generator_alone_decides_the_order(split: Split) -> None:
    def order(seed: int) -> list[torch.Tensor]:
        return [part.observations for part in run(split, 2, seed)[1]]

    first, again, other = order(1), order(1), order(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_environments_keep_their_time_and_their_state() -> None:
    _, parts = run(split_environments, 3)
    for part in parts:
        names = part.observations.squeeze(-1)
        assert names.shape == (LENGTH, 2)
        assert torch.equal(names // 100, torch.arange(LENGTH)[:, None].expand(LENGTH, 2).float())
        assert torch.equal(part.states[0].squeeze(1), names[0])


def test_images_keep_their_memory_order() -> None:
    batch, targets, params, weights = make()
    names = batch.observations.to(torch.uint8)[..., None, None].expand(-1, -1, 3, 4, 2).contiguous()
    for layout in (torch.contiguous_format, torch.channels_last):
        images = names.flatten(0, 1).contiguous(memory_format=layout).unflatten(0, names.shape[:2])
        cut = dataclasses.replace(batch, observations=images)
        for _, part in split_steps(
            cut, targets, params, weights, 3, torch.Generator().manual_seed(0), GradientExchange()
        ):
            rows = part.observations[0]
            assert rows.is_contiguous(memory_format=layout)
            assert torch.equal(rows, part.actions[0].to(torch.uint8)[:, None, None, None].expand_as(rows))


@pytest.mark.parametrize("count", [1, 3, 4])
def test_padded_minibatches_have_one_length_and_the_same_steps_and_weights(count: int) -> None:
    batch, parts = run(split_steps, count)
    _, padded = run(partial(split_steps, padded=True), count)
    assert {part.weights.shape for part in padded} == {(1, -(-LENGTH * ENVS // count))}
    valid = batch.rewards[batch.valid]
    for part, longer in zip(parts, padded, strict=True):
        length = part.weights.shape[1]
        assert length < longer.weights.shape[1]
        assert torch.equal(longer.weights[:, :length], part.weights) and not longer.weights[:, length:].any()
        for ours, theirs in zip(
            (part.observations, part.actions, part.params, part.targets.advantages),
            (longer.observations, longer.actions, longer.params, longer.targets.advantages),
            strict=True,
        ):
            assert torch.equal(theirs[:, :length], ours)
        assert torch.isin(longer.observations, valid).all()  # Steps that do not count are valid ones: no junk, no NaN.
