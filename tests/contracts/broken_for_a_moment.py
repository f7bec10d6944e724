"""The page's algorithm, whose policy is no number after every fourth update and sound again before the next."""

from __future__ import annotations

from typing import Any

import torch

from accel.algorithms.base import Phase, Update
from accel.experience.stores.base import Sample
from tests.contracts import page_algorithm


def factory(*arguments: Any) -> Any:
    """What ``--algorithm tests.contracts.broken_for_a_moment:factory`` calls."""
    algorithm = page_algorithm.factory(*arguments)
    update, updates = algorithm.update, 0
    weight = algorithm.network.policy_head.weight

    def breaking(sample: Sample, progress: float, mark: Phase) -> Update:
        nonlocal updates
        if updates and updates % 4 == 0:
            with torch.no_grad():
                weight.copy_(kept)
        done: Update = update(sample, progress, mark)
        updates += 1
        kept.copy_(weight.detach())
        if updates % 4 == 0:
            with torch.no_grad():
                weight[0, 0] = float("nan")
        return done

    kept = weight.detach().clone()
    algorithm.update = breaking
    return algorithm
