"""For one actor: starts a process that acts, answers for it to the learner, and replaces it when it fails. No torch.

This runs in the actor's rank, or in its learner where there are no ranks (``accel.acting.processes``). Environments are
other people's code: they crash, exit, hang. In a process of their own, which MPI does not know, that costs the process
and not the rank, which ends what is left of it and starts another (``accel.supervision.supervised``).
That one gets the same messages of the handshake, with an incarnation that gives it seeds of its own, and the newest
policy. What was sent before stays; the unroll that was being written is lost.

The rank itself tells the learner that it lives, with every unroll and every ``BEAT_S``; and when a step or reset takes
``LATE_S`` and ``LATE_TIMES`` the longest one before it, so that no round of the synchronous schedule waits for it, hung
or not. An actor ends after ``max_actor_restarts`` failures in a row, and after ``FIRST_RESTARTS`` before its first
unroll; an environment that does not keep to gymnasium's interface ends it at its first failure.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias, cast

from accel.config.actor import ActorConfig
from accel.errors import EXIT_ABORTED, InterfaceError
from accel.json_object import Json
from accel.supervision.activity import STEPPING, WAITING
from accel.supervision.channel import Channel
from accel.supervision.clock import AwakeClock
from accel.supervision.processes import process_started
from accel.supervision.supervised import FIRST_RESTARTS, Supervised
from accel.transport.base import Bytes
from accel.transport.child_actor import ActorMemory
from accel.transport.local import LocalPort
from accel.transport.remote_actor import RemoteActor

BEAT_S = 2.0
LATE_S, LATE_TIMES = 1.0, 5.0
_LOOK_S = 0.1
_GRACE_S, _STEP_GRACE_S = 5.0, 1.0
_SHORT_SLEEP_S, _LONG_SLEEP_S, _GROWTH = 0.3e-3, 2e-3, 2.0
# While the child waits for the learner, looks come later by a twentieth each: what it waits for is seen within a
# twentieth of the time that it took.
_LONGEST_WAIT_S, _WAIT_GROWTH = 5e-3, 1.05
_ANSWER_SLEEP_S = 10e-6

Upstream: TypeAlias = RemoteActor | LocalPort
"""To the learner: of a rank of its own, or of the learner's process."""


class ActorSupervisor:
    """For one actor, in its rank or in the process of its learner.

    Its first child starts at once, and imports what it needs while MPI starts.

    Args:
        command: starts a child; the numbers of the files that it inherits are added as one more word.
    Attributes:
        is_over: whether the actor was given up.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._memory = ActorMemory.make()
        self._child = Supervised(command, self._memory.activity, self._memory.files)
        self._clock = AwakeClock(2.0 * _LOOK_S)
        self._child.start(self._clock.s, _environment())
        self._beat_s = self._look_s = 0.0
        self._sleep_s = _SHORT_SLEEP_S
        self._config: ActorConfig | None = None
        self._told: list[Json] = []
        self._handed_on = 0
        self._answer: Json | None = None
        self._rank: Json = {}
        self._ring: list[Bytes] = []
        self._lent: set[int] = set()
        self._numbers: dict[int, int] = {}
        self._unrolls = 0
        self._is_late = self.is_over = False
        self._stopped_s, self._stopped_at = 0.0, 0
        self._inference: list[Bytes] = []
        self._asks = self._is_asked = False

    def serve(self, transport: RemoteActor) -> int:
        """Act through children until the learner stops this actor, or it fails for good; returns the exit status.

        Raises:
            TransportError: the learner is gone.
        """
        self._rank = {"pid": os.getpid(), "started": process_started(os.getpid())}
        try:
            while not transport.stopping and not self.is_over:
                is_heard = self._pause()
                transport.pump()
                self.turn(transport, is_heard)
            if transport.stopping and not transport.aborted:
                self.stop()
                while not self.has_left():
                    transport.pump()
                    time.sleep(_LONG_SLEEP_S)
            return EXIT_ABORTED if transport.aborted else 0
        finally:
            self.close()

    def close(self) -> None:
        """End the child."""
        self._child.end(wait=True)
        self._memory.close()

    @property
    def channel(self) -> Channel | None:
        """To the child; None where none can say anything."""
        return self._child.channel if self._child.is_connected else None

    def turn(self, transport: Upstream, is_heard: bool = True) -> None:
        """One look at everybody: some ten microseconds, so that a thousand a second are a hundredth of a core.

        ``is_heard``: whether the child may have said something.
        """
        if transport.has_news:
            self._hear_learner(transport)
        if is_heard:
            self.hear(transport)
        if self._inference:
            self._mediate(cast(RemoteActor, transport))  # Only ranks have one for inference.
        if self._child.is_connected:
            self._hand_on(transport)
            self._offer_buffers(transport)
        if time.monotonic() >= self._look_s:
            self._look_s = time.monotonic() + _LOOK_S
            self._clock.look()
            self._look(transport)
            if self._clock.s >= self._beat_s and self._told:
                self._beat_s = self._clock.s + BEAT_S
                transport.beat()

    def _pause(self) -> bool:
        """Sleep until the child says something, or it is time to look at MPI again; whether the child did."""
        waits = self._memory.activity.words[1] == WAITING
        growth, longest_s = (_WAIT_GROWTH, _LONGEST_WAIT_S) if waits else (_GROWTH, _LONG_SLEEP_S)
        self._sleep_s = min(self._sleep_s * growth, longest_s)
        if (channel := self.channel) is None:
            time.sleep(self._sleep_s)
            return False
        is_heard = channel.wait(self._sleep_s)
        if is_heard:
            self._sleep_s = _SHORT_SLEEP_S
        return is_heard

    def _hear_learner(self, transport: Upstream) -> None:
        while (message := transport.poll_welcome()) is not None:
            self._told.append(message)
            if self._config is None:
                self._config = config = ActorConfig.from_json(message)
                self._child.hangs.step_s = config.actor_timeout_s
                self._child.hangs.preparation_s = config.peer_timeout_s
        if (update := transport.pull()) is not None:
            self._memory.policies.write(update)
            if self._memory.activity.words[1] == WAITING:
                self._child.send("policy")

    def _hand_on(self, transport: Upstream) -> None:
        """The learner's messages, to a child that does not have them yet."""
        while self._handed_on < len(self._told):
            message = self._told[self._handed_on]
            if self._handed_on == 0 and self._config is not None and self._child.incarnation:
                config = self._config
                spec = {} if self._answer is None else cast(Json, self._answer.get("spec", {}))
                agents = int(str(spec.get("agents", 1)))
                per_unroll = config.actors * config.envs_per_actor * agents * config.unroll_length
                env_steps = config.env_steps + self._unrolls * per_unroll
                message = replace(config, incarnation=self._child.incarnation, env_steps=env_steps).to_json()
            self._handed_on += 1
            self._child.send("welcome", {"actor": transport.actor, "message": message})

    def _mediate(self, transport: RemoteActor) -> None:
        """Pass the child's question on, and the answer back: those of a child that is gone are nobody's."""
        if transport.is_answered() and self._is_asked:
            self._is_asked = False
            self._child.send("answer")
        if self._asks and not transport.is_asking:
            self._asks, self._is_asked = False, True
            transport.ask(*self._inference)
        if self._is_asked:
            self._sleep_s = min(self._sleep_s, _SHORT_SLEEP_S)

    def hear(self, transport: Upstream) -> None:
        """Take in what the child has said."""
        for kind, body in self._child.receive(self._clock.s):
            if kind == "unroll":
                number = int(str(body["buffer"]))
                self._lent.discard(number)
                self._unrolls += 1
                transport.push(self._ring[number])
            elif kind == "question":
                self._asks = True
                self._sleep_s = _ANSWER_SLEEP_S
            elif kind == "inference":
                self._inference = self._memory.inference(
                    int(str(body["question_bytes"])), int(str(body["answer_bytes"]))
                )
            elif kind == "report":
                transport.report(body)
            elif kind == "hello":
                self._take_answer(transport, body)
            elif kind == "configure":
                self._configure(transport, body)

    def _take_answer(self, transport: Upstream, body: Json) -> None:
        """What a child says of its environments: the first one's is the learner's to judge."""
        if self._answer is None and not self._child.incarnation and "error" in body:
            self._answer = body
            transport.hello(body)
        elif "error" in body:
            self._fail(transport, f"its environments cannot be made: {body['error']}")
        elif self._answer is None:
            self._answer = body
            transport.hello(body | self._rank)
        elif body["spec"] != self._answer.get("spec"):
            self._fail(transport, "its environments have other spaces than before")

    def _configure(self, transport: Upstream, body: Json) -> None:
        """A child is ready to act."""
        unroll_bytes, buffers = int(str(body["unroll_bytes"])), int(str(body["buffers"]))
        if not self._ring:
            self._ring = self._memory.buffers(unroll_bytes, buffers)
            self._numbers = {id(buffer): number for number, buffer in enumerate(self._ring)}
            transport.share(self._ring)
        for number in self._lent:
            self._child.send("free", {"buffer": number})
        self._child.began_work(self._clock.s)
        if self._child.incarnation:
            transport.report({"up": self._child.incarnation})

    def _offer_buffers(self, transport: Upstream) -> None:
        """Give the child every buffer that is free."""
        while self._child.up_s is not None and (buffer := transport.try_acquire()) is not None:
            number = self._numbers[id(buffer)]
            self._lent.add(number)
            self._child.send("free", {"buffer": number})

    def _look(self, transport: Upstream) -> None:
        """Judge the child, or start another when its time has come."""
        if self._config is None:
            return
        child, now_s = self._child, self._clock.s
        if child.restart_s is not None:
            if child.is_due(now_s) and (transport.fence is None or transport.rejoin()):
                self._handed_on = 0
                self._asks = self._is_asked = False
                child.start(now_s, _environment())
            return
        if transport.fence is not None:  # The learner had not heard of this rank: everything before is too late.
            child.end(now_s=now_s)
            return
        if why := child.look(now_s):
            self._fail(transport, why)
            return
        is_late = now_s > child.hangs.since_s + LATE_S + LATE_TIMES * child.hangs.longest_s
        if is_late != self._is_late and child.up_s is not None:
            self._is_late = is_late
            transport.report({"late": is_late})

    def _fail(self, transport: Upstream, why: str) -> None:
        """Report a failure, end what is left of the child, and say when another one starts."""
        child, now_s = self._child, self._clock.s
        is_steady = child.is_steady(now_s)
        if self._config is None or (self._answer is not None and "error" in self._answer):
            child.fail(now_s, 0)  # The learner knows, and ends the run.
            return
        most = self._config.max_actor_restarts
        pause_s = child.fail(now_s, most if self._unrolls else min(most, FIRST_RESTARTS))
        told: Json = {"down": why, "failures": child.failures, "traceback": child.last_error.get("traceback", "")}
        # Raised at once, by this one: so will the next one.
        is_at_once = not (is_steady and self._unrolls)
        told["final"] = child.last_error.get("kind") == InterfaceError.__name__ and is_at_once
        if pause_s is not None and not told["final"]:
            transport.report(told | {"again_in_s": pause_s})
        elif self._answer is None:
            child.restart_s = float("inf")
            text = f"{told['down']}, {child.failures} times in a row: mend what ends it, such as the environment"
            transport.hello({"error": text, "kind": "EnvError"})
        else:
            transport.report(told | {"gave_up": True})
            self.is_over = True

    def stop(self) -> None:
        """Ask the child to close its environments; an actor that gave up has none."""
        self._child.send("stop")
        self._stopped_s, self._stopped_at = time.monotonic(), self._memory.activity.words[0]

    def has_left(self) -> bool:
        """Whether the child has done so, or takes too long: it may be in a step from which it never comes back."""
        waited_s, words = time.monotonic() - self._stopped_s, self._memory.activity.words
        is_stuck = waited_s > _STEP_GRACE_S and words[1] == STEPPING and words[0] == self._stopped_at
        return is_stuck or waited_s > _GRACE_S or self._child.has_ended


def _environment() -> dict[str, str]:
    """Without what would make an MPI that an environment imports take the child for the rank."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PMIX_", "PMI_FD", "PMI_PORT"))}
