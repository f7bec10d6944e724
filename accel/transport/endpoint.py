"""What the remote transports need from a carrier of messages: post, probe, test; and how to wait for it.

Nothing here blocks; a wait polls a few times, then sleeps for increasing intervals.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Protocol

from accel.errors import TransportError
from accel.transport.base import Bytes

_YIELDS = 8
_FIRST_SLEEP_S = 20e-6
_LONGEST_SLEEP_S = 500e-6
_GROWTH = 1.5


class PeerFailed(TransportError):  # noqa: N818
    """A rank that an operation concerns has died; ``Endpoint.failed_ranks`` says which."""


class Request(Protocol):
    """A transfer under way."""

    def Test(self) -> bool:  # noqa: N802
        """Whether the transfer is complete; lets it progress."""
        ...


class Incoming(Protocol):
    """A message that has been matched and must now be received."""

    source: int
    tag: int
    nbytes: int

    def receive(self, buffer: Bytes) -> Request:
        """Starts receiving into ``buffer`` [at least nbytes], which must stay alive and untouched until done."""
        ...


class Endpoint(Protocol):
    """One rank's link to the others. Not thread-safe. Messages between two ranks are matched in the order sent.

    Attributes:
        largest_bytes: of a message.
    """

    rank: int
    size: int
    fault_tolerant: bool
    largest_bytes: int
    any_source: int
    any_tag: int

    def send(self, buffer: bytes | Bytes, rank: int, tag: int) -> Request:
        """Starts sending; done when the receiver has matched *and* the buffer is free, so messages do not accumulate.

        Raises PeerFailed or TransportError, like every method here.
        """
        ...

    def probe(self, source: int, tag: int) -> Incoming | None:
        """Matches the next message from ``source`` with ``tag`` (or any); None when there is none."""
        ...

    def is_done(self, request: Request) -> bool:
        """Whether a transfer is complete."""
        ...

    def over(self, requests: Sequence[Request]) -> tuple[Sequence[int], bool]:
        """Places of the sends that are complete or never will be, and whether one never will be: its receiver died.

        One call for many; more calls find those that had not progressed yet.
        """
        ...

    def failed_ranks(self) -> frozenset[int]:
        """Ranks known to have died; from then on probing any source works again."""
        ...

    def abort_job(self, exit_code: int) -> None:
        """Kills every rank, this one included."""
        ...


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
