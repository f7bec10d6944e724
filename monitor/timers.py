"""Phase timers for hot loops: the seconds that a loop spends in each of its phases.

Clocks are read a constant number of times per step and per update. Where a device computes while the host goes on, the
host's clock says nothing about the phases of an update: ``DevicePhases`` shares out the time that the host spent in it
by the device's own clock, later, when that can be read without waiting.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Protocol, Self

Times = dict[str, float]
"""Seconds by phase."""


def shares(now: Mapping[str, float], before: Mapping[str, float]) -> Times:
    """Each phase's part of the time between two snapshots, in [0, 1]; all zero where no time was measured."""
    spent = {phase: seconds - before[phase] for phase, seconds in now.items()}
    total = sum(spent.values())
    return {phase: seconds / total if total > 0 else 0.0 for phase, seconds in spent.items()}


class PhaseTimer:
    """Attributes the time of a loop to its phases; a mark costs one clock reading, about 0.15 µs.

    ``mark(phase)`` adds the time since the previous mark to ``phase``, so a mark stands at the *end* of its phase and
    no time is left out::

        timer = PhaseTimer(("env", "policy", "overhead"))
        timer.restart()
        for _ in range(steps):
            session.run(); timer.mark("policy")
            sample();      timer.mark("overhead")
            env.step();    timer.mark("env")

    Not thread-safe: one timer belongs to one loop.
    """

    __slots__ = ("_clock", "_last_s", "_seconds")

    def __init__(self, phases: Sequence[str], clock: Callable[[], float] = time.perf_counter) -> None:
        """Args: clock: returns seconds, monotonic."""
        self._clock = clock
        # Floats: adding to a numpy element costs twice as much as the clock itself.
        self._seconds = dict.fromkeys(phases, 0.0)
        self._last_s = clock()

    def mark(self, phase: str) -> None:
        """Add the time since the previous mark or ``restart`` to ``phase``; KeyError for an unknown phase."""
        now_s = self._clock()
        self._seconds[phase] += now_s - self._last_s
        self._last_s = now_s

    def take(self) -> float:
        """The seconds since the previous mark, which the caller attributes with ``add``."""
        now_s = self._clock()
        taken_s, self._last_s = now_s - self._last_s, now_s
        return taken_s

    def add(self, phase: str, seconds: float) -> None:
        """Attribute what ``take`` gave; KeyError for an unknown phase."""
        self._seconds[phase] += seconds

    def restart(self) -> None:
        """Begin anew: all times are zero, and the time since the previous mark belongs to no phase."""
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        self._last_s = self._clock()

    def snapshot(self) -> Times:
        """The seconds of each phase so far; the timer continues."""
        return self._seconds.copy()


class Event(Protocol):
    """A point in the work of a device, such as ``torch.cuda.Event(enable_timing=True)``."""

    def record(self) -> None:
        """Put it behind the work that is queued."""

    def query(self) -> bool:
        """Whether the device has come to it."""

    def synchronize(self) -> None:
        """Wait until it has."""

    def elapsed_time(self, end: Self) -> float:
        """Milliseconds on the device from this point to a later one."""


class UpdatePhases:
    """Attributes the time of updates to their phases; here each phase is what the host spent in it."""

    def __init__(self, timer: PhaseTimer) -> None:
        """Args: timer: gets the seconds."""
        self._timer = timer

    def begin(self) -> None:
        """An update begins."""

    def mark(self, phase: str) -> None:
        """A phase of it has ended on the host."""
        self._timer.mark(phase)

    def end(self) -> None:
        """The update has ended on the host."""

    def finish(self) -> None:
        """What follows waits for the update that ended last: that is its time."""

    def settle(self, *, wait: bool = False) -> None:
        """Attribute what can be known by now; ``wait``: until all of it is."""


class DevicePhases(UpdatePhases):
    """Shares out the host's seconds in an update as the device spent its own, so that all phases are still the whole.

    Args:
        timer: gets the seconds. make_event: on the device; events are used again. rest: the phase of an update that
            marked none.
    """

    def __init__(self, timer: PhaseTimer, make_event: Callable[[], Event], rest: str) -> None:
        super().__init__(timer)
        self._make_event, self._rest = make_event, rest
        self._free: list[Event] = []
        self._points: list[tuple[str, Event]] = []
        self._pending: deque[tuple[float, list[tuple[str, Event]]]] = deque()

    def begin(self) -> None:
        """See ``UpdatePhases``."""
        self._points = [("", self._record())]

    def mark(self, phase: str) -> None:
        """See ``UpdatePhases``."""
        self._points.append((phase, self._record()))

    def end(self) -> None:
        """See ``UpdatePhases``."""
        self._pending.append((self._timer.take(), self._points))

    def finish(self) -> None:
        """See ``UpdatePhases``."""
        if self._pending:
            seconds, points = self._pending.pop()
            points[-1][1].synchronize()
            self._pending.append((seconds + self._timer.take(), points))

    def settle(self, *, wait: bool = False) -> None:
        """See ``UpdatePhases``."""
        while self._pending:
            seconds, points = self._pending[0]
            last = points[-1][1]
            if wait:
                last.synchronize()
            elif not last.query():
                return
            self._pending.popleft()
            self._share(seconds, points)
            self._free += [event for _, event in points]

    def _record(self) -> Event:
        event = self._free.pop() if self._free else self._make_event()
        event.record()
        return event

    def _share(self, seconds: float, points: Sequence[tuple[str, Event]]) -> None:
        spent_ms = [(phase, max(before.elapsed_time(event), 0.0)) for (_, before), (phase, event) in pairwise(points)]
        total_ms = sum(ms for _, ms in spent_ms)
        if total_ms <= 0.0:
            self._timer.add(spent_ms[-1][0] if spent_ms else self._rest, seconds)
            return
        for phase, ms in spent_ms:
            self._timer.add(phase, seconds * ms / total_ms)
