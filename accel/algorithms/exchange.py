"""What learners exchange in the middle of an update: gradients and counts. One learner alone exchanges nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class GradientExchange(Protocol):
    """Adds up over all learners; every learner calls the same methods in the same order."""

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over learners, in place."""
        ...

    def count(self, steps: float) -> float:
        """The sum of the learners' valid steps, by which each divides its losses."""
        ...


class LocalGradients:
    """The identity: one learner."""

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Leave them."""

    def count(self, steps: float) -> float:
        """The steps themselves."""
        return steps
