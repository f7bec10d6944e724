"""The transport within one process: deterministic queues, the baseline that needs no MPI.

``LocalTransport`` has learner and actor take turns in one thread, where nothing can ever be waited for, so that what
would wait raises TransportError. A ``LocalPort`` stands for an actor in a process of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from accel.errors import TransportError
from accel.json_object import Json
from accel.supervision.activity import Activity
from accel.transport.base import Aborted, Arrival, Bytes, PolicyUpdate, Stopped, TransportOptions, check_unroll_bytes
from accel.transport.policy_board import PolicyBoard
from accel.transport.remote_learner import UnrollPool
from accel.transport.wire import decode_message, encode_message


class LocalTransport:
    """A learner and its actors in one thread: ``learner`` and ``actor(index)`` are the two ends."""

    def __init__(self, actors: int = 1, *, options: TransportOptions | None = None) -> None:
        if actors < 1:
            raise TransportError(f"a transport needs at least one actor, not {actors}")
        hub = Hub(actors, options or TransportOptions())
        self._actors = tuple(LocalActor(hub, index) for index in range(actors))
        self.learner = LocalLearner(hub)

    def actor(self, index: int) -> LocalActor:
        """The end of actor ``index``."""
        return self._actors[index]


@dataclass
class Hub:
    """What both ends share."""

    actors: int
    options: TransportOptions
    queue: deque[Arrival] = field(default_factory=deque)
    inbox: list[tuple[int, Json]] = field(default_factory=list)
    pool: UnrollPool | None = None
    welcomes: list[bytes] = field(default_factory=list)
    stopping: bool = False
    abort_text: str | None = None

    def __post_init__(self) -> None:
        self.board = PolicyBoard(self.actors)
        self.under_way = [0] * self.actors
        self.alive = set(range(self.actors))

    def push(self, actor: int, buffer: Bytes) -> None:
        """An unroll for the learner."""
        self.queue.append(Arrival(actor, buffer))
        self.under_way[actor] += 1

    def configure(self, unroll_bytes: int) -> None:
        """Fixes the size of an unroll; both ends must agree."""
        if self.pool is None:
            self.pool = UnrollPool(unroll_bytes, self.options)
        elif self.pool.unroll_bytes != unroll_bytes:
            raise TransportError(
                f"an unroll has {unroll_bytes} bytes at one end and {self.pool.unroll_bytes} at the other"
            )

    def leave(self, actor: int) -> None:
        """An actor is gone. What it pushed stays with the learner."""
        self.alive.discard(actor)
        self.board.forget(actor)


class _ActorEnd:
    """What an actor of this thread and the port of one in another process have in common: messages."""

    def __init__(self, hub: Hub, actor: int) -> None:
        self.actor = actor
        self.hub = hub
        self._welcomed = 0

    def poll_welcome(self) -> Json | None:
        """The learner's next message; None when there is none."""
        if len(self.hub.welcomes) == self._welcomed:
            return None
        self._welcomed += 1
        return decode_message(self.hub.welcomes[self._welcomed - 1])[1]

    def hello(self, message: Json) -> None:
        """Answers the welcome."""
        self._post("hello", message)

    def report(self, message: Json) -> None:
        """Sends a late message."""
        self._post("report", message)

    def _post(self, kind: str, message: Json) -> None:
        self.hub.inbox.append((self.actor, decode_message(encode_message(kind, message))[1]))


class LocalPort(_ActorEnd):
    """For an actor in a process of its own that this one supervises: what its supervisor tells the learner.

    ``acquire`` and ``push`` are about buffers of the child, which are copied.
    """

    fence: None = None
    is_asking = False

    def __init__(self, hub: Hub, actor: int) -> None:
        super().__init__(hub, actor)
        self._buffers = 0
        self._free: list[Bytes] = []

    @property
    def stopping(self) -> bool:
        """Whether the run is over."""
        return self.hub.stopping

    @property
    def has_news(self) -> bool:
        """Whether ``poll_welcome`` or ``pull`` would answer."""
        return len(self.hub.welcomes) > self._welcomed or self.hub.board.has_offer(self.actor)

    def share(self, ring: Sequence[Bytes]) -> None:
        """The child's buffers, all of them free now."""
        self.hub.configure(ring[0].nbytes)
        self._free, self._buffers = list(ring), len(ring)

    def try_acquire(self) -> Bytes | None:
        """A free buffer of the child, unless that and the learner have as many unrolls under way as there may be."""
        under_way = self.hub.under_way[self.actor] + self._buffers - len(self._free)
        return self._free.pop() if self._free and under_way < self._buffers else None

    def push(self, buffer: Bytes) -> None:
        """Hands the learner a copy."""
        self._free.append(buffer)
        if self.hub.pool is not None and not self.hub.stopping:
            copy = self.hub.pool.take()
            copy[:] = buffer
            self.hub.push(self.actor, copy)

    def pull(self) -> PolicyUpdate | None:
        """The newest policy if one came since the last pull."""
        return self.hub.board.offer(self.actor)

    def beat(self) -> None:
        """Nothing to do: the learner sees this process live."""

    def rejoin(self) -> bool:
        """Nothing to do: nothing was lost on the way."""
        return True

    def ask(self, question: Bytes, answer: Bytes) -> None:
        """Not here."""
        raise TransportError("a central inference rank needs MPI")

    def is_answered(self) -> bool:
        """Never."""
        return False


class LocalActor(_ActorEnd):
    """``ActorTransport`` in the learner's thread."""

    def __init__(self, hub: Hub, actor: int) -> None:
        super().__init__(hub, actor)
        self.stopping = False
        self.activity = Activity()
        self._unroll_bytes: int | None = None
        self._buffers = hub.options.in_flight + 1
        self._lent: dict[int, Bytes] = {}

    def welcome(self, timeout_s: float) -> Json:
        """The learner's next message; see ``ActorTransport.welcome``."""
        self._raise_if_over()
        if (message := self.poll_welcome()) is None:
            raise _waits_forever("welcome()")
        return message

    def configure(self, unroll_bytes: int, in_flight: int | None = None) -> None:
        """Fixes the size of an unroll."""
        check_unroll_bytes(unroll_bytes, self._unroll_bytes)
        self.hub.configure(unroll_bytes)
        self._unroll_bytes = unroll_bytes
        self._buffers = (in_flight or self.hub.options.in_flight) + 1

    def acquire(self) -> Bytes:
        """A free buffer."""
        if self._unroll_bytes is None or self.hub.pool is None:
            raise TransportError("configure() the transport before acquire()")
        self._raise_if_over()
        if len(self._lent) >= self._buffers:
            raise TransportError("every buffer is acquired already; push one before acquiring another")
        if self.hub.under_way[self.actor] + len(self._lent) >= self._buffers:
            raise _waits_forever("acquire()")
        buffer = self.hub.pool.take()
        self._lent[id(buffer)] = buffer
        return buffer

    def push(self, buffer: Bytes) -> None:
        """Hands an acquired buffer to the learner."""
        if self._lent.pop(id(buffer), None) is None:
            raise TransportError("push() takes a buffer from acquire(), once")
        if not self.hub.stopping:
            self.hub.push(self.actor, buffer)

    def pull(self) -> PolicyUpdate | None:
        """The newest policy if one came since the last pull."""
        self.stopping = self.hub.stopping
        return None if self.hub.board.is_idle else self.hub.board.offer(self.actor)

    def wait_policy(self, timeout_s: float) -> PolicyUpdate:
        """The newest policy, which is there already."""
        self._raise_if_over()
        if (update := self.pull()) is None:
            raise _waits_forever("wait_policy()")
        return update

    def pump(self) -> None:
        """Nothing to do: hand-over needs no help."""

    def close(self, timeout_s: float = 10.0) -> None:
        """Says goodbye."""
        self.hub.leave(self.actor)
        self.stopping = True

    def _raise_if_over(self) -> None:
        self.stopping = self.hub.stopping
        if self.hub.abort_text is not None:
            raise Aborted(self.hub.abort_text)
        if self.hub.stopping:
            raise Stopped("the learner asked this actor to stop")


def _waits_forever(what: str) -> TransportError:
    return TransportError(f"{what} would wait forever: learner and actor share one thread")


class LocalLearner:
    """``LearnerTransport`` within one process. In one thread nothing is waited for."""

    fault_tolerant = False

    def __init__(self, hub: Hub) -> None:
        self.actors = hub.actors
        self.hub = hub
        self._unroll_bytes: int | None = None

    def alive(self) -> frozenset[int]:
        """Actors that have not said goodbye."""
        return frozenset(self.hub.alive)

    def dead(self) -> frozenset[int]:
        """None: actors in this process end with it."""
        return frozenset()

    def silent(self) -> frozenset[int]:
        """None: nothing is between the two ends."""
        return frozenset()

    def welcome(self, message: Json) -> None:
        """Sends every actor a message; see ``LearnerTransport.welcome``."""
        self.hub.welcomes.append(encode_message("welcome", message))

    def messages(self) -> list[tuple[int, Json]]:
        """Hellos and reports since the last call."""
        inbox, self.hub.inbox = self.hub.inbox, []
        return inbox

    def configure(self, unroll_bytes: int) -> None:
        """Fixes the size of an unroll."""
        check_unroll_bytes(unroll_bytes, self._unroll_bytes)
        self.hub.configure(unroll_bytes)
        self._unroll_bytes = unroll_bytes

    def receive(self, timeout_s: float = 0.0) -> Arrival | None:
        """The next unroll: it is there already or not at all."""
        hub = self.hub
        if self._unroll_bytes is None or hub.pool is None:
            raise TransportError("configure() the transport before receive()")
        hub.pool.check_may_hold()
        if not hub.queue:
            return None
        arrival = hub.queue.popleft()
        hub.under_way[arrival.actor] -= 1
        return hub.pool.hold(arrival)

    def release(self, arrival: Arrival) -> None:
        """Gives an arrival's buffer back."""
        if self.hub.pool is None:
            raise TransportError("release() takes an arrival from receive(), once")
        self.hub.pool.release(arrival)

    def publish(self, version: int, payload: bytes) -> None:
        """Offers every actor a policy."""
        self.hub.board.publish(version, payload)

    def pump(self) -> None:
        """Nothing to do: hand-over needs no help."""

    def stop(self, timeout_s: float = 30.0) -> frozenset[int]:
        """Stops the actors, whose goodbyes nobody waits for."""
        self.hub.stopping = True
        self.hub.queue.clear()
        self.hub.alive.clear()
        return self.alive()

    def abort(self, message: str, timeout_s: float = 5.0) -> frozenset[int]:
        """Stops the actors with an error."""
        self.hub.abort_text = message
        return self.stop(timeout_s)

    def close(self) -> None:
        """Stops the actors unless they were stopped."""
        if not self.hub.stopping:
            self.stop(5.0)
