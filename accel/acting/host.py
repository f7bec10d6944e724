"""The rank's side of an actor: a child process acts, this one talks MPI, watches the child and replaces it. No torch.

Environments are other people's code: they crash, exit, hang. In a process of their own, which MPI does not know, that
costs the process and not the rank: the rank kills what is left of it and starts another, which is handed the same
messages of the handshake, with an incarnation that gives it seeds of its own, and the newest policy. What the child had
sent before stays; the unroll it was writing is lost.

Two clocks tell that a child must be replaced. Its process lives: it has not ended, and was not stopped for longer than
``STOPPED_S``. Its environments make progress: a step takes at most ``actor_timeout_s``; construction and resets may
take as long as ranks wait for each other. The rank itself tells the learner that it lives, with every unroll and every
``BEAT_S``.

Failures in a row are followed by longer and longer pauses, and by the end of the actor after ``max_actor_restarts``;
a child that has worked for ``STEADY_S`` ends the row.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from accel.config.actor import ActorConfig
from accel.errors import TransportError
from accel.json_object import Json
from accel.system.processes import process_started, process_state
from accel.system.pulse import PREPARING, STEPPING, WAITING
from accel.transport.base import Bytes
from accel.transport.channel import Link
from accel.transport.remote_actor import RemoteActor

BEAT_S = 2.0
STOPPED_S = 10.0
STEADY_S = 10.0
EXIT_ABORTED = 3
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 60.0
_LOOK_S = 0.1
_GRACE_S = 5.0
_SHORT_SLEEP_S, _LONG_SLEEP_S, _GROWTH = 0.3e-3, 2e-3, 2.0


class Host:
    """An actor's rank. Its first child starts at once, so that it imports what it needs while MPI starts.

    Args:
        command: starts a child; the numbers of the files that it inherits are added as one more word.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)
        self._link, theirs = Link.make()
        self._child = self._start(theirs)
        self._clock_s = self._beat_s = self._look_s = 0.0
        self._last_s = time.monotonic()
        self._sleep_s = _SHORT_SLEEP_S
        self._config: ActorConfig | None = None
        self._told: list[Json] = []
        self._handed_on = 0
        self._answer: Json | None = None
        self._ring: list[Bytes] = []
        self._lent: set[int] = set()
        self._numbers: dict[int, int] = {}
        self._unrolls = self._failures = self._incarnation = 0
        self._ready_s: float | None = None
        self._down_until_s: float | None = None
        self._last_words: Json = {}
        self._seen = (-1, -1)
        self._progress_s = self._running_s = 0.0
        self._cut_off_s: float | None = None
        self._over = False

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
        now_s = time.monotonic()
        # Time in which this process was stopped, or the machine slept, is nobody's silence.
        self._clock_s += min(now_s - self._last_s, _LOOK_S)
        self._last_s = now_s
        transport.pump()
        if transport.has_news:
            self._hear_learner(transport)
        if is_heard:
            self._hear_child(transport)
        if is_there:
            self._hand_on(transport)
            self._offer_buffers(transport)
        if self._clock_s >= self._look_s:
            self._look_s = self._clock_s + _LOOK_S
            self._look(transport)
            if self._clock_s >= self._beat_s and self._told:
                self._beat_s = self._clock_s + BEAT_S
                transport.beat()

    def _pause(self, is_there: bool) -> bool:
        """Sleep until the child says something, or it is time to look at MPI again; whether the child did."""
        waits = self._link.pulse.words[1] == WAITING
        self._sleep_s = min(self._sleep_s * _GROWTH, _SHORT_SLEEP_S if waits else _LONG_SLEEP_S)
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
            if self._link.pulse.words[1] == WAITING and self._down_until_s is None:
                self._send("policy", {})

    def _hand_on(self, transport: RemoteActor) -> None:
        """The learner's messages, to a child that does not have them yet."""
        while self._handed_on < len(self._told):
            message = self._told[self._handed_on]
            if self._handed_on == 0 and self._config is not None and self._incarnation:
                config = self._config
                per_unroll = config.actors * config.envs_per_actor * config.unroll_length
                env_steps = config.env_steps + self._unrolls * per_unroll
                message = replace(config, incarnation=self._incarnation, env_steps=env_steps).to_json()
            self._handed_on += 1
            self._send("welcome", {"actor": transport.actor, "message": message})

    def _send(self, kind: str, body: Json) -> None:
        try:
            self._link.send(kind, body)
        except TransportError:
            self._cut_off_s = self._clock_s  # The child is gone; a look at it will tell how.

    def _hear_child(self, transport: RemoteActor) -> None:
        if self._down_until_s is not None:
            return
        try:
            messages = self._link.receive()
        except TransportError:
            self._cut_off_s = self._clock_s
            return
        for kind, body in messages:
            self._progress_s = self._clock_s
            if kind == "unroll":
                number = int(str(body["buffer"]))
                self._lent.discard(number)
                self._unrolls += 1
                transport.push(self._ring[number])
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
        self._ready_s = self._clock_s
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
            if status is not None and self._clock_s >= self._down_until_s:
                if transport.fence is None or transport.rejoin():
                    self._replace()
            return
        if transport.fence is not None:  # The learner had not heard of this rank: everything before is too late.
            self._kill(wait=False)
            self._down_until_s, self._ready_s = self._clock_s, None
            return
        if status is not None:
            self._hear_child(transport)  # what it had sent before
            self._fail(transport, _how_it_ended(status, self._last_words))
            return
        if self._cut_off_s is not None:
            if self._clock_s > self._cut_off_s + _GRACE_S:
                self._kill(wait=False)  # It closed what it shares, and stays.
            return
        with suppress(TransportError):
            self._link.flush()
        pulse = self._link.pulse.words
        seen = (pulse[0], pulse[1])
        if seen != self._seen or pulse[1] not in (STEPPING, PREPARING):
            self._seen, self._progress_s = seen, self._clock_s
        if process_state(self._child.pid) != "T":
            self._running_s = self._clock_s
        limit_s = self._config.actor_timeout_s
        if pulse[1] == PREPARING:
            limit_s = max(limit_s, self._config.peer_timeout_s)
        if self._clock_s > self._running_s + STOPPED_S:
            self._fail(transport, f"its process was stopped for {STOPPED_S:g} s")
        elif self._clock_s > self._progress_s + limit_s:
            what = "construction or a reset" if pulse[1] == PREPARING else "a step"
            option = "--peer-timeout-s" if pulse[1] == PREPARING else "--actor-timeout-s"
            self._fail(transport, f"its environments hang: {what} took longer than {limit_s:g} s ({option})")

    def _fail(self, transport: RemoteActor, why: str) -> None:
        """Report a failure, end what is left of the child, and say when another one starts."""
        self._kill(wait=False)
        if self._config is None or (self._answer is not None and "error" in self._answer):
            self._down_until_s = float("inf")  # The learner knows, and ends the run.
            return
        if self._ready_s is not None and self._clock_s > self._ready_s + STEADY_S:
            self._failures = 0
        self._failures += 1
        words, self._last_words = self._last_words, {}
        told: Json = {"down": why, "failures": self._failures, "traceback": words.get("traceback", "")}
        if self._failures > self._config.max_actor_restarts:
            told["gave_up"] = True
            self._give_up(transport, told)
            return
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** (self._failures - 1), _LONGEST_PAUSE_S)
        self._down_until_s = self._clock_s + pause_s
        self._ready_s = None
        transport.report(told | {"again_in_s": pause_s})

    def _give_up(self, transport: RemoteActor, told: Json) -> None:
        if self._answer is None:
            transport.hello({"error": told["down"], "kind": "EnvError"})
            self._down_until_s = float("inf")
        else:
            transport.report(told)
            self._over = True

    def _replace(self) -> None:
        self._incarnation += 1
        self._handed_on = 0
        self._down_until_s = self._cut_off_s = None
        self._progress_s = self._running_s = self._clock_s
        self._child = self._start(self._link.renew())

    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        files = self._link.files(theirs)
        words = (*self._command, ",".join(map(str, files)))
        # A process group of its own: what an environment has started is ended with it.
        child = subprocess.Popen(words, pass_fds=files, stdin=subprocess.DEVNULL, process_group=0, env=_environment())
        theirs.close()
        return child

    def _kill(self, wait: bool = True) -> None:
        if self._child.poll() is None:
            os.killpg(self._child.pid, signal.SIGKILL)
            if wait:
                with suppress(subprocess.TimeoutExpired):  # One that cannot be interrupted ends when it returns.
                    self._child.wait(_GRACE_S)

    def _leave(self, transport: RemoteActor) -> None:
        """Let the child close its environments; a learner that gave up, or an actor that did, waits for nothing."""
        if transport.stopping and not transport.aborted:
            self._send("stop", {})
            until_s = time.monotonic() + _GRACE_S
            while self._child.poll() is None and time.monotonic() < until_s:
                transport.pump()
                time.sleep(_LONG_SLEEP_S)
        self._kill()


def _environment() -> dict[str, str]:
    """Without what would make an MPI that an environment imports take the child for the rank."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PMIX_", "PMI_FD", "PMI_PORT"))}


def _how_it_ended(status: int, words: Json) -> str:
    if "error" in words:
        return f"it raised {words['error']}"
    if status < 0:
        try:
            return f"its process was ended by {signal.Signals(-status).name}"
        except ValueError:
            return f"its process was ended by signal {-status}"
    return f"its process left through exit({status})"
