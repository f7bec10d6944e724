"""Phase timers: every second is booked once, on the right phase."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor import CudaPhaseTimer, PhaseError, PhaseTimer, PhaseTimes

PHASES = ("env", "policy", "overhead")


class ScriptedClock:
    """A clock that reads the given times one after the other."""

    def __init__(self, *times_s: float) -> None:
        self._times = iter(times_s)

    def __call__(self) -> float:
        return next(self._times)


class ScriptedDevice:
    """A device whose events happen at the given times, one after the other in the order in which they are recorded."""

    def __init__(self, *times_ms: float) -> None:
        self.times_ms = iter(times_ms)
        self.now_ms = 0.0
        self.waits = 0
        self.events = 0

    def make_event(self, *, enable_timing: bool) -> ScriptedEvent:
        assert enable_timing
        self.events += 1
        return ScriptedEvent(self)


class ScriptedEvent:
    """What ``torch.cuda.Event`` is to the timer."""

    def __init__(self, device: ScriptedDevice) -> None:
        self._device = device
        self._at_ms = math.inf

    def record(self) -> None:
        self._at_ms = next(self._device.times_ms)

    def query(self) -> bool:
        return self._at_ms <= self._device.now_ms

    def synchronize(self) -> None:
        self._device.waits += 1
        self._device.now_ms = max(self._device.now_ms, self._at_ms)

    def elapsed_time(self, end: ScriptedEvent) -> float:
        assert self.query() and end.query(), "the device has passed both"
        return end._at_ms - self._at_ms


def test_a_mark_books_the_time_since_the_previous_one() -> None:
    timer = PhaseTimer(PHASES, ScriptedClock(10.0, 10.5, 12.0, 12.25))
    timer.mark("env")
    timer.mark("policy")
    timer.mark("env")
    times = timer.snapshot()
    assert times.as_dict() == {"env": 0.75, "policy": 1.5, "overhead": 0.0}
    assert times.counts.tolist() == [2, 1, 0]
    assert times.total_s == 2.25
    assert times.shares() == {"env": 0.75 / 2.25, "policy": 1.5 / 2.25, "overhead": 0.0}
    assert times.mean_us()["env"] == 0.375e6
    assert np.isnan(times.mean_us()["overhead"])


@given(st.lists(st.tuples(st.sampled_from(PHASES), st.integers(0, 1000)), min_size=1))
def test_nothing_is_lost_or_counted_twice(marks: list[tuple[str, int]]) -> None:
    ends = np.cumsum([0, *(duration for _, duration in marks)]).astype(float)
    timer = PhaseTimer(PHASES, ScriptedClock(*ends))
    for phase, _ in marks:
        timer.mark(phase)
    times = timer.snapshot()
    assert times.total_s == ends[-1]
    for phase in PHASES:
        durations = [
            end - start for (name, _), (start, end) in zip(marks, pairwise(ends), strict=True) if name == phase
        ]
        assert times.as_dict()[phase] == sum(durations)
        assert times.counts[PHASES.index(phase)] == len(durations)


def test_restart_leaves_a_gap_out() -> None:
    timer = PhaseTimer(PHASES, ScriptedClock(0.0, 7.0, 8.0))
    timer.restart()
    timer.mark("overhead")
    assert timer.snapshot().total_s == 1.0


def test_reset_keeps_the_time_that_is_not_booked_yet() -> None:
    timer = PhaseTimer(PHASES, ScriptedClock(0.0, 1.0, 3.0))
    timer.mark("env")
    timer.reset()
    assert timer.snapshot().total_s == 0.0
    timer.mark("policy")
    assert timer.snapshot().as_dict() == {"env": 0.0, "policy": 2.0, "overhead": 0.0}


def test_drains_into_a_view_of_a_larger_buffer() -> None:
    buffer = np.full(5, -1.0)
    timer = PhaseTimer(PHASES, ScriptedClock(0.0, 1.0, 3.0, 3.5))
    timer.mark("env")
    timer.mark("overhead")
    timer.drain_into(buffer[1:4])
    assert buffer.tolist() == [-1.0, 1.0, 0.0, 2.0, -1.0]
    timer.mark("policy")
    assert timer.drain().as_dict() == {"env": 0.0, "policy": 0.5, "overhead": 0.0}
    assert timer.drain().total_s == 0.0


def test_a_view_of_the_wrong_size_is_refused_before_anything_is_lost() -> None:
    timer = PhaseTimer(PHASES, ScriptedClock(0.0, 1.0))
    timer.mark("env")
    with pytest.raises(ValueError, match=r"shape \(1,\)"):
        timer.drain_into(np.zeros(1))
    assert timer.snapshot().total_s == 1.0


def test_merge_and_arithmetic() -> None:
    timer = PhaseTimer(PHASES, ScriptedClock(0.0, 1.0))
    timer.mark("env")
    timer.merge(PhaseTimes.from_seconds(PHASES, np.array([1.0, 2.0, 3.0])))
    before = timer.snapshot()
    assert before.as_dict() == {"env": 2.0, "policy": 2.0, "overhead": 3.0}
    both = before + before
    assert both.as_dict() == {"env": 4.0, "policy": 4.0, "overhead": 6.0}
    assert (both - before).as_dict() == before.as_dict()
    assert (both - before).counts.tolist() == before.counts.tolist()
    assert (PhaseTimes.zero(PHASES) + before).as_dict() == before.as_dict()
    assert PhaseTimes.zero(PHASES).shares() == dict.fromkeys(PHASES, 0.0)


def test_a_snapshot_does_not_change_afterwards() -> None:
    timer = PhaseTimer(PHASES, ScriptedClock(0.0, 1.0, 2.0))
    timer.mark("env")
    snapshot = timer.snapshot()
    timer.mark("env")
    assert snapshot.total_s == 1.0


def test_unknown_and_unequal_phases_are_refused() -> None:
    timer = PhaseTimer(PHASES)
    with pytest.raises(KeyError, match="sleep"):
        timer.mark("sleep")
    with pytest.raises(PhaseError, match="distinct"):
        PhaseTimer(("env", "env"))
    with pytest.raises(PhaseError, match="cannot be merged"):
        timer.merge(PhaseTimes.zero(("env",)))
    with pytest.raises(PhaseError, match="differ"):
        PhaseTimes.zero(PHASES) + PhaseTimes.zero(("env",))
    with pytest.raises(PhaseError, match="shape"):
        PhaseTimes.from_seconds(PHASES, np.zeros(2))


def test_the_real_clock_runs_forward() -> None:
    before_s = time.perf_counter()
    timer = PhaseTimer(PHASES)
    for _ in range(100):
        timer.mark("env")
    after_s = time.perf_counter()
    assert 0.0 < timer.snapshot().total_s <= after_s - before_s + 1e-9, "but for what adding up rounds"


def test_timers_and_the_package_import_no_torch() -> None:
    code = "import sys, monitor, monitor.timers, monitor.recorder, monitor.statistics; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ScriptedDevice]:
    """Give timers a device with these times."""
    cuda = pytest.importorskip("torch").cuda

    def script(*times_ms: float) -> ScriptedDevice:
        device = ScriptedDevice(*times_ms)
        monkeypatch.setattr(cuda, "Event", device.make_event)
        return device

    return script


def test_device_phases_are_booked_once_the_device_has_passed_them(scripted: Callable[..., ScriptedDevice]) -> None:
    device = scripted(0.0, 3.0, 5.0, 13.0, 14.0)
    timer = CudaPhaseTimer(("short", "long"))
    timer.restart()
    timer.mark("short")
    timer.mark("long")
    timer.mark("short")
    assert timer.snapshot().total_s == 0.0, "the device has not begun"
    assert timer.snapshot().counts.tolist() == [2, 1]
    device.now_ms = 12.9
    assert timer.snapshot().as_dict() == pytest.approx({"short": 2e-3, "long": 0.0})
    device.now_ms = 13.0
    assert timer.snapshot().as_dict() == pytest.approx({"short": 2e-3, "long": 8e-3})
    assert device.waits == 0
    assert timer.snapshot(wait=True).as_dict() == pytest.approx({"short": 3e-3, "long": 8e-3})
    assert device.waits == 1


@pytest.mark.parametrize(("behind", "waits"), [(7, 0), (8, 93)])
def test_open_marks_are_bounded_and_only_a_device_far_behind_is_waited_for(
    scripted: Callable[..., ScriptedDevice], behind: int, waits: int
) -> None:
    """Event i happens at i ms; the device has passed all but that many of those recorded."""
    device = scripted(*map(float, range(101)))
    timer = CudaPhaseTimer(("only",), max_pending=8)
    for i in range(1, 101):
        device.now_ms = max(device.now_ms, float(i - behind))
        timer.mark("only")
        assert len(timer._pending) < 8
    assert device.waits == waits
    assert device.events <= 9, "events are used again"
    times = timer.snapshot(wait=True)
    assert times.total_s == pytest.approx(0.1)
    assert times.counts.tolist() == [100]


def test_cuda_phases_are_timed_on_the_device() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    timer = CudaPhaseTimer(("short", "long"), max_pending=8)
    timer.restart()
    torch.cuda._sleep(20_000_000)
    timer.mark("long")
    for _ in range(100):
        torch.cuda._sleep(200_000)
        timer.mark("short")
        assert len(timer._pending) < 8
    times = timer.snapshot(wait=True)
    assert times.counts.tolist() == [100, 1]
    assert all(seconds > 0 for seconds in times.as_dict().values())
