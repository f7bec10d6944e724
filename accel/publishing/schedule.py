"""When something that is done every so many updates is due."""

from __future__ import annotations


class Schedule:
    """Due every ``interval`` updates; before that after ``first``, 2 ``first`` more, 4 ``first`` more… updates.

    A young policy changes fast, so what is rare later is frequent at the start. Counts alone decide, never the clock: a
    run in one process stays deterministic.
    """

    def __init__(self, interval: int, first: int | None = None) -> None:
        self._interval = interval
        self._step = self._left = interval if first is None else min(first, interval)

    def tick(self) -> bool:
        """Count one update; whether it is due now."""
        self._left -= 1
        if self._left > 0:
            return False
        self._step = self._left = min(2 * self._step, self._interval)
        return True
