"""What users of an ``MpiEndpoint`` need without mpi4py: its error, and how to wait.

A wait polls a few times, then sleeps for increasing intervals.
"""

from __future__ import annotations

import os
import time

from accel.errors import TransportError

_YIELDS = 8
_FIRST_SLEEP_S = 20e-6
_LONGEST_SLEEP_S = 500e-6
_GROWTH = 1.5


class PeerFailed(TransportError):  # noqa: N818
    """A rank that an operation concerns has died; ``MpiEndpoint.failed_ranks`` says which."""


class Backoff:
    """Pauses between polls of one wait, up to ``timeout_s`` (None: no limit) in all."""

    __slots__ = ("_deadline_s", "_sleep_s", "_yields")

    def __init__(self, timeout_s: float | None) -> None:
        self._deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._yields = _YIELDS
        self._sleep_s = _FIRST_SLEEP_S

    def pause(self) -> bool:
        """Sleeps for the next interval. False when the time is up."""
        if self._deadline_s is not None and time.monotonic() >= self._deadline_s:
            return False
        if self._yields:
            self._yields -= 1
            os.sched_yield()
        else:
            time.sleep(self._sleep_s)
            self._sleep_s = min(self._sleep_s * _GROWTH, _LONGEST_SLEEP_S)
        return True
