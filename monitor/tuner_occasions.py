"""When something is done that is done ever more rarely."""

from __future__ import annotations


class Occasions:
    """The next occasion, each twice as far from the one before as that was; due at once before the first.

    Args:
        first: the first interval, in the clock's unit. greatest: what it grows to.
    """

    def __init__(self, first: float, greatest: float) -> None:
        self._first, self._greatest = first, greatest
        self._interval = first
        self._next_s = 0.0

    def due(self, time_s: float) -> bool:
        """Whether the next one has come."""
        return time_s >= self._next_s

    def passed(self, time_s: float) -> None:
        """One was taken now."""
        self._next_s = time_s + self._interval
        self._interval = min(2.0 * self._interval, self._greatest)

    def restart(self, time_s: float) -> None:
        """The next one is the first interval away from now."""
        self._interval = self._first
        self.passed(time_s)
