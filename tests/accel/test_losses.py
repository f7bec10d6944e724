"""Losses against their formulas, and what weights of zero leave out."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from accel.algorithms.losses import clipped_surrogate, masked_mean, policy_gradient, squared_error

VALID = torch.tensor([[True, False], [True, True], [False, True]])
WEIGHTS = VALID / VALID.sum()


def rows(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).view(3, 2)


def test_a_mean_leaves_junk_out_of_sum_and_denominator() -> None:
    assert masked_mean(rows(1, 1e9, 2, 3, 1e9, 6), WEIGHTS).item() == pytest.approx(3.0)


def test_policy_gradient_and_squared_error() -> None:
    log_prob, advantages = rows(-1, 9, -2, -3, 9, -4), rows(1, 9, -1, 2, 9, 0.5)
    assert policy_gradient(log_prob, advantages, WEIGHTS)[0].item() == pytest.approx(-(-1 + 2 - 6 - 2) / 4)
    assert squared_error(log_prob, advantages, WEIGHTS)[0].item() == pytest.approx(0.5 * (4 + 1 + 25 + 20.25) / 4)


@pytest.mark.parametrize("loss_of", [policy_gradient, squared_error])
def test_the_gradient_of_a_loss_is_that_of_its_differences(loss_of: Callable[..., tuple[Tensor, Tensor]]) -> None:
    log_prob, other = rows(-1, 9, -2, -3, 9, -4), rows(1, 9, -1, 2, 9, 0.5)
    _, gradient = loss_of(log_prob, other, WEIGHTS)
    step = 1e-6
    for place in range(6):
        moved = [log_prob.clone() for _ in range(2)]
        for sign, values in zip((-1, 1), moved, strict=True):
            values.view(-1)[place] += sign * step
        below, above = (loss_of(values, other, WEIGHTS)[0].item() for values in moved)
        assert gradient.view(-1)[place].item() == pytest.approx((above - below) / (2 * step), abs=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "has_gradient"),
    [
        (1.1, 2.0, 2.2, True),
        (1.5, 2.0, 2.4, False),  # Far enough in the direction that pays.
        (1.5, -2.0, -3.0, True),  # Too far in the one that does not: it must come back.
        (0.5, 2.0, 1.0, True),
        (0.5, -2.0, -1.6, False),
    ],
)
def test_the_surrogate_is_clipped_on_the_side_that_pays(
    ratio: float, advantage: float, objective: float, has_gradient: bool
) -> None:
    proximal = torch.tensor([-1.3], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    loss, gradient = clipped_surrogate(proximal + math.log(ratio), proximal, advantage * one, one, clip_ratio=0.2)
    assert loss.item() == pytest.approx(-objective)
    assert gradient.item() == pytest.approx(-ratio * advantage if has_gradient else 0.0)


@pytest.mark.parametrize("advantage", [3.0, -3.0])
@pytest.mark.parametrize("log_ratio", [100.0, -200.0])
def test_an_extreme_ratio_leaves_the_gradient_finite(log_ratio: float, advantage: float) -> None:
    log_prob = torch.tensor([log_ratio, 0.0])
    weights = torch.full((2,), 0.5)
    loss, gradient = clipped_surrogate(
        log_prob, torch.zeros(2), torch.tensor([advantage, 1.0]), weights, clip_ratio=0.2
    )
    assert torch.isfinite(loss) and torch.isfinite(gradient).all()
    assert gradient[1].item() == pytest.approx(-0.5)


@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_a_ratio_beyond_all_numbers_has_a_finite_gradient(advantage: float) -> None:
    one = torch.ones(1)
    loss, gradient = clipped_surrogate(
        torch.tensor([0.0]), torch.tensor([-500.0]), advantage * one, one, clip_ratio=0.2
    )
    assert loss.isfinite() and gradient.isfinite().all()
