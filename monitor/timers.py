"""Where the time goes: phase timers for hot loops, on the host's clock and on a CUDA stream."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from monitor.errors import PhaseError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class PhaseTimes:
    """Time spent in each of a fixed set of phases.

    Attributes:
        phases: n names.
        seconds: [n] float64, total seconds in each phase.
        counts: [n] int64, how often each phase was marked; zeros where only the seconds are known.
    """

    phases: tuple[str, ...]
    seconds: NDArray[np.float64]
    counts: NDArray[np.int64]

    @classmethod
    def zero(cls, phases: Sequence[str]) -> Self:
        """No time in any phase: the identity of ``+``."""
        _check_phases(phases)
        return cls(tuple(phases), np.zeros(len(phases)), np.zeros(len(phases), np.int64))

    @classmethod
    def from_seconds(cls, phases: Sequence[str], seconds: NDArray[np.float64]) -> Self:
        """Times whose counts are unknown, copied from a [n] array such as ``PhaseTimer.drain_into`` fills."""
        if seconds.shape != (len(phases),):
            raise PhaseError(f"seconds has shape {seconds.shape}; {len(phases)} phases need ({len(phases)},)")
        _check_phases(phases)
        return cls(tuple(phases), np.array(seconds, np.float64), np.zeros(len(phases), np.int64))

    def __add__(self, other: PhaseTimes) -> PhaseTimes:
        """Both together; raises PhaseError when the phases differ."""
        self._check_same(other)
        return PhaseTimes(self.phases, self.seconds + other.seconds, self.counts + other.counts)

    def __sub__(self, other: PhaseTimes) -> PhaseTimes:
        """What was added since the earlier snapshot ``other``; raises PhaseError when the phases differ."""
        self._check_same(other)
        return PhaseTimes(self.phases, self.seconds - other.seconds, self.counts - other.counts)

    @property
    def total_s(self) -> float:
        """Seconds in all phases together."""
        return float(self.seconds.sum())

    def shares(self) -> dict[str, float]:
        """Each phase's part of the total, in [0, 1]; all zero where no time was measured."""
        total = self.total_s
        return {p: float(s) / total if total > 0 else 0.0 for p, s in zip(self.phases, self.seconds, strict=True)}

    def mean_us(self) -> dict[str, float]:
        """Microseconds per mark of each phase; NaN where the phase was never marked or counts are unknown."""
        pairs = zip(self.phases, self.seconds, self.counts, strict=True)
        return {p: float(s) / int(n) * 1e6 if n else float("nan") for p, s, n in pairs}

    def as_dict(self) -> dict[str, float]:
        """Seconds by phase."""
        return {p: float(s) for p, s in zip(self.phases, self.seconds, strict=True)}

    def _check_same(self, other: PhaseTimes) -> None:
        if self.phases != other.phases:
            raise PhaseError(f"phases {self.phases} and {other.phases} differ; only equal phases can be combined")


class PhaseTimer:
    """Attributes every moment of a loop to a phase; one clock reading and about 0.15 µs a mark.

    ``mark(phase)`` books the time since the previous mark on ``phase``, so marks stand at the *end* of what they
    name and nothing is left out::

        timer = PhaseTimer(("env", "policy", "overhead"))
        timer.restart()
        for _ in range(steps):
            session.run(); timer.mark("policy")
            sample();      timer.mark("overhead")
            env.step();    timer.mark("env")

    Not thread-safe: one timer belongs to one loop.
    """

    __slots__ = ("_clock", "_counts", "_last_s", "_seconds", "phases")

    def __init__(self, phases: Sequence[str], clock: Callable[[], float] = time.perf_counter) -> None:
        """Args: phases: distinct names; clock: returns seconds, monotonic."""
        _check_phases(phases)
        self.phases = tuple(phases)
        self._clock = clock
        # Dictionaries of floats: adding to a numpy element costs twice as much as the clock itself.
        self._seconds = dict.fromkeys(self.phases, 0.0)
        self._counts = dict.fromkeys(self.phases, 0)
        self._last_s = clock()

    def mark(self, phase: str) -> None:
        """Book the time since the previous mark (or restart) on ``phase``; KeyError for a phase it does not have."""
        now_s = self._clock()
        self._seconds[phase] += now_s - self._last_s
        self._counts[phase] += 1
        self._last_s = now_s

    def restart(self) -> None:
        """Forget the time since the previous mark: it belongs to no phase."""
        self._last_s = self._clock()

    def snapshot(self) -> PhaseTimes:
        """The times so far; the timer goes on."""
        seconds = np.fromiter(self._seconds.values(), np.float64, len(self.phases))
        return PhaseTimes(self.phases, seconds, np.fromiter(self._counts.values(), np.int64, len(self.phases)))

    def drain(self) -> PhaseTimes:
        """The times so far, which start again from zero; time since the previous mark is kept for the next one."""
        times = self.snapshot()
        self.reset()
        return times

    def drain_into(self, out: NDArray[np.float64]) -> None:
        """Write the seconds to ``out`` [n], a view of an unroll for example, and start again from zero.

        Raises: ValueError when ``out`` does not have one element a phase.
        """
        if out.shape != (len(self.phases),):
            raise ValueError(f"out has shape {out.shape}; {len(self.phases)} phases need ({len(self.phases)},)")
        out[:] = tuple(self._seconds.values())
        self.reset()

    def reset(self) -> None:
        """Set all times to zero; time since the previous mark is kept for the next one."""
        for phase in self.phases:
            self._seconds[phase] = 0.0
            self._counts[phase] = 0

    def merge(self, times: PhaseTimes) -> None:
        """Add times measured elsewhere; raises PhaseError when the phases differ."""
        if times.phases != self.phases:
            raise PhaseError(f"phases {times.phases} cannot be merged into {self.phases}")
        for phase, seconds, count in zip(self.phases, times.seconds, times.counts, strict=True):
            self._seconds[phase] += float(seconds)
            self._counts[phase] += int(count)


class CudaPhaseTimer:
    """``PhaseTimer`` on the current CUDA stream's own time: marks are events, and nothing waits for the device.

    Finished events are folded into the totals by ``snapshot``, and by ``mark`` once ``max_pending`` are open, which
    bounds memory; only ``snapshot(wait=True)`` and a stream more than ``max_pending`` marks behind ever block.
    Imports torch when it is made.
    """

    def __init__(self, phases: Sequence[str], max_pending: int = 1024) -> None:
        """Args: phases: distinct names; max_pending: how many marks may be unresolved."""
        import torch

        _check_phases(phases)
        self.phases = tuple(phases)
        self._seconds = dict.fromkeys(self.phases, 0.0)
        self._counts = dict.fromkeys(self.phases, 0)
        self._max_pending = max_pending
        self._make_event: Callable[[], torch.cuda.Event] = lambda: torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._spare: list[torch.cuda.Event] = []
        self._pending: deque[tuple[str, torch.cuda.Event]] = deque()
        self._last = self._recorded()

    def mark(self, phase: str) -> None:
        """Book the stream's time since the previous mark on ``phase``; KeyError for a phase it does not have."""
        self._counts[phase] += 1
        self._pending.append((phase, self._recorded()))
        if len(self._pending) >= self._max_pending:
            self._fold(wait=False)
            if len(self._pending) >= self._max_pending:
                self._pending[0][1].synchronize()
                self._fold(wait=False)

    def restart(self) -> None:
        """Forget the stream's time since the previous mark: it belongs to no phase."""
        self._pending.append(("", self._recorded()))

    def snapshot(self, *, wait: bool = False) -> PhaseTimes:
        """The times of the marks that the device has passed; of all marks with ``wait``, which blocks for it."""
        self._fold(wait=wait)
        seconds = np.fromiter(self._seconds.values(), np.float64, len(self.phases))
        return PhaseTimes(self.phases, seconds, np.fromiter(self._counts.values(), np.int64, len(self.phases)))

    def _recorded(self) -> torch.cuda.Event:
        event = self._spare.pop() if self._spare else self._make_event()
        event.record()
        return event

    def _fold(self, *, wait: bool) -> None:
        if wait and self._pending:
            self._pending[-1][1].synchronize()
        while self._pending and self._pending[0][1].query():  # type: ignore[no-untyped-call]
            phase, event = self._pending.popleft()
            if phase:
                self._seconds[phase] += self._last.elapsed_time(event) * 1e-3
            self._spare.append(self._last)
            self._last = event


def _check_phases(phases: Sequence[str]) -> None:
    if len(set(phases)) != len(phases) or not all(phases):
        raise PhaseError(f"phases {tuple(phases)} must be distinct, non-empty names")
