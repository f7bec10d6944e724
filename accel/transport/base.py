"""The transport's two protocols, their messages and common options.

Guarantees, for every implementation and held by one contract suite:

- Unrolls of one actor arrive in the order in which it pushed them, each exactly once, byte for byte.
- Memory is bounded on both sides: an actor has ``in_flight + 1`` buffers, the learner at most ``max_held`` unreleased
  plus ``prefetch`` taken ahead; a slow learner makes actors wait.
- An actor sees the newest policy only, and never an older version after a newer one.
- Nothing that the learner calls waits for an actor, except ``welcome`` (a moment), ``stop``, ``abort`` and ``close``,
  which have time limits.
- Where the carrier is fault tolerant, an actor that dies leaves ``alive`` and disturbs nobody else. A dead learner is a
  TransportError in whatever the actor calls next.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from accel.errors import TransportError
from accel.json_object import Json
from accel.supervision.activity import Activity

Bytes = npt.NDArray[np.uint8]
_CLOSE_S = 5.0


class Stopped(Exception):  # noqa: N818 - like StopIteration, no error
    """The learner asked this actor to stop: the end of the actor's loop, not an error."""


class Aborted(TransportError):  # noqa: N818
    """The learner aborted the run; the message is the learner's, which has already reported it."""


@dataclass(frozen=True)
class TransportOptions:
    """Bounds on what a transport keeps.

    Attributes:
        max_held: arrivals that the learner may keep unreleased at once; >= 1. At least the unrolls of one batch, unless
            each is copied out and released at once.
        prefetch: unrolls that the learner takes ahead of ``receive``; >= 1. More hides a slow network, and adds lag.
        silence_s: how long an actor that sends signs of life may be silent before the learner fences it off; None: for
            ever. lost_s: how long before it counts as dead.
    """

    max_held: int = 16
    prefetch: int = 4
    silence_s: float | None = None
    lost_s: float = 120.0


@dataclass(frozen=True, eq=False, slots=True)
class Arrival:
    """An unroll that has arrived. ``buffer`` [unroll_bytes] belongs to the transport; give it back with ``release``."""

    actor: int
    buffer: Bytes


@dataclass(frozen=True, slots=True)
class PolicyUpdate:
    """A policy newer than the last one pulled.

    Attributes:
        version: policy version, as published.
        payload: what ``publish`` was given, or None when it is byte for byte the policy pulled last.
        publication: the number of the ``publish`` that it is of; from 1.
        content: the number of the one that brought its payload; 0: unknown.
    """

    version: int
    payload: bytes | None
    publication: int = 0
    content: int = 0


class ActorTransport(Protocol):
    """An actor's end. ``activity`` is where its progress is shown to whoever watches it."""

    actor: int
    activity: Activity

    def welcome(self, timeout_s: float) -> Json:
        """The learner's next message of the handshake, waited for; each is received once, in order. Raises
        TransportError: none in time, the learner is gone, it speaks other formats; Aborted: it gave up."""

    def hello(self, message: Json) -> None:
        """Answers the welcome: what this actor is, or ``{"error": ...}``."""

    def configure(self, unroll_bytes: int, in_flight: int) -> None:
        """Fixes the size of an unroll and allocates ``in_flight + 1`` buffers, as so many may be under way while the
        next is filled. Once, before ``acquire``."""

    def acquire(self) -> Bytes:
        """A free buffer [unroll_bytes] with arbitrary content. Waits while all are in flight. Raises Stopped, Aborted,
        TransportError."""

    def push(self, buffer: Bytes) -> None:
        """Sends an acquired buffer, which the caller may not touch any more. Returns at once."""

    def pull(self) -> PolicyUpdate | None:
        """The newest policy if one came since the last pull. Returns at once."""

    def wait_policy(self, timeout_s: float) -> PolicyUpdate:
        """Like ``pull``, but waits for a policy. Raises Stopped, Aborted, TransportError (timeout included)."""

    def report(self, message: Json) -> None:
        """A late message to the learner: a warning, an error."""


class LearnerTransport(Protocol):
    """The learner's end; what it does of itself is right where nothing is between the two ends.

    Attributes:
        stopping: whether it was stopped, or the run aborted. pool: the unrolls' buffers, and those that wait.
    """

    actors: int
    fault_tolerant: bool
    stopping: bool
    pool: UnrollPool

    def alive(self) -> frozenset[int]:
        """Actors that have neither died nor said goodbye, and are not silent."""

    def dead(self) -> frozenset[int]:
        """Actors that ended without a goodbye."""
        return frozenset()

    def silent(self) -> frozenset[int]:
        """Actors that gave no sign of life for too long, and are not dead yet: what they send is ignored. One that is
        heard again is told to start anew, and is alive when it has."""
        return frozenset()

    def welcome(self, message: Json) -> None:
        """Sends every actor a message of the handshake: its configuration, then what follows from its answer."""

    def messages(self) -> list[tuple[int, Json]]:
        """(actor, message) of every hello and report since the last call, oldest first."""

    def configure(self, unroll_bytes: int) -> None:
        """Fixes the size of an unroll. Once, before ``receive``."""
        self.pool.configure(unroll_bytes)

    def receive(self, timeout_s: float = 0.0) -> Arrival | None:
        """The next unroll, or None when there was none in time. Raises TransportError: an unroll of another size, or
        every buffer is held by the caller."""

    def release(self, arrival: Arrival) -> None:
        """Gives an arrival's buffer back; the caller may not touch it any more."""
        self.pool.release(arrival)

    def publish(self, version: int, payload: bytes) -> None:
        """Offers every actor a policy.

        Returns at once. While an actor's last policy is on its way, the newest waits and replaces what waited. A
        payload that equals the one the actor got last is not resent: only its version is; so keep the version itself
        out of the payload. Raises TransportError: ``version`` goes down.
        """

    def pump(self) -> None:
        """Lets transfers progress, about a microsecond when there are none. Call it often."""
        return

    def stop(self, timeout_s: float = 30.0) -> frozenset[int]:
        """Asks actors to stop and drains what is in flight (unrolls are dropped, messages kept) until each has said
        goodbye or died. Returns the actors that did neither in time; may be called again for them."""

    def abort(self, message: str, timeout_s: float = 5.0) -> frozenset[int]:
        """Like ``stop``, but actors raise Aborted with ``message``."""

    def close(self) -> None:
        """``stop`` with a short limit unless stopped already. Idempotent."""
        if not self.stopping:
            self.stop(_CLOSE_S)


def check_unroll_bytes(unroll_bytes: int) -> None:
    """Raises TransportError for a size that cannot be sent."""
    if not 0 < unroll_bytes < 1 << 31:
        raise TransportError(
            f"an unroll of {unroll_bytes} bytes cannot be sent, 2³¹-1 at most: lower --unroll-length or "
            "--envs-per-actor"
        )


class UnrollPool:
    """Buffers of one size, each free, being received into, ready, or held by the learner.

    Made on first need and reused: never more than ``max_held`` plus what the learner takes ahead, and what silent
    actors had under way.

    Attributes:
        unroll_bytes: of each; 0: not known yet. ready: what the learner may hold next.
    """

    def __init__(self, options: TransportOptions) -> None:
        self.unroll_bytes = 0
        self.ready: deque[Arrival] = deque()
        self._max_held = options.max_held
        self._free: list[Bytes] = []
        self._held: dict[int, Bytes] = {}

    def configure(self, unroll_bytes: int) -> None:
        """Fixes the size. Raises TransportError: it cannot be sent, or was another one."""
        check_unroll_bytes(unroll_bytes)
        if self.unroll_bytes not in (0, unroll_bytes):
            raise TransportError(f"an unroll has {unroll_bytes} bytes at one end and {self.unroll_bytes} at the other")
        self.unroll_bytes = unroll_bytes

    def take(self) -> Bytes:
        """A free buffer."""
        return self._free.pop() if self._free else np.empty(self.unroll_bytes, np.uint8)

    def put_back(self, buffer: Bytes) -> None:
        """Returns a buffer that the learner never saw, if it is one of these."""
        if buffer.nbytes == self.unroll_bytes:
            self._free.append(buffer)

    def check_may_hold(self) -> None:
        """Raises TransportError when there is no size yet, or the learner holds as many arrivals as it may."""
        if not self.unroll_bytes:
            raise TransportError("configure() the transport before receive()")
        if len(self._held) >= self._max_held:
            raise TransportError(
                f"{self._max_held} arrivals are held and none was released; release() some, or raise max_held"
            )

    def hold(self) -> Arrival | None:
        """The next arrival, whose buffer the learner owns from now on; None: there is none."""
        if not self.ready:
            return None
        arrival = self.ready.popleft()
        self._held[id(arrival.buffer)] = arrival.buffer
        return arrival

    def release(self, arrival: Arrival) -> None:
        """Takes a buffer back from the learner."""
        if self._held.pop(id(arrival.buffer), None) is None:
            raise TransportError("release() takes an arrival from receive(), once")
        self._free.append(arrival.buffer)
