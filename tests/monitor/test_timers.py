"""Phase timers: every second is booked once, on the right phase."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel.monitor.timers import DevicePhases, PhaseTimer, UpdatePhases, shares

PHASES = ("env", "policy", "overhead")


class ScriptedClock:
    """A clock that reads the given times one after the other."""

    def __init__(self, *times_s: float) -> None:
        self._times = iter(times_s)

    def __call__(self) -> float:
        return next(self._times)


def test_a_mark_books_the_time_since_the_previous_one() -> None:
    timer = PhaseTimer(PHASES, ScriptedClock(10.0, 10.5, 12.0, 12.25))
    timer.mark("env")
    timer.mark("policy")
    timer.mark("env")
    assert timer.snapshot() == {"env": 0.75, "policy": 1.5, "overhead": 0.0}


@given(st.lists(st.tuples(st.sampled_from(PHASES), st.integers(0, 1000)), min_size=1))
def test_nothing_is_lost_or_counted_twice(marks: list[tuple[str, int]]) -> None:
    ends = np.cumsum([0, *(duration for _, duration in marks)]).astype(float)
    timer = PhaseTimer(PHASES, ScriptedClock(*ends))
    for phase, _ in marks:
        timer.mark(phase)
    times = timer.snapshot()
    assert sum(times.values()) == ends[-1]
    for phase in PHASES:
        durations = [
            end - start for (name, _), (start, end) in zip(marks, pairwise(ends), strict=True) if name == phase
        ]
        assert times[phase] == sum(durations)


def test_a_restart_forgets_all_times_and_leaves_a_gap_out() -> None:
    timer = PhaseTimer(PHASES, ScriptedClock(0.0, 1.0, 7.0, 8.0))
    timer.mark("env")
    timer.restart()
    timer.mark("overhead")
    assert timer.snapshot() == {"env": 0.0, "policy": 0.0, "overhead": 1.0}


def test_shares_are_of_the_time_between_two_snapshots() -> None:
    timer = PhaseTimer(PHASES, ScriptedClock(0.0, 1.0, 3.0, 3.5))
    timer.mark("env")
    before = timer.snapshot()
    assert shares(before, before) == dict.fromkeys(PHASES, 0.0)
    timer.mark("overhead")
    timer.mark("env")
    assert shares(timer.snapshot(), before) == {"env": 0.2, "policy": 0.0, "overhead": 0.8}


def test_an_unknown_phase_is_refused() -> None:
    with pytest.raises(KeyError, match="sleep"):
        PhaseTimer(PHASES).mark("sleep")


class Device:
    """Works through what is queued, as far as it is told to; makes events on it."""

    def __init__(self) -> None:
        self.queued_ms = self.done_ms = 0.0
        self.made = 0
        self.waits = 0

    def event(self) -> Point:
        self.made += 1
        return Point(self)


class Point:
    """An event, as torch's CUDA events behave."""

    def __init__(self, device: Device) -> None:
        self.device, self.at_ms = device, float("nan")

    def record(self) -> None:
        self.at_ms = self.device.queued_ms

    def query(self) -> bool:
        return self.device.done_ms >= self.at_ms

    def synchronize(self) -> None:
        self.device.waits += 1
        self.device.done_ms = max(self.device.done_ms, self.at_ms)

    def elapsed_time(self, end: Point) -> float:
        assert self.query() and end.query(), "torch raises where the device has not come to both"
        return end.at_ms - self.at_ms


def update(phases: DevicePhases, device: Device, *spent_ms: tuple[str, float]) -> None:
    phases.begin()
    for phase, ms in spent_ms:
        device.queued_ms += ms
        phases.mark(phase)
    phases.end()


def test_the_hosts_time_in_an_update_is_shared_out_by_the_devices_once_it_has_come_to_its_end() -> None:
    device, timer = Device(), PhaseTimer(PHASES, ScriptedClock(0.0, 1.0, 3.0, 3.5, 7.5))
    phases = DevicePhases(timer, device.event, rest="overhead")
    timer.mark("env")
    update(phases, device, ("policy", 30.0), ("overhead", 10.0), ("policy", 60.0))
    timer.mark("env")
    phases.settle()
    assert timer.snapshot() == {"env": 1.5, "policy": 0.0, "overhead": 0.0}, "the device is still at it"
    device.done_ms = device.queued_ms
    update(phases, device, ("overhead", 5.0))
    phases.settle()
    assert timer.snapshot() == pytest.approx({"env": 1.5, "policy": 1.8, "overhead": 0.2})
    assert device.waits == 0
    phases.settle(wait=True)
    assert timer.snapshot() == pytest.approx({"env": 1.5, "policy": 1.8, "overhead": 4.2})
    assert sum(timer.snapshot().values()) == 7.5, "all phases are the whole"


def test_what_waits_for_an_update_spends_its_time() -> None:
    device, timer = Device(), PhaseTimer(PHASES, ScriptedClock(0.0, 1.0, 6.0, 6.5))
    phases = DevicePhases(timer, device.event, rest="overhead")
    update(phases, device, ("policy", 30.0), ("overhead", 10.0))
    phases.finish()
    assert device.waits == 1 and device.done_ms == 40.0
    timer.mark("env")
    phases.settle()
    assert timer.snapshot() == pytest.approx({"env": 0.5, "policy": 4.5, "overhead": 1.5})
    phases.finish()
    assert device.waits == 1, "there is none to wait for"


def test_an_update_that_marks_nothing_belongs_to_the_rest_and_events_are_used_again() -> None:
    device, timer = Device(), PhaseTimer(PHASES, ScriptedClock(*map(float, range(12))))
    phases = DevicePhases(timer, device.event, rest="overhead")
    for _ in range(5):
        update(phases, device)
        phases.settle(wait=True)
        update(phases, device, ("env", 0.0))
        phases.settle(wait=True)
    assert timer.snapshot() == {"env": 5.0, "policy": 0.0, "overhead": 5.0} and device.made == 2


def test_on_the_host_a_phase_is_what_the_host_spent_in_it() -> None:
    timer = PhaseTimer(PHASES, ScriptedClock(0.0, 1.0, 3.0))
    phases = UpdatePhases(timer)
    phases.begin()
    phases.mark("policy")
    phases.mark("env")
    phases.end()
    phases.finish()
    phases.settle(wait=True)
    assert timer.snapshot() == {"env": 2.0, "policy": 1.0, "overhead": 0.0}
