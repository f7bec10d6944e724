"""What a process shows of its progress to one that watches it: two words of memory that both see."""

from __future__ import annotations

from array import array
from typing import Protocol

STEPPING, PREPARING, WAITING = 0, 1, 2
"""Phases: a step or less at a time; construction, resets and other work that may take longer; for the other side."""
WORDS = 2


class Words(Protocol):
    """Integers that can be read and written in place."""

    def __getitem__(self, index: int, /) -> int:
        """One word."""
        ...

    def __setitem__(self, index: int, value: int, /) -> None:
        """Write one word."""
        ...


class Pulse:
    """Progress and phase of one actor.

    Attributes:
        words: [progress, phase], int64. Progress is any number that changes with every step; to write it costs some
            thirty nanoseconds.
    """

    __slots__ = ("words",)

    def __init__(self, words: Words | None = None) -> None:
        self.words: Words = array("q", [0, PREPARING]) if words is None else words

    def enter(self, phase: int) -> int:
        """Enter a phase; returns the one before."""
        before = self.words[1]
        self.words[1] = phase
        return before
