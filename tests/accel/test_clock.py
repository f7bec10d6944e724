"""The clock by which others are judged silent."""

from __future__ import annotations

import pytest

from accel.supervision import clock


def test_time_without_a_look_counts_up_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(clock.time, "monotonic", lambda: now_s)
    listening = clock.AwakeClock(0.5)
    now_s += 0.25
    assert listening.look() == listening.s == 0.25
    now_s += 3600.0  # The process was stopped, say.
    assert listening.look() == 0.75
    assert listening.look() == 0.75
