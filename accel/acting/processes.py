"""Actors in processes of this machine, without MPI: the learner's process starts them and supervises each.

An actor's process is the one that a rank would start (``accel.acting.supervisor``), with the same handshake, the same
memory for unrolls and policies, the same restarts. What a rank does between two sleeps the learner's process does
whenever it looks at its transport. No torch.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence

from accel.acting.supervisor import ActorSupervisor
from accel.json_object import Json
from accel.transport.base import Arrival, TransportOptions
from accel.transport.local import LocalLearner, LocalPort

_LOOK_S = 0.1
_POLL_S = 0.002


class ActorProcesses(LocalLearner):
    """``LearnerTransport`` over processes that this one starts by their numbers; see ``ActorSupervisor``."""

    fault_tolerant = True

    def __init__(self, actors: int, command: Callable[[int], Sequence[str]], options: TransportOptions) -> None:
        super().__init__(actors, options)
        self._actors = [(ActorSupervisor(command(number)), LocalPort(self, number)) for number in range(actors)]
        self._told, self._look_s = set[int](), 0.0

    def welcome(self, message: Json) -> None:
        """See ``LearnerTransport.welcome``."""
        super().welcome(message)
        self._told |= self._present

    def publish(self, version: int, payload: bytes) -> None:
        """See ``LearnerTransport.publish``; the policy is in the actors' memory when this returns."""
        super().publish(version, payload)
        self.pump()

    def messages(self) -> list[tuple[int, Json]]:
        """See ``LearnerTransport.messages``."""
        self.pump()
        return super().messages()

    def receive(self, timeout_s: float = 0.0) -> Arrival | None:
        """See ``LearnerTransport.receive``."""
        until_s = time.monotonic() + timeout_s
        self.pump()
        while (arrival := super().receive()) is None:
            if (left_s := until_s - time.monotonic()) <= 0.0:
                return None
            self.pump(min(left_s, _LOOK_S))
        self._told.add(arrival.actor)  # It may fill another buffer.
        return arrival

    def pump(self, timeout_s: float = 0.0) -> None:
        """See ``LearnerTransport.pump``; waits so long for an actor to say something."""
        told, self._told, self.board.news = self._told.union(self.board.news), set(), {}
        heard = self._heard(0.0 if told else timeout_s)
        is_due = time.monotonic() >= self._look_s
        if is_due:
            self._look_s = time.monotonic() + _LOOK_S
        for number, (supervisor, port) in enumerate(self._actors):
            is_heard = supervisor.channel is not None and supervisor.channel.fileno() in heard
            if number in self._present and (is_heard or number in told or is_due):
                supervisor.turn(port, is_heard)
                if supervisor.is_over:
                    self._leave(number)

    def stop(self, timeout_s: float = 30.0) -> frozenset[int]:
        """See ``LearnerTransport.stop``; nobody waits for the actors of a run that was given up."""
        self.stopping = True
        self.pool.ready.clear()
        until_s = time.monotonic() + timeout_s
        for number in sorted(self._present):
            self._actors[number][0].stop()
        while self._present:
            for number in sorted(self._present):
                supervisor, port = self._actors[number]
                supervisor.hear(port)
                if self.abort_text is not None or supervisor.has_left():
                    self._leave(number)
            if time.monotonic() > until_s:
                break
            time.sleep(_POLL_S)
        return self.alive()

    def close(self) -> None:
        """See ``LearnerTransport.close``."""
        super().close()
        for number in self.alive():
            self._leave(number)

    def _leave(self, number: int) -> None:
        self.leave(number)
        self._actors[number][0].close()

    def _heard(self, timeout_s: float) -> set[int]:
        """Files of the actors that have said something."""
        poll = select.poll()
        for number, (supervisor, _) in enumerate(self._actors):
            if number in self._present and supervisor.channel is not None:
                poll.register(supervisor.channel.fileno(), select.POLLIN)
        return {file for file, _ in poll.poll(1e3 * timeout_s)}
