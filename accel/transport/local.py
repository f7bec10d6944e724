"""The transport within one process: deterministic queues, the baseline that needs no MPI.

A ``LocalActor`` and its learner take turns in one thread, where nothing can ever be waited for, so that what would wait
raises TransportError. A ``LocalPort`` stands for an actor in a process of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from accel.errors import TransportError
from accel.json_object import Json
from accel.supervision.activity import Activity
from accel.transport.base import (
    Aborted,
    Arrival,
    Bytes,
    LearnerTransport,
    PolicyUpdate,
    Stopped,
    TransportOptions,
    UnrollPool,
)
from accel.transport.policy_board import PolicyBoard
from accel.transport.wire import decode_message, encode_message


class LocalLearner(LearnerTransport):
    """The end within one process, and what its actors' ends share with it. Nothing is waited for."""

    fault_tolerant = False

    def __init__(self, actors: int = 1, options: TransportOptions | None = None) -> None:
        self.actors = actors
        self.board = PolicyBoard(actors)
        self.welcomes: list[bytes] = []
        self.inbox: list[tuple[int, Json]] = []
        self.pool = UnrollPool(options or TransportOptions())
        self.under_way = [0] * actors
        self.stopping = False
        self.abort_text: str | None = None
        self._present = set(range(actors))

    def alive(self) -> frozenset[int]:
        """Actors that have not left."""
        return frozenset(self._present)

    def welcome(self, message: Json) -> None:
        """Sends every actor a message; see ``LearnerTransport.welcome``."""
        self.welcomes.append(encode_message("welcome", message))

    def messages(self) -> list[tuple[int, Json]]:
        """Hellos and reports since the last call."""
        inbox, self.inbox = self.inbox, []
        return inbox

    def take(self, actor: int, buffer: Bytes) -> None:
        """An actor's unroll, copied."""
        if not self.stopping:
            copy = self.pool.take()
            copy[:] = buffer
            self.pool.ready.append(Arrival(actor, copy))
            self.under_way[actor] += 1

    def leave(self, actor: int) -> None:
        """An actor is gone. What it pushed stays here."""
        self._present.discard(actor)
        self.board.forget(actor)

    def receive(self, timeout_s: float = 0.0) -> Arrival | None:
        """The next unroll: it is there already or not at all."""
        self.pool.check_may_hold()
        if (arrival := self.pool.hold()) is not None:
            self.under_way[arrival.actor] -= 1
        return arrival

    def publish(self, version: int, payload: bytes) -> None:
        """Offers every actor a policy."""
        self.board.publish(version, payload)

    def stop(self, timeout_s: float = 30.0) -> frozenset[int]:
        """Stops the actors, whose goodbyes nobody waits for."""
        self.stopping = True
        self.pool.ready.clear()
        self._present.clear()
        return self.alive()

    def abort(self, message: str, timeout_s: float = 5.0) -> frozenset[int]:
        """Stops the actors with an error."""
        self.abort_text = message
        return self.stop(timeout_s)


class LocalPort:
    """An actor's end in its learner's process: for a supervisor of a process that acts, or of an actor in this thread.

    Buffers are the actor's, and what it pushes is copied.
    """

    fence: None = None

    def __init__(self, learner: LocalLearner, actor: int) -> None:
        self.actor = actor
        self._learner = learner
        self._welcomed = self._buffers = 0
        self._free: list[Bytes] = []

    @property
    def stopping(self) -> bool:
        """Whether the run is over."""
        return self._learner.stopping

    @property
    def has_news(self) -> bool:
        """Whether ``poll_welcome`` or ``pull`` would answer."""
        return len(self._learner.welcomes) > self._welcomed or self._learner.board.has_offer(self.actor)

    def poll_welcome(self) -> Json | None:
        """The learner's next message; None when there is none."""
        if len(self._learner.welcomes) == self._welcomed:
            return None
        self._welcomed += 1
        return decode_message(self._learner.welcomes[self._welcomed - 1])[1]

    def hello(self, message: Json) -> None:
        """Answers the welcome."""
        self._post("hello", message)

    def report(self, message: Json) -> None:
        """Sends a late message."""
        self._post("report", message)

    def _post(self, kind: str, message: Json) -> None:
        self._learner.inbox.append((self.actor, decode_message(encode_message(kind, message))[1]))

    def share(self, ring: Sequence[Bytes]) -> None:
        """The actor's buffers, all of them free now."""
        self._learner.configure(ring[0].nbytes)
        self._free, self._buffers = list(ring), len(ring)

    def try_acquire(self) -> Bytes | None:
        """A free buffer, unless actor and learner have as many unrolls under way as there may be."""
        under_way = self._learner.under_way[self.actor] + self._buffers - len(self._free)
        return self._free.pop() if self._free and under_way < self._buffers else None

    def push(self, buffer: Bytes) -> None:
        """Hands the learner a copy."""
        self._free.append(buffer)
        self._learner.take(self.actor, buffer)

    def pull(self) -> PolicyUpdate | None:
        """The newest policy if one came since the last pull."""
        return self._learner.board.offer(self.actor)

    def beat(self) -> None:
        """Nothing to do: the learner sees this process live."""

    def rejoin(self) -> bool:
        """Nothing to do: nothing was lost on the way."""
        return True


class LocalActor(LocalPort):
    """``ActorTransport`` in the learner's thread."""

    def __init__(self, learner: LocalLearner, actor: int) -> None:
        super().__init__(learner, actor)
        self.activity = Activity()

    def welcome(self, timeout_s: float) -> Json:
        """The learner's next message; see ``ActorTransport.welcome``."""
        self._raise_if_over()
        if (message := self.poll_welcome()) is None:
            raise _waits_forever("welcome()")
        return message

    def configure(self, unroll_bytes: int, in_flight: int) -> None:
        """Fixes the size of an unroll."""
        self.share([np.empty(unroll_bytes, np.uint8) for _ in range(in_flight + 1)])

    def acquire(self) -> Bytes:
        """A free buffer."""
        self._raise_if_over()
        if (buffer := self.try_acquire()) is None:
            raise _waits_forever("acquire()")
        return buffer

    def wait_policy(self, timeout_s: float) -> PolicyUpdate:
        """The newest policy, which is there already."""
        self._raise_if_over()
        if (update := self.pull()) is None:
            raise _waits_forever("wait_policy()")
        return update

    def _raise_if_over(self) -> None:
        if self._learner.abort_text is not None:
            raise Aborted(self._learner.abort_text)
        if self.stopping:
            raise Stopped("the learner asked this actor to stop")


def _waits_forever(what: str) -> TransportError:
    return TransportError(f"{what} would wait forever: learner and actor share one thread")
