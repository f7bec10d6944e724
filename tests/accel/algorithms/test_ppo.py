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

LENGTH, ENVS = 5, 6
Split = Callable[..., Shares]


def make() -> tuple[Minibatch, torch.Tensor]:
    """A batch whose every number names its row, 100 t + b; and which of them are valid."""
    step = (100 * torch.arange(LENGTH)[:, None] + torch.arange(ENVS)).float()
    valid = torch.rand(LENGTH, ENVS, generator=torch.Generator().manual_seed(0)) > 0.3
    first, states = torch.zeros(LENGTH, ENVS, dtype=torch.bool), (torch.arange(ENVS)[:, None].float(),)
    targets = Targets(*(step + k / 8 for k in range(5)))
    whole = Minibatch(step[..., None], first, states, step.long(), step[..., None], targets, valid / valid.sum())
    return whole, valid


STEPS = partial(split_steps, rows=torch.nonzero(make()[1].reshape(-1)).squeeze(1))


def run(split: Split, count: int, seed: int = 0) -> tuple[list[float], list[Minibatch]]:
    """The names of the valid steps, and the minibatches."""
    whole, valid = make()
    found = list(split(whole, count, torch.Generator().manual_seed(seed), GradientExchange()))
    assert sum(float(share) for share, _ in found) == pytest.approx(1.0)
    return whole.params[valid].flatten().tolist(), [part for _, part in found]


@pytest.mark.parametrize("split", [STEPS, split_environments])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 50])
def test_each_valid_step_comes_once_with_what_belongs_to_it(split: Split, count: int) -> None:
    valid, parts = run(split, count)
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
    assert sorted(seen) == sorted(valid)
    assert len(parts) == min(count, len(valid) if split is STEPS else ENVS)


@pytest.mark.parametrize("split", [STEPS, split_environments])
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
    whole, _ = make()
    names = whole.observations.to(torch.uint8)[..., None, None].expand(-1, -1, 3, 4, 2).contiguous()
    for layout in (torch.contiguous_format, torch.channels_last):
        images = names.flatten(0, 1).contiguous(memory_format=layout).unflatten(0, names.shape[:2])
        cut = dataclasses.replace(whole, observations=images)
        for _, part in STEPS(cut, 3, torch.Generator().manual_seed(0), GradientExchange()):
            rows = part.observations[0]
            assert rows.is_contiguous(memory_format=layout)
            assert torch.equal(rows, part.actions[0].to(torch.uint8)[:, None, None, None].expand_as(rows))


@pytest.mark.parametrize("count", [1, 3, 4])
def test_padded_minibatches_have_one_length_and_the_same_steps_and_weights(count: int) -> None:
    valid, parts = run(STEPS, count)
    _, padded = run(partial(STEPS, padded=True), count)
    assert {part.weights.shape for part in padded} == {(1, -(-LENGTH * ENVS // count))}
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
        assert torch.isin(
            longer.observations, torch.tensor(valid)
        ).all()  # Steps that do not count are valid ones: no junk, no NaN.
