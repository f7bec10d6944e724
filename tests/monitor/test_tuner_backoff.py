"""Exponential back-off: each delay as documented, the first attempt at once."""

from __future__ import annotations

import math

import pytest

from monitor.tuner.backoff import ExponentialBackoff


def delays(backoff: ExponentialBackoff, attempts: int) -> list[float]:
    """How long each attempt delays the next one, to a quarter of the clock's unit."""
    found, now = [], 0.0
    for _ in range(attempts):
        assert backoff.ready(now)
        backoff.attempt(now)
        later = now
        while not backoff.ready(later):
            later += 0.25
        found.append(later - now)
        now = later
    return found


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        (ExponentialBackoff(3.0), [3.0, 6.0, 12.0, 24.0, 48.0]),
        (ExponentialBackoff(3.0, 10.0), [3.0, 6.0, 10.0, 10.0, 10.0]),
        (ExponentialBackoff(3.0, constant=3), [3.0, 3.0, 3.0, 6.0, 12.0]),
        (ExponentialBackoff(3.0, factor=1.0), [3.0] * 5),
    ],
    ids=["doubles", "capped", "constant at first", "fixed"],
)
def test_delays(backoff: ExponentialBackoff, expected: list[float]) -> None:
    assert delays(backoff, 5) == expected


def test_postponing_delays_the_next_attempt_only() -> None:
    backoff = ExponentialBackoff(2.0)
    backoff.postpone(5.0)
    assert not backoff.ready(4.9) and backoff.ready(5.0)
    backoff.attempt(5.0)
    backoff.postpone(6.0)
    assert not backoff.ready(6.5) and backoff.ready(7.0)


def test_reset_begins_again_with_the_first_delay() -> None:
    backoff = ExponentialBackoff(2.0)
    assert delays(backoff, 3) == [2.0, 4.0, 8.0]
    backoff.reset()
    backoff.attempt(20.0)
    assert not backoff.ready(21.9) and backoff.ready(22.0)


def test_thousands_of_attempts_do_not_overflow() -> None:
    backoff = ExponentialBackoff(1.0)
    for _ in range(5000):
        backoff.attempt(0.0)
    assert not backoff.ready(1e9)
    assert backoff.ready(math.inf)
