"""Levels that were rejected or given up are left alone, twice as long each time."""

from __future__ import annotations


class Bans:
    """Until when each level may not be tried again.

    Args:
        first: how long the first ban lasts, in the clock's unit.
    """

    def __init__(self, first: float) -> None:
        self._first = first
        self._until: dict[str, float] = {}
        self._times: dict[str, int] = {}

    def add(self, level: str, time_s: float) -> None:
        """Ban a level from now on."""
        times = self._times.get(level, 0)
        self._times[level] = times + 1
        self._until[level] = time_s + self._first * 2.0**times

    def holds(self, level: str, time_s: float) -> bool:
        """Whether a level is banned now."""
        return time_s < self._until.get(level, time_s)

    def lift(self, level: str, time_s: float) -> bool:
        """Whether a ban of the level has run out since the last call; true once for each ban."""
        if level not in self._until or self.holds(level, time_s):
            return False
        del self._until[level]
        return True
