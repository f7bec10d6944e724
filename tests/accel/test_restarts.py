"""Pauses between restarts, and the words for how a process ended."""

from __future__ import annotations

import signal

from hypothesis import given
from hypothesis import strategies as st

from accel.supervision.restarts import Restarts, describe_end


def test_pauses_double_up_to_a_minute_and_end_with_the_limit() -> None:
    restarts = Restarts()
    pauses = [restarts.fail(12, is_steady=False) for _ in range(13)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0, None]


@given(st.integers(0, 20))
def test_a_failure_after_steady_work_is_the_first_of_its_row(failures: int) -> None:
    restarts = Restarts()
    for _ in range(failures):
        restarts.fail(5, is_steady=False)
    assert restarts.fail(5, is_steady=True) == 0.1
    assert restarts.failures == 1


def test_no_restart_is_allowed_with_a_limit_of_zero() -> None:
    assert Restarts().fail(0, is_steady=True) is None


def test_how_a_process_ended() -> None:
    assert describe_end(-signal.SIGSEGV, {}) == "its process was ended by SIGSEGV"
    assert describe_end(-127, {}) == "its process was ended by signal 127"
    assert describe_end(4, {}) == "its process left through exit(4)"
    assert describe_end(1, {"error": "ValueError: bad"}) == "it raised ValueError: bad"
