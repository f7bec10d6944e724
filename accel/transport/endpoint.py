"""What the remote transports need from a carrier of messages: post, probe, test. Nothing here blocks."""

from __future__ import annotations

from typing import Protocol

from accel.errors import TransportError
from accel.transport.base import Bytes


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
    """One rank's door to the others. Not thread-safe. Messages between two ranks are matched in the order sent."""

    rank: int
    size: int
    fault_tolerant: bool
    any_source: int
    any_tag: int

    def send(self, buffer: bytes | Bytes, rank: int, tag: int) -> Request:
        """Starts sending; done when the receiver has matched *and* the buffer is free, so nothing piles up unseen.

        Raises PeerFailed or TransportError, like every method here.
        """
        ...

    def probe(self, source: int, tag: int) -> Incoming | None:
        """Matches the next message from ``source`` with ``tag`` (or any); None when there is none."""
        ...

    def is_done(self, request: Request) -> bool:
        """Whether a transfer is complete."""
        ...

    def failed_ranks(self) -> frozenset[int]:
        """Ranks known to have died; from then on probing any source works again."""
        ...

    def abort_job(self, exit_code: int) -> None:
        """Kills every rank, this one included."""
        ...
