"""An algorithm whose third update says that the second was not finite, as on a device that is read a turn late."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from accel.errors import DivergenceError
from tests.contracts import page_algorithm

REWARDS: list[Tensor] = []
"""Of every sample so far, as they were learned from."""


def factory(*arguments: Any, **options: Any) -> Any:
    """What ``--algorithm tests.accel.learning.late_report:factory`` calls."""
    algorithm = page_algorithm.factory(*arguments, **options)
    learn = algorithm.update
    REWARDS.clear()

    def update(sample: Any, progress: float, mark: Any) -> Any:
        REWARDS.append(sample.rewards.clone())
        if len(REWARDS) == 3:
            raise DivergenceError("loss nan, gradient norm nan", updates_ago=1)
        return learn(sample, progress, mark)

    algorithm.update = update
    return algorithm
