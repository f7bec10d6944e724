"""The clock by which others are judged silent."""

from __future__ import annotations

from accel.supervision.clock import AwakeClock


def test_time_without_a_look_counts_up_to_its_limit() -> None:
    times = iter([100.0, 100.25, 3700.25, 3700.25])  # The process was stopped for an hour, say.
    clock = AwakeClock(0.5, lambda: next(times))
    assert clock.look() == clock.s == 0.25
    assert clock.look() == 0.75
    assert clock.look() == 0.75
