"""Episodes that were played from seeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Episodes:
    """Finished episodes in the order in which they were seeded: episode i of two calls has one seed.

    Attributes:
        returns: [n] undiscounted sums of the environment's own rewards.
        lengths: [n] steps.
        seconds: wall-clock time, environments included.
        env_steps: steps in all, those of environments that waited for others included.
        distinct: how many different games there are among them, told apart by return, length and last observation.
    """

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    seconds: float
    env_steps: int
    distinct: int

    @property
    def caveat(self) -> str | None:
        """What to say of games that repeat each other: their interval is narrower than chance would have it."""
        if self.distinct == len(self.returns):
            return None
        return (
            f"only {self.distinct} of {len(self.returns)} games differ, as policy and environment leave little to "
            "chance: intervals are too narrow; sample actions"
        )
