"""What a process shows of its progress to one that watches it: two words of memory that both see."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from typing import Protocol, Self

from accel.supervision.clock import ListeningClock

STEPPING, PREPARING, WAITING = 0, 1, 2
"""Phases: a step or less at a time; construction, resets and other work that may take longer; for the other side."""
WORDS = 2
_LOOK_S = 0.25
_GRACE_S = 1.0


class Words(Protocol):
    """Integers that can be read and written in place."""

    def __getitem__(self, index: int, /) -> int:
        """One word."""
        ...

    def __setitem__(self, index: int, value: int, /) -> None:
        """Write one word."""
        ...


class Activity:
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


class Watchdog:
    """Watches a activity from a thread, where no other process does: in a run of one process, and in evaluation.

    Args:
        activity: what is watched. step_s, preparation_s: how long a step may take, and construction or a reset.
        hung: called in the thread with what took too long and 1; with 2, 3 … where it takes as long again.
        interrupted: asked where what is watched has taken a second. True: nobody waits for it any longer, and it was
            interrupted, which counts as the first time.
    """

    def __init__(
        self,
        activity: Activity,
        step_s: float,
        preparation_s: float,
        hung: Callable[[str, int], None],
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._words, self._hung, self._interrupted = activity.words, hung, interrupted
        self._limits_s = {STEPPING: step_s, PREPARING: max(step_s, preparation_s)}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        words, clock = self._words, ListeningClock(2.0 * _LOOK_S)
        seen, since_s, times = (words[0], words[1]), 0.0, 0
        while not self._over.wait(_LOOK_S):
            clock_s, now = clock.look(), (words[0], words[1])
            if now != seen or now[1] == WAITING:
                seen, since_s, times = now, clock_s, 0
            elif clock_s > since_s + self._limits_s[now[1]]:
                since_s, times = clock_s, times + 1
                self._hung(hang_message(now[1], self._limits_s[now[1]]), times)
            elif times == 0 and clock_s > since_s + _GRACE_S and self._interrupted():
                times = 1


def hang_message(phase: int, limit_s: float) -> str:
    """The message about environments that make no progress."""
    what = "construction or a reset" if phase == PREPARING else "a step"
    option = "--peer-timeout-s" if phase == PREPARING else "--actor-timeout-s"
    return f"its environments hang: {what} took longer than {limit_s:g} s ({option})"
