"""What several learners of one run exchange: gradients, sums, decisions. One learner alone exchanges nothing."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from accel.algorithms.optimizers import Optimiser


class GradientExchange:
    """Joins the learners of a run; each calls the same methods in the same order, or the others wait for it.

    This one, the identity, is for one learner.

    Attributes:
        learner: this learner's number, of ``learners``; number 0 publishes and records.
        broken: whether the device may have stepped on part of a sum, when another learner was lost: then nothing that
            is there is worth a checkpoint.

    Every method raises TransportError when another learner is gone or silent.
    """

    learner = 0
    learners = 1
    broken = False

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over learners, in place; the same bits on every learner."""

    def count(self, steps: float) -> float:
        """The sum of the learners' valid steps, by which each divides its losses."""
        return sum(theirs for (theirs,) in self.gather([steps]))

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """Every learner's numbers, by learner; all give equally many."""
        return [list(numbers)]

    def share(self, content: bytes | None, learner: int = 0) -> bytes:
        """The content that this one of the learners gives, on all of them."""
        return content or b""

    def step(self, optimizer: Optimiser) -> None:
        """Make the step that the parameters' gradients ask for, where the parameters are kept."""
        optimizer.step()
