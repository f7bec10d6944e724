"""What a process shows of its progress to one that watches it: two integers of memory that both see."""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Callable
from typing import Self

from accel.supervision.clock import AwakeClock
from accel.system.memory import map_memory

STEPPING, PREPARING, WAITING = 0, 1, 2
"""Phases: a step or less at a time; construction, resets and other work that may take longer; for the other side."""
WORDS = 2
Seen = tuple[int, int]  # progress and phase at one moment
_LOOK_S = 0.25
_GRACE_S = 1.0


class Activity:
    """Progress and phase of one process.

    Attributes:
        words: [progress, phase], int64. Progress is any number that changes with every step; to write it costs some
            thirty nanoseconds.
    """

    __slots__ = ("words",)

    def __init__(self, words: memoryview | None = None) -> None:
        self.words = memoryview(array("q", [0, PREPARING])) if words is None else words

    def now(self) -> Seen:
        """Progress and phase."""
        return self.words[0], self.words[1]

    def enter(self, phase: int) -> int:
        """Enter a phase; returns the one before."""
        before: int = self.words[1]
        self.words[1] = phase
        return before


def shared_activities(file: int, count: int = 1) -> list[Activity]:
    """The activities at the start of a file of memory; what others wrote there stays."""
    words = memoryview(map_memory(file, 8 * WORDS * count)).cast("q")
    return [Activity(words[start : start + WORDS]) for start in range(0, WORDS * count, WORDS)]


class HangDetector:
    """How long an activity has shown no progress; for what its process does for the other side, no time counts.

    Attributes:
        step_s, preparation_s: how long a step may take, and construction or a reset.
        since_s: when there was progress last, as looks or the user tell. longest_s: the longest time without.
        seen: progress and phase at the last look.
    """

    def __init__(self, activity: Activity, step_s: float = math.inf, preparation_s: float = math.inf) -> None:
        self.step_s, self.preparation_s = step_s, preparation_s
        self.since_s = self.longest_s = 0.0
        self._activity = activity
        self.seen = activity.now()

    def look(self, now_s: float) -> str:
        """What takes too long; empty as long as nothing does."""
        seen = self._activity.now()
        if seen != self.seen or seen[1] == WAITING:
            self.longest_s = max(self.longest_s, now_s - self.since_s)
            self.seen, self.since_s = seen, now_s
            return ""
        is_prepared = seen[1] == STEPPING
        limit_s = self.step_s if is_prepared else max(self.step_s, self.preparation_s)
        if now_s <= self.since_s + limit_s:
            return ""
        what, option = (
            ("a step", "--actor-timeout-s") if is_prepared else ("construction or a reset", "--peer-timeout-s")
        )
        return f"its environments hang: {what} took longer than {limit_s:g} s ({option})"


class Watchdog:
    """Watches an activity from a thread: where environments are stepped in the process that trains.

    Args:
        activity: what is watched. step_s, preparation_s: how long a step may take, and construction or a reset.
        hung: called in the thread with what took too long and 1; with 2, 3 … where it takes as long again; and the
            progress and phase that were seen.
        interrupted: asked with these where what is watched has taken a second. True: nobody waits for it any longer,
            and it was interrupted, which counts as the first time.
    """

    def __init__(
        self,
        activity: Activity,
        step_s: float,
        preparation_s: float,
        hung: Callable[[str, int, Seen], None],
        interrupted: Callable[[Seen], bool] = lambda _: False,
    ) -> None:
        self._detector = HangDetector(activity, step_s, preparation_s)
        self._hung, self._interrupted = hung, interrupted
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        detector, clock, times = self._detector, AwakeClock(2.0 * _LOOK_S), 0
        while not self._over.wait(_LOOK_S):
            now_s = clock.look()
            if why := detector.look(now_s):
                detector.since_s = now_s
                times += 1
                self._hung(why, times, detector.seen)
            elif detector.since_s == now_s:
                times = 0
            elif times == 0 and now_s > detector.since_s + _GRACE_S and self._interrupted(detector.seen):
                times = 1
