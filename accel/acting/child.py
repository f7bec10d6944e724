"""An actor in a child process of its MPI rank: what the two share, the child's end, and the rank's. No torch.

Environments are other people's code: they crash, exit, hang. In a process of their own, which MPI does not know, that
costs the process and not the rank: the rank (``ActorSupervisor``) kills what is left of it and starts another, which
gets the same messages of the handshake, with an incarnation that gives it seeds of its own, and the newest policy. What
was sent before stays; the unroll that was being written is lost.

The two share a socket for messages and memory for unrolls and the newest policy (``Link``), all inherited by the child
and without a name, so that nothing outlives them, however they end. The child (``ChildActor``) writes an unroll where
the rank sends it from: a message passes between the two for each unroll, none for a step.

What its environments start ends with a child (``accel.supervision.process_tree``).

Two clocks tell that a child must be replaced. Its process lives: it has not ended, and was not stopped for longer than
``STOPPED_S``. Its environments make progress: a step takes at most ``actor_timeout_s``; construction and resets may
take as long as ranks wait for each other. The rank itself tells the learner that it lives, with every unroll and every
``BEAT_S``; and when a step or reset takes ``LATE_S`` and ``LATE_TIMES`` the longest one before it, so that no round of
the synchronous schedule waits for it, hung or not.

Restarts back off exponentially, and the actor ends after ``max_actor_restarts`` failures in a row
(``accel.supervision.restarts``). An environment that does not keep to gymnasium's interface ends
the actor at its first failure.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Self, cast

import numpy as np

from accel.config.actor import ActorConfig
from accel.errors import TransportError
from accel.json_object import Json
from accel.supervision.activity import PREPARING, STEPPING, WAITING, WORDS, Activity, hang_message
from accel.supervision.clock import ListeningClock
from accel.supervision.proc import process_started, process_state
from accel.supervision.process_tree import ProcessTree
from accel.supervision.restarts import STEADY_S, Restarts, describe_end
from accel.system.memory import anonymous_memory
from accel.transport.base import Bytes, PolicyUpdate, Stopped, check_unroll_bytes
from accel.transport.node_memory import PolicySlot
from accel.transport.remote_actor import RemoteActor
from accel.transport.wire import decode_message, encode_message

BEAT_S = 2.0
STOPPED_S = 10.0
LATE_S, LATE_TIMES = 1.0, 5.0
EXIT_ABORTED = 3
_LOOK_S = 0.1
_GRACE_S, _STEP_GRACE_S = 5.0, 1.0
_SHORT_SLEEP_S, _LONG_SLEEP_S, _GROWTH = 0.3e-3, 2e-3, 2.0
# While the child waits for the learner, looks come later by a twentieth each: what it waits for is seen within a
# twentieth of the time that it took.
_LONGEST_WAIT_S, _WAIT_GROWTH = 5e-3, 1.05
_ANSWER_SLEEP_S = 10e-6
_POLICY_LOOK_S = 0.005

_LENGTH = struct.Struct("<I")


class LinkLostError(TransportError):
    """The other process is gone."""

    def __init__(self) -> None:
        super().__init__("the other process of this actor is gone")


class Link:
    """One end of all that is shared. ``files`` are the numbers that ``adopt`` takes in the child.

    Args:
        connection: this end's socket. ring, policy, activity, exchange: files of memory.
    """

    def __init__(self, connection: socket.socket, ring: int, policy: int, activity: int, exchange: int) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._files: tuple[int, ...] = (ring, policy, activity, exchange)
        self._received, self._unsent = bytearray(), bytearray()
        self.activity = Activity(memoryview(mmap.mmap(activity, 8 * WORDS)).cast("q"))
        self.policies = PolicySlot(policy)

    @classmethod
    def make(cls) -> tuple[Self, socket.socket]:
        """A rank's end, and the socket for its first child."""
        ours, theirs = socket.socketpair()
        files = [anonymous_memory() for _ in range(4)]
        os.ftruncate(files[2], 8 * WORDS)
        link = cls(ours, *files)
        link.activity.enter(PREPARING)
        return link, theirs

    def renew(self) -> socket.socket:
        """The socket for another child: what the last one may still have written is never read."""
        self._socket.close()
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        self._received.clear()
        self._unsent.clear()
        self.activity.enter(PREPARING)
        return theirs

    def files(self, theirs: socket.socket) -> tuple[int, ...]:
        """What a child inherits and gives to ``adopt``."""
        return theirs.fileno(), *self._files

    @classmethod
    def adopt(cls, files: tuple[int, ...]) -> Self:
        """The child's end."""
        return cls(socket.socket(fileno=files[0]), *files[1:])

    def close(self) -> None:
        """Give everything back but the memory, which lives as long as somebody has a buffer of it."""
        self._socket.close()
        for file in self._files:
            os.close(file)
        self._files = ()

    def buffers(self, unroll_bytes: int, count: int) -> list[Bytes]:
        """The unrolls' memory: the same at both ends, each buffer on pages of its own."""
        return _lay_out(self._files[0], [unroll_bytes] * count)

    def exchange(self, question_bytes: int, answer_bytes: int) -> list[Bytes]:
        """The memory of a question to the inference rank and of its answer, the same at both ends."""
        return _lay_out(self._files[3], [question_bytes, answer_bytes])

    def send(self, kind: str, body: Mapping[str, object]) -> None:
        """Queue a message and send what can be sent."""
        encoded = encode_message(kind, dict(body))
        self._unsent += _LENGTH.pack(len(encoded)) + encoded
        self.flush()

    def flush(self, wait: bool = False) -> None:
        """Send what is queued, or as much as fits. Raises LinkLostError."""
        try:
            while self._unsent:
                try:
                    del self._unsent[: self._socket.send(self._unsent)]
                except BlockingIOError:
                    if not wait:
                        return
                    select.select([], [self._socket], [])
        except OSError as error:
            raise LinkLostError from error

    def receive(self) -> list[tuple[str, Json]]:
        """Every whole message that has come. Raises LinkLostError: the other process is gone, and all was read."""
        found: list[tuple[str, Json]] = []
        while True:
            try:
                chunk = self._socket.recv(1 << 16)
            except BlockingIOError:
                return found
            except OSError:
                chunk = b""
            if not chunk:
                if found:
                    return found
                raise LinkLostError
            self._received += chunk
            while len(self._received) >= _LENGTH.size:
                end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
                if len(self._received) < end:
                    break
                found.append(decode_message(bytes(self._received[_LENGTH.size : end])))
                del self._received[:end]

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until something has come; False when the time is up."""
        return bool(select.select([self._socket], [], [], timeout_s)[0])


def _lay_out(file: int, sizes: Sequence[int]) -> list[Bytes]:
    """Buffers in a file of memory, each on pages of its own."""
    ends = np.cumsum([-(-size // mmap.PAGESIZE) * mmap.PAGESIZE for size in sizes]).tolist()
    if os.fstat(file).st_size < ends[-1]:
        os.ftruncate(file, ends[-1])
    memory = mmap.mmap(file, ends[-1])
    return [np.frombuffer(memory, np.uint8, size, start) for size, start in zip(sizes, [0, *ends[:-1]], strict=True)]


class ChildActor:
    """``ActorTransport`` over a ``Link``. ``actor`` is known from the first welcome on."""

    def __init__(self, link: Link) -> None:
        self.actor = -1
        self.stopping = False
        self.activity: Activity = link.activity
        self._link = link
        self._welcomes: deque[Json] = deque()
        self._ring: list[Bytes] = []
        self._numbers: dict[int, int] = {}
        self._free: list[Bytes] = []
        self._answers = 0

    def welcome(self, timeout_s: float) -> Json:
        """The learner's next message of the handshake, as the rank hands it on."""
        if not self._until(lambda: bool(self._welcomes), timeout_s):
            raise TransportError(f"no word from the learner within {timeout_s:g} s; is it stuck?")
        return self._welcomes.popleft()

    def hello(self, message: Json) -> None:
        """Answers the welcome."""
        self._link.send("hello", message)
        self._link.flush(wait=True)

    def report(self, message: Json) -> None:
        """A late message to the learner, or the last one to the rank."""
        self._link.send("report", message)
        self._link.flush(wait=True)

    def configure(self, unroll_bytes: int, in_flight: int | None = None) -> None:
        """Fixes the size of an unroll; the rank and this process map the same buffers."""
        check_unroll_bytes(unroll_bytes, self._ring[0].nbytes if self._ring else None)
        count = (in_flight or 2) + 1
        self._ring = self._link.buffers(unroll_bytes, count)
        self._numbers = {id(buffer): number for number, buffer in enumerate(self._ring)}
        self._link.send("configure", {"unroll_bytes": unroll_bytes, "buffers": count})

    def acquire(self) -> Bytes:
        """A free buffer; see ``ActorTransport.acquire``."""
        self._progress()
        self._raise_if_over()
        if not self._free:
            self._until(lambda: bool(self._free), None)
        return self._free.pop()

    def push(self, buffer: Bytes) -> None:
        """Hands an acquired buffer to the rank."""
        self._link.send("unroll", {"buffer": self._numbers[id(buffer)]})
        self._link.flush(wait=True)

    def pull(self) -> PolicyUpdate | None:
        """The newest policy if one came since the last pull."""
        self._progress()
        return self._link.policies.read()

    def wait_policy(self, timeout_s: float) -> PolicyUpdate:
        """Waits for a policy."""
        found: list[PolicyUpdate] = []

        def arrived() -> bool:
            if (update := self._link.policies.read()) is not None:
                found.append(update)
            return bool(found)

        if not self._until(arrived, timeout_s, look_s=_POLICY_LOOK_S):
            raise TransportError(f"no policy from the learner within {timeout_s:g} s")
        return found[-1]

    def open_exchange(self, question_bytes: int, answer_bytes: int) -> tuple[Bytes, Bytes]:
        """See ``InferenceTransport.open_exchange``."""
        question, answer = self._link.exchange(question_bytes, answer_bytes)
        self._link.send("exchange", {"question_bytes": question_bytes, "answer_bytes": answer_bytes})
        return question, answer

    def ask(self, timeout_s: float) -> None:
        """See ``InferenceTransport.ask``."""
        self._answers = 0
        self._link.send("question", {})
        if not self._until(lambda: self._answers > 0, timeout_s):
            raise TransportError(f"no answer from the inference rank within {timeout_s:g} s")

    def pump(self) -> None:
        """Nothing to do: the rank sees to transfers."""

    def close(self, timeout_s: float = 10.0) -> None:
        """Nothing to do: the rank says goodbye."""

    def _until(self, ready: Callable[[], bool], timeout_s: float | None, look_s: float | None = None) -> bool:
        """Waits for ``ready``, which messages bring about; what comes without one is looked for every ``look_s``.

        Raises Stopped, LinkLostError.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        before = self.activity.enter(WAITING)
        try:
            while True:
                self._progress()
                self._raise_if_over()
                if ready():
                    return True
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0.0:
                    return False
                self._link.wait(min((limit for limit in (left, look_s) if limit is not None), default=None))
        finally:
            self.activity.enter(before)

    def _progress(self) -> None:
        for kind, body in self._link.receive():
            if kind == "free":
                self._free.append(self._ring[int(str(body["buffer"]))])
            elif kind == "welcome":
                self.actor = int(str(body["actor"]))
                message = body["message"]
                self._welcomes.append(message if isinstance(message, dict) else {})
            elif kind == "answer":
                self._answers += 1
            elif kind == "stop":
                self.stopping = True
            elif kind != "policy":  # A wake-up: the policy itself is in the slot.
                raise TransportError(f"the rank sent an unknown kind of message: {kind}")

    def _raise_if_over(self) -> None:
        if self.stopping:
            raise Stopped("the learner asked this actor to stop")


def adopt_link(files: str) -> Link:
    """The child's end of what it inherited, as the rank wrote it on the command line."""
    numbers = tuple(int(number) for number in files.split(","))
    for number in numbers:
        os.set_inheritable(number, False)
    return Link.adopt(numbers)


class ActorSupervisor:
    """An actor's rank. Its first child starts at once, so that it imports what it needs while MPI starts.

    Args:
        command: starts a child; the numbers of the files that it inherits are added as one more word.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)
        self._link, theirs = Link.make()
        self._tree = self._start(theirs)
        self._clock = ListeningClock(_LOOK_S)
        self._beat_s = self._look_s = 0.0
        self._sleep_s = _SHORT_SLEEP_S
        self._config: ActorConfig | None = None
        self._told: list[Json] = []
        self._handed_on = 0
        self._answer: Json | None = None
        self._ring: list[Bytes] = []
        self._lent: set[int] = set()
        self._numbers: dict[int, int] = {}
        self._restarts = Restarts()
        self._unrolls = self._incarnation = 0
        self._ready_s: float | None = None
        self._down_until_s: float | None = None
        self._last_words: Json = {}
        self._seen = (-1, -1)
        self._progress_s = self._running_s = self._longest_s = 0.0
        self._is_late = False
        self._cut_off_s: float | None = None
        self._over = False
        self._exchange: list[Bytes] = []
        self._asks = self._is_asked = False

    def serve(self, transport: RemoteActor) -> int:
        """Act through children until the learner stops this actor, or it fails for good; returns the exit status.

        Raises:
            TransportError: the learner is gone.
        """
        try:
            while not transport.stopping and not self._over:
                self._turn(transport)
            self._leave(transport)
            return EXIT_ABORTED if transport.aborted else 0
        finally:
            self.close()

    def close(self) -> None:
        """End the child."""
        self._kill()
        self._link.close()

    def _turn(self, transport: RemoteActor) -> None:
        """One look at everybody: some ten microseconds, so that a thousand a second are a hundredth of a core."""
        is_there = self._down_until_s is None and self._cut_off_s is None
        is_heard = self._pause(is_there)
        self._clock.look()
        transport.pump()
        if transport.has_news:
            self._hear_learner(transport)
        if is_heard:
            self._hear_child(transport)
        if self._exchange:
            self._mediate(transport)
        if is_there:
            self._hand_on(transport)
            self._offer_buffers(transport)
        if self._clock.s >= self._look_s:
            self._look_s = self._clock.s + _LOOK_S
            self._look(transport)
            if self._clock.s >= self._beat_s and self._told:
                self._beat_s = self._clock.s + BEAT_S
                transport.beat()

    def _pause(self, is_there: bool) -> bool:
        """Sleep until the child says something, or it is time to look at MPI again; whether the child did."""
        waits = self._link.activity.words[1] == WAITING
        growth, longest_s = (_WAIT_GROWTH, _LONGEST_WAIT_S) if waits else (_GROWTH, _LONG_SLEEP_S)
        self._sleep_s = min(self._sleep_s * growth, longest_s)
        if not is_there:
            time.sleep(self._sleep_s)
            return False
        is_heard = self._link.wait(self._sleep_s)
        if is_heard:
            self._sleep_s = _SHORT_SLEEP_S
        return is_heard

    def _hear_learner(self, transport: RemoteActor) -> None:
        while (message := transport.poll_welcome()) is not None:
            self._told.append(message)
            if self._config is None:
                self._config = ActorConfig.from_json(message)
        if (update := transport.pull()) is not None:
            self._link.policies.write(update)
            if self._link.activity.words[1] == WAITING and self._down_until_s is None:
                self._send("policy", {})

    def _hand_on(self, transport: RemoteActor) -> None:
        """The learner's messages, to a child that does not have them yet."""
        while self._handed_on < len(self._told):
            message = self._told[self._handed_on]
            if self._handed_on == 0 and self._config is not None and self._incarnation:
                config = self._config
                spec = {} if self._answer is None else cast(Json, self._answer.get("spec", {}))
                agents = int(str(spec.get("agents", 1)))
                per_unroll = config.actors * config.envs_per_actor * agents * config.unroll_length
                env_steps = config.env_steps + self._unrolls * per_unroll
                message = replace(config, incarnation=self._incarnation, env_steps=env_steps).to_json()
            self._handed_on += 1
            self._send("welcome", {"actor": transport.actor, "message": message})

    def _mediate(self, transport: RemoteActor) -> None:
        """Pass the child's question on, and the answer back: those of a child that is gone are nobody's."""
        if transport.is_answered() and self._is_asked:
            self._is_asked = False
            self._send("answer", {})
        if self._asks and not transport.is_asking:
            self._asks, self._is_asked = False, True
            transport.ask(*self._exchange)
        if self._is_asked:
            self._sleep_s = min(self._sleep_s, _SHORT_SLEEP_S)

    def _send(self, kind: str, body: Json) -> None:
        try:
            self._link.send(kind, body)
        except TransportError:
            self._cut_off_s = self._clock.s  # The child is gone; a look at it will tell how.

    def _hear_child(self, transport: RemoteActor) -> None:
        if self._down_until_s is not None:
            return
        try:
            messages = self._link.receive()
        except TransportError:
            self._cut_off_s = self._clock.s
            return
        for kind, body in messages:
            self._progress_s = self._clock.s
            if kind == "unroll":
                number = int(str(body["buffer"]))
                self._lent.discard(number)
                self._unrolls += 1
                transport.push(self._ring[number])
            elif kind == "question":
                self._asks = True
                self._sleep_s = _ANSWER_SLEEP_S
            elif kind == "exchange":
                self._exchange = self._link.exchange(int(str(body["question_bytes"])), int(str(body["answer_bytes"])))
            elif kind == "report" and "error" in body:
                self._last_words = body
            elif kind == "report":
                transport.report(body)
            elif kind == "hello":
                self._take_answer(transport, body)
            elif kind == "configure":
                self._configure(transport, body)

    def _take_answer(self, transport: RemoteActor, body: Json) -> None:
        """What a child says of its environments: the first one's is the learner's to judge."""
        if self._answer is None and not self._incarnation and "error" in body:
            self._answer = body
            transport.hello(body)
        elif "error" in body:
            self._fail(transport, f"its environments cannot be made: {body['error']}")
        elif self._answer is None:
            self._answer = body
            transport.hello(body | {"pid": os.getpid(), "started": process_started(os.getpid())})
        elif body["spec"] != self._answer.get("spec"):
            self._fail(transport, "its environments have other spaces than before")

    def _configure(self, transport: RemoteActor, body: Json) -> None:
        """A child is ready to act."""
        unroll_bytes, buffers = int(str(body["unroll_bytes"])), int(str(body["buffers"]))
        if not self._ring:
            self._ring = self._link.buffers(unroll_bytes, buffers)
            self._numbers = {id(buffer): number for number, buffer in enumerate(self._ring)}
            transport.configure(unroll_bytes, ring=self._ring)
        for number in self._lent:
            self._send("free", {"buffer": number})
        self._ready_s = self._clock.s
        if self._incarnation:
            transport.report({"up": self._incarnation})

    def _offer_buffers(self, transport: RemoteActor) -> None:
        """Give the child every buffer that is free."""
        while self._ready_s is not None and (buffer := transport.try_acquire()) is not None:
            number = self._numbers[id(buffer)]
            self._lent.add(number)
            self._send("free", {"buffer": number})

    def _look(self, transport: RemoteActor) -> None:
        """Judge the child, or start another when its time has come."""
        if self._config is None:
            return
        status = self._child.poll()
        if self._down_until_s is not None:
            if status is not None and self._clock.s >= self._down_until_s:
                if transport.fence is None or transport.rejoin():
                    self._replace(transport)
            return
        if transport.fence is not None:  # The learner had not heard of this rank: everything before is too late.
            self._kill(wait=False)
            self._down_until_s, self._ready_s = self._clock.s, None
            return
        if status is not None:
            self._hear_child(transport)  # what it had sent before
            self._fail(transport, describe_end(status, self._last_words))
            return
        if self._cut_off_s is not None:
            if self._clock.s > self._cut_off_s + _GRACE_S:
                self._kill(wait=False)  # It closed what it shares, and stays.
            return
        with suppress(TransportError):
            self._link.flush()
        activity = self._link.activity.words
        seen = (activity[0], activity[1])
        if seen != self._seen or activity[1] not in (STEPPING, PREPARING):
            if self._ready_s is not None:
                self._longest_s = max(self._longest_s, self._clock.s - self._progress_s)
            self._seen, self._progress_s = seen, self._clock.s
        is_late = self._clock.s > self._progress_s + LATE_S + LATE_TIMES * self._longest_s
        if is_late != self._is_late and self._ready_s is not None:
            self._is_late = is_late
            transport.report({"late": is_late})
        if process_state(self._child.pid) != "T":
            self._running_s = self._clock.s
        limit_s = self._config.actor_timeout_s
        if activity[1] == PREPARING:
            limit_s = max(limit_s, self._config.peer_timeout_s)
        if self._clock.s > self._running_s + STOPPED_S:
            self._fail(transport, f"its process was stopped for {STOPPED_S:g} s")
        elif self._clock.s > self._progress_s + limit_s:
            self._fail(transport, hang_message(activity[1], limit_s))

    def _fail(self, transport: RemoteActor, why: str) -> None:
        """Report a failure, end what is left of the child, and say when another one starts."""
        self._kill(wait=False)
        if self._config is None or (self._answer is not None and "error" in self._answer):
            self._down_until_s = float("inf")  # The learner knows, and ends the run.
            return
        is_steady = self._ready_s is not None and self._clock.s > self._ready_s + STEADY_S
        pause_s = self._restarts.fail(self._config.max_actor_restarts, is_steady)
        words, self._last_words = self._last_words, {}
        told: Json = {"down": why, "failures": self._restarts.failures, "traceback": words.get("traceback", "")}
        told["final"] = bool(words.get("final")) and not is_steady  # As soon as it began: so will the next one.
        if pause_s is None or told["final"]:
            told["gave_up"] = True
            self._give_up(transport, told)
            return
        self._down_until_s = self._clock.s + pause_s
        self._ready_s = None
        transport.report(told | {"again_in_s": pause_s})

    def _give_up(self, transport: RemoteActor, told: Json) -> None:
        if self._answer is None:
            transport.hello({"error": told["down"], "kind": "EnvError"})
            self._down_until_s = float("inf")
        else:
            transport.report(told)
            self._over = True

    def _replace(self, transport: RemoteActor) -> None:
        self._incarnation += 1
        self._handed_on = 0
        self._asks = self._is_asked = False
        self._down_until_s = self._cut_off_s = None
        self._progress_s = self._running_s = self._clock.s
        try:
            self._tree = self._start(self._link.renew())
        except OSError as error:  # Too many processes, say.
            self._fail(transport, f"another process cannot be started: {error.strerror}")

    def _start(self, theirs: socket.socket) -> ProcessTree:
        files = self._link.files(theirs)
        try:
            return ProcessTree((*self._command, ",".join(map(str, files))), _environment(), files=files)
        finally:
            theirs.close()

    @property
    def _child(self) -> subprocess.Popen[bytes]:
        return self._tree.process

    def _kill(self, wait: bool = True) -> None:
        """End the child and what it has started."""
        self._tree.end(_GRACE_S)
        if wait:
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(_GRACE_S)  # One that cannot be interrupted ends when it returns.

    def _leave(self, transport: RemoteActor) -> None:
        """Let the child close its environments; a learner that gave up, or an actor that did, waits for nothing."""
        if transport.stopping and not transport.aborted:
            self._send("stop", {})
            activity = self._link.activity.words
            progress, until_s, step_until_s = activity[0], time.monotonic() + _GRACE_S, time.monotonic() + _STEP_GRACE_S
            while self._child.poll() is None and (now_s := time.monotonic()) < until_s:
                if now_s > step_until_s and activity[1] == STEPPING and activity[0] == progress:
                    break  # It is in a step, from which it may never come back.
                transport.pump()
                time.sleep(_LONG_SLEEP_S)
        self._kill()


def _environment() -> dict[str, str]:
    """Without what would make an MPI that an environment imports take the child for the rank."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PMIX_", "PMI_FD", "PMI_PORT"))}
