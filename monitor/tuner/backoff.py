"""Exponential back-off: the delay between two attempts doubles with each."""

from __future__ import annotations

import math

_MOST_DOUBLINGS = 64


class ExponentialBackoff:
    """Says when the next attempt may be made; the first at once.

    Delay k, counted from 1, is first · factor^max(0, k − constant), at most ``greatest``.

    Args:
        first: the first delay, in the clock's unit.
        greatest: the longest delay.
        constant: how many delays are of the first length before they grow.
        factor: by which a delay exceeds the one before; 1 turns the back-off into a fixed delay.
    """

    def __init__(self, first: float, greatest: float = math.inf, *, constant: int = 1, factor: float = 2.0) -> None:
        self._first, self._greatest, self._constant, self._factor = first, greatest, constant, factor
        self._attempts = 0
        self._ready_s = -math.inf

    def ready(self, time_s: float) -> bool:
        """Whether the next attempt may be made now."""
        return time_s >= self._ready_s

    def attempt(self, time_s: float) -> None:
        """Record an attempt now: the next delay begins."""
        self._attempts += 1
        doublings = min(max(0, self._attempts - self._constant), _MOST_DOUBLINGS)
        self._ready_s = time_s + min(self._first * self._factor**doublings, self._greatest)

    def postpone(self, until_s: float) -> None:
        """Allow no attempt before ``until_s``; delays do not grow."""
        self._ready_s = max(self._ready_s, until_s)

    def reset(self) -> None:
        """Begin again with the first delay."""
        self._attempts = 0
