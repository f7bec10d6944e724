"""The clipped surrogate against its formula; gradients of the losses: ``test_actor_critics``."""

from __future__ import annotations

import math

import pytest
import torch

from accel.algorithms.losses import clipped_surrogate


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
@pytest.mark.parametrize("log_ratio", [100.0, -200.0, 500.0])
def test_an_extreme_ratio_leaves_the_gradient_finite(log_ratio: float, advantage: float) -> None:
    log_prob = torch.tensor([log_ratio, 0.0])
    weights = torch.full((2,), 0.5)
    loss, gradient = clipped_surrogate(
        log_prob, torch.zeros(2), torch.tensor([advantage, 1.0]), weights, clip_ratio=0.2
    )
    assert torch.isfinite(loss) and torch.isfinite(gradient).all()
    assert gradient[1].item() == pytest.approx(-0.5)
