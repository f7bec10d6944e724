"""Which actors act, which are being replaced and which are gone; messages to the user about them. No torch.

A rank that is silent is fenced off by the transport, and killed here where that is possible: on the learner's own node,
under an MPI that survives it. Elsewhere it is told to start anew as soon as it is heard again.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence
from contextlib import suppress

from accel.errors import EnvError, TransportError
from accel.json_object import Json
from accel.supervision.processes import process_started
from accel.transport.base import LearnerTransport

logger = logging.getLogger("accel")


class Actors:
    """The learner's view of its actors.

    Args:
        processes: (host, number, start) of each actor's rank, as in ``ActorGroup``.
    Attributes:
        restarts: how often an actor was replaced. environment_restarts: how often one of its environments was.
        runtimes: what their policies have run on.
    """

    def __init__(self, transport: LearnerTransport, processes: Sequence[tuple[str, int, int]] = ()) -> None:
        self.restarts = self.environment_restarts = 0
        self.runtimes: set[str] = set()
        self._transport = transport
        self._processes = processes
        self._down: set[int] = set()
        self._late: set[int] = set()
        self._silent: frozenset[int] = frozenset()
        self._gone: frozenset[int] = frozenset()
        self._last_failure: object = None
        self._shown: set[object] = set()

    @property
    def alive(self) -> frozenset[int]:
        """Actors that act now."""
        alive, absent = self._transport.alive(), self._down | self._silent
        return alive - absent if absent else alive  # Without a copy: it is asked for at every turn.

    def count_prompt(self) -> int:
        """For how many a round waits: those whose environments do not take far longer than they ever did."""
        return len(self.alive - self._late if self._late else self.alive)  # Without a copy.

    def hear(self, actor: int, message: Json) -> bool:
        """Take in an actor's report; False when it is not about its processes."""
        if message.get("late"):
            self._late.add(actor)
            logger.warning("actor %d: a step or reset takes far longer than any before it", actor)
        elif "late" in message:
            self._late.discard(actor)
        elif "down" in message:
            self._down.add(actor)
            self._last_failure = message["down"] if message.get("gave_up") else self._last_failure
            logger.warning("%s", failure_text(actor, self._once(message, message["down"])))
        elif "up" in message:
            self._down.discard(actor)
            self._silent -= {actor}
            self.restarts += 1
            logger.warning("actor %d acts again, in a new process (restart %s)", actor, message["up"])
        elif "runtime" in message:
            self.runtimes.add(str(message["runtime"]))
        elif "environment" in message:
            self.environment_restarts += 1
            if is_shown(self.environment_restarts):
                text = f"actor {actor}: environment {message['environment']} raised {message.get('raised')}"
                told = self._once(message, message.get("raised"))
                logger.warning("%s", f"{text}; it is made anew\n{told.get('traceback', '')}".rstrip())
        else:
            return False
        return True

    def look(self) -> frozenset[int]:
        """Report who has come and gone; returns the actors that are gone since the last look.

        Raises:
            TransportError: none is left, and none will come back.
            EnvError: so it is, and environments have made the last one fail.
        """
        total, alive, silent = self._transport.actors, self._transport.alive(), self._transport.silent()
        for actor in sorted(silent - self._silent):
            logger.warning("actor %d gives no sign of life; %d of %d go on without it", actor, len(self.alive), total)
            self._end(actor)
        for actor in sorted(self._silent & alive):
            self._down.add(actor)  # until its new process says so
            logger.warning("actor %d is heard again, and starts anew", actor)
        self._silent = silent
        gone = frozenset(range(total)) - alive - silent - self._gone
        for actor in sorted(gone):
            how = "died" if actor in self._transport.dead() else "ended"
            logger.warning("actor %d %s; %d of %d go on", actor, how, len(self.alive), total)
        self._gone |= gone
        if not alive and not silent and self._last_failure is not None:
            raise EnvError(
                f"all {total} actors are gone, the last one as {self._last_failure}. Mend what ends them, such as the "
                "environment, and resume the run"
            )
        if not alive and not silent:
            raise TransportError(f"all {total} actors are gone; look at their messages above and resume the run")
        return gone

    def _once(self, message: Json, why: object) -> Json:
        """Without its traceback where one of the same error was shown."""
        told = {**message, "traceback": ""} if why in self._shown else message
        self._shown.add(why)
        return told

    def _end(self, actor: int) -> None:
        """Kill a silent rank where it can be reached and where that ends nothing else."""
        if not self._transport.fault_tolerant or actor >= len(self._processes):
            return
        host, number, started = self._processes[actor]
        if host == os.uname().nodename and number and started == process_started(number) != 0:
            with suppress(OSError):
                os.kill(number, signal.SIGKILL)


def is_shown(count: int) -> bool:
    """Whether the message is shown that comes as the so-manieth of its kind: ever fewer of them."""
    return count & (count - 1) == 0


def failure_text(actor: int, message: Json) -> str:
    """What the user is told of an actor's failure."""
    row = int(str(message.get("failures", 1)))
    text = f"actor {actor} failed: {message['down']}"
    if message.get("final"):
        text += "; another process would meet it again, and none is started"
    elif message.get("gave_up"):
        text += f"; that is {row} failures in a row, and it is not replaced again (--max-actor-restarts)"
    elif "again_in_s" in message:
        counted = "" if row == 1 else f", after {row} failures in a row,"
        text += f"; another process takes its place{counted} in {float(str(message['again_in_s'])):.2g} s"
    return f"{text}\n{message.get('traceback') or ''}".rstrip()
