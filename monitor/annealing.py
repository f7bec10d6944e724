"""Annealing: a schedule of compression levels over environment steps."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from accel.monitor.errors import TunerError


@dataclass(frozen=True)
class AnnealingSchedule:
    """Piecewise constant: each level holds from its step until the next one's.

    Attributes:
        levels: in order of time.
        env_steps: valid steps learned from at which each begins; the first is 0, and they increase.
    Raises:
        TunerError: no level, unequal numbers of levels and steps, a first step that is not 0, or steps that do not
            increase.
    """

    levels: tuple[str, ...]
    env_steps: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.levels or len(self.levels) != len(self.env_steps):
            raise TunerError(f"{len(self.levels)} levels and {len(self.env_steps)} steps: need one step for each level")
        if self.env_steps[0] != 0:
            raise TunerError(
                f"the first level, {self.levels[0]}, begins at step {self.env_steps[0]}; it must begin at 0"
            )
        for level, earlier, later in zip(self.levels[1:], self.env_steps, self.env_steps[1:], strict=False):
            if later <= earlier:
                raise TunerError(f"{level} begins at step {later}, not after the level before it, at {earlier}")

    def level_at(self, env_steps: int) -> str:
        """The level that holds after so many steps."""
        return self.levels[self._index(env_steps)]

    def began_at(self, env_steps: int) -> int:
        """The step at which the level that holds after so many steps began; a level may occur more than once."""
        return self.env_steps[self._index(env_steps)]

    def _index(self, env_steps: int) -> int:
        return bisect_right(self.env_steps, max(env_steps, 0)) - 1
