"""Phase timers: every second is booked once, on the right phase."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor import CudaPhaseTimer, PhaseError, PhaseTimer, PhaseTimes

PHASES = ("env", "policy", "own")


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
    times = timer.snapshot()
    assert times.as_dict() == {"env": 0.75, "policy": 1.5, "own": 0.0}
    assert times.counts.tolist() == [2, 1, 0]
    assert times.total_s == 2.25
    assert times.shares() == {"env": 0.75 / 2.25, "policy": 1.5 / 2.25, "own": 0.0}
    assert times.mean_us()["env"] == 0.375e6
    assert np.isnan(times.mean_us()["own"])


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
    timer.mark("own")
    assert timer.snapshot().total_s == 1.0


def test_reset_keeps_the_time_that_is_not_booked_yet() -> None:
    timer = PhaseTimer(PHASES, ScriptedClock(0.0, 1.0, 3.0))
    timer.mark("env")
    timer.reset()
    assert timer.snapshot().total_s == 0.0
    timer.mark("policy")
    assert timer.snapshot().as_dict() == {"env": 0.0, "policy": 2.0, "own": 0.0}


def test_drains_into_a_view_of_a_larger_buffer() -> None:
    buffer = np.full(5, -1.0)
    timer = PhaseTimer(PHASES, ScriptedClock(0.0, 1.0, 3.0, 3.5))
    timer.mark("env")
    timer.mark("own")
    timer.drain_into(buffer[1:4])
    assert buffer.tolist() == [-1.0, 1.0, 0.0, 2.0, -1.0]
    timer.mark("policy")
    assert timer.drain().as_dict() == {"env": 0.0, "policy": 0.5, "own": 0.0}
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
    assert before.as_dict() == {"env": 2.0, "policy": 2.0, "own": 3.0}
    both = before + before
    assert both.as_dict() == {"env": 4.0, "policy": 4.0, "own": 6.0}
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
    timer = PhaseTimer(PHASES)
    for _ in range(100):
        timer.mark("env")
    assert 0.0 < timer.snapshot().total_s < 1.0


def test_timers_and_the_package_import_no_torch() -> None:
    code = "import sys, monitor, monitor.timers, monitor.recorder, monitor.statistics; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_cuda_phases_are_timed_on_the_device_without_waiting() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    timer = CudaPhaseTimer(("short", "long"), max_pending=8)
    cycles = 20_000_000
    torch.cuda.synchronize()
    timer.restart()
    torch.cuda._sleep(cycles)
    timer.mark("short")
    torch.cuda._sleep(4 * cycles)
    timer.mark("long")
    assert timer.snapshot().total_s < 1e-3
    times = timer.snapshot(wait=True)
    short, long = times.as_dict()["short"], times.as_dict()["long"]
    assert short > 1e-3
    assert 3.5 < long / short < 4.5
    for _ in range(100):
        torch.cuda._sleep(cycles // 100)
        timer.mark("short")
        assert len(timer._pending) < 8
    assert timer.snapshot(wait=True).counts.tolist() == [101, 1]
