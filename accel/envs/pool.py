"""An actor's environments in worker processes, of which it hears as they are ready. No torch.

A slow step holds up its own worker alone. A worker that dies, hangs or raises is replaced with other seeds, while the
others go on; the row in which that happened is no transition, as where an environment of a loop raises
(``accel.envs.base.EnvFailure``). Restarts back off exponentially, and an error follows
``max_restarts`` failures in a row (``accel.supervision.restarts``).

What a worker's environments start ends with it (``accel.supervision.process_tree``).
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, cast

from accel.envs.base import Actions, EnvFailure, Flags, Floats, Observations
from accel.envs.spaces import EnvSpec
from accel.envs.worker import Lines, SharedActivities, SharedRows
from accel.errors import EnvError, InterfaceError, MissingExtraError
from accel.json_object import Json
from accel.supervision.activity import PREPARING, Activity, hang_message
from accel.supervision.clock import ListeningClock
from accel.supervision.process_tree import ProcessTree
from accel.supervision.restarts import STEADY_S, Restarts, describe_end
from accel.system.memory import anonymous_memory

WAIT_S = 0.1
"""How long ``EnvironmentPool.receive`` waits for a worker at most."""
_GRACE_S = 5.0
_ERRORS = {"MissingExtraError": MissingExtraError, "InterfaceError": InterfaceError}
"""What is raised as the kind of error that the worker raised; all else as an EnvError."""


@dataclass
class _Worker:
    """One worker process, and what it owes.

    Attributes:
        asked_s: when it was told to do something that it has not done yet; also to start. None: it waits, or is down.
        is_up: whether its environments are reset. is_sent: whether its rows have actions that are not answered.
        owes: after its death, the row that ends the episodes which that cut off, then the row of new ones.
        again_s: when it is started again; None: it runs. ticks: rows answered.
    """

    number: int
    incarnation: int = 0
    tree: ProcessTree | None = None
    lines: Lines | None = None
    asked_s: float | None = None
    up_s: float = 0.0
    is_up: bool = False
    is_sent: bool = False
    owes: Literal["nothing", "end", "beginning"] = "nothing"
    again_s: float | None = None
    ticks: int = 0
    restarts: Restarts = field(default_factory=Restarts)
    last_words: Json = field(default_factory=dict)


class EnvironmentPool:
    """``AsyncEnvironments``, the same number in each of W workers; a worker's rows are one group, ready together.

    Args:
        environment: keyword arguments of ``accel.envs.make_vector_env`` for all of them, JSON-ready; ``num_envs`` is B.
        workers: W, a divisor of B.
        step_s: how long a step may take. preparation_s: how long construction and a reset may.
        max_restarts: how many failures of a worker in a row are made good.
    Raises:
        EnvError, MissingExtraError: the environments cannot be made, or not in time.
    """

    def __init__(
        self,
        environment: Mapping[str, object],
        workers: int,
        *,
        step_s: float,
        preparation_s: float,
        max_restarts: int,
    ) -> None:
        self._request = dict(environment)
        self._request["num_envs"] = int(str(environment["num_envs"])) // workers
        self._seed = int(str(environment["seed"]))
        self._step_s, self._preparation_s, self._max_restarts = step_s, max(step_s, preparation_s), max_restarts
        self.groups = workers
        self.failures: list[EnvFailure] = []
        self.activity = Activity()
        self._memory = anonymous_memory()
        self._activities = SharedActivities(self._memory, workers).activities
        self._selector = selectors.DefaultSelector()
        self._workers = [_Worker(number) for number in range(workers)]
        self._ready: list[int] = []
        self._clock, self._judged_s = ListeningClock(2.0 * WAIT_S), 0.0
        self._is_started = False
        try:
            for worker in self._workers:
                self._start(worker)
            self.spec, self.rows = self._meet()
        except BaseException:
            self.close()
            raise
        shared = self._shared = SharedRows(self._memory, workers, workers * self.rows, self.spec)
        self.observations: Observations = shared.observations
        self.rewards: Floats = shared.rewards
        self.terminated: Flags = shared.terminated
        self.truncated: Flags = shared.truncated

    @property
    def final_observations(self) -> Observations:
        """See ``AsyncEnvironments``."""
        if self._shared.final_observations is None:
            raise AttributeError("a next_step environment has no final_observations: they are in the ordinary rows")
        return self._shared.final_observations

    def reset(self) -> Observations:
        """First episodes everywhere; see ``AsyncEnvironments``."""
        for worker in self._workers:
            self._tell(worker, "reset")
        while not all(worker.is_up for worker in self._workers):
            self._hear(WAIT_S)
        self._is_started = True
        return self.observations

    def send(self, groups: Sequence[int], actions: Actions) -> None:
        """Actions for some groups; see ``AsyncEnvironments``."""
        for k, group in enumerate(groups):
            worker = self._workers[group]
            self._shared.actions[self._rows_of(worker)] = actions[k * self.rows : (k + 1) * self.rows]
            worker.is_sent = True
            if worker.is_up and worker.owes == "nothing":
                self._tell(worker, "step")
            else:
                self._settle(worker)

    def receive(self) -> list[int]:
        """Groups that have taken their step; waits ``WAIT_S`` for one at most. Raises EnvError."""
        self._hear(0.0 if self._ready else WAIT_S)
        ready, self._ready = self._ready, []
        return ready

    def close(self) -> None:
        """End the workers; more calls do nothing."""
        for worker in self._workers:
            if worker.lines is not None:
                self._forget(worker)
        until_s = time.monotonic() + _GRACE_S
        for worker in self._workers:
            if worker.tree is not None and worker.is_up:
                with suppress(subprocess.TimeoutExpired):
                    worker.tree.process.wait(max(until_s - time.monotonic(), 0.0))
            self._end(worker)
        self._selector.close()
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def _meet(self) -> tuple[EnvSpec, int]:
        """What the workers' environments look like, once all are made."""
        self._hellos: dict[int, Json] = {}
        while len(self._hellos) < self.groups:
            self._hear(WAIT_S)
        first = self._hellos[0]
        for number, hello in self._hellos.items():
            if hello != first:
                raise EnvError(f"the environments of workers 0 and {number} of one actor have different spaces")
        return EnvSpec.from_json(cast(Json, first["spec"])), int(str(first["rows"]))

    def _start(self, worker: _Worker) -> None:
        ours, theirs = socket.socketpair()
        incarnation = [worker.incarnation] if worker.incarnation else []
        request = self._request | {"seed": [self._seed, worker.number, *incarnation]}
        told = json.dumps({"worker": worker.number, "workers": self.groups, "environment": request})
        command = (sys.executable, "-P", "-m", "accel.envs.worker", str(theirs.fileno()), str(self._memory), told)
        self._activities[worker.number].enter(PREPARING)
        try:
            worker.tree = ProcessTree(command, os.environ, files=(theirs.fileno(), self._memory))
        except OSError as error:  # Too many processes, say.
            ours.close()
            self._fail(worker, f"its process cannot be started: {error.strerror}")
            return
        finally:
            theirs.close()
        worker.lines = Lines(ours)
        worker.asked_s, worker.again_s, worker.last_words = self._clock.s, None, {}
        self._selector.register(ours, selectors.EVENT_READ, worker)

    def _tell(self, worker: _Worker, kind: str) -> None:
        worker.asked_s = self._clock.s
        with suppress(OSError):  # It is gone, as its end of the socket will say.
            if worker.lines is not None:
                worker.lines.send(kind)

    def _hear(self, timeout_s: float) -> None:
        """Take in what workers say, for which to wait so long, and judge those that say nothing."""
        for key, _ in self._selector.select(timeout_s):
            worker: _Worker = key.data
            messages = worker.lines.receive() if worker.lines is not None else []
            for kind, body in messages:
                self._take(worker, kind, body)
            if not messages:
                self._fail(worker, self._how_it_ended(worker))
        if self._clock.look() > self._judged_s + WAIT_S:
            self._judged_s = self._clock.s
            for worker in self._workers:
                self._judge(worker)

    def _take(self, worker: _Worker, kind: str, body: Json) -> None:
        if kind == "hello":
            worker.asked_s = None
            first = self._hellos.setdefault(worker.number, body)
            if body != first:
                raise EnvError(f"the environments of worker {worker.number} have other spaces than before")
            if self._is_started:
                self._tell(worker, "reset")
        elif kind == "failed":
            place = worker.number * self.rows + int(str(body["environment"]))
            told = EnvFailure(worker.ticks + 1, place, str(body["raised"]), str(body["traceback"]))
            self.failures.append(told)
        elif kind == "error":
            worker.last_words = body
        elif worker.is_up:
            worker.asked_s = None
            self._answer(worker)
        else:
            worker.asked_s, worker.is_up, worker.up_s = None, True, self._clock.s
            self._settle(worker)

    def _judge(self, worker: _Worker) -> None:
        if worker.again_s is not None:
            if self._clock.s >= worker.again_s:
                self._start(worker)
        elif worker.asked_s is not None:
            phase = self._activities[worker.number].words[1]
            limit_s = self._preparation_s if phase == PREPARING or not worker.is_up else self._step_s
            if self._clock.s > worker.asked_s + limit_s:
                self._fail(worker, hang_message(phase if worker.is_up else PREPARING, limit_s))

    def _fail(self, worker: _Worker, why: str) -> None:
        """A worker is lost: end what is left of it, and plan another. Raises EnvError: too often, or at the start.

        The interface that an environment breaks as soon as it is made, another one of its kind would break too.
        """
        words = worker.last_words
        is_steady = worker.is_up and self._clock.s > worker.up_s + STEADY_S
        error = _ERRORS.get(str(words.get("kind")), EnvError)
        if not self._is_started or (error is InterfaceError and not is_steady):
            raise error(str(words.get("error", f"worker {worker.number}: {why}")))
        self._forget(worker)
        self._end(worker)
        was_up, worker.is_up, worker.asked_s = worker.is_up, False, None
        pause_s = worker.restarts.fail(self._max_restarts, is_steady)
        if pause_s is None:
            raise EnvError(
                f"environment worker {worker.number} failed {worker.restarts.failures} times in a row, the last time "
                f"because {why} (--max-actor-restarts)"
            )
        worker.again_s = self._clock.s + pause_s
        worker.incarnation += 1
        if was_up:
            self._report(worker, why)
            worker.owes = "end" if self.spec.autoreset == "next_step" else "beginning"
            self._settle(worker)

    def _report(self, worker: _Worker, why: str) -> None:
        trace = str(worker.last_words.get("traceback", ""))
        told = why if worker.last_words else f"EnvError: {why}"
        start = worker.number * self.rows
        self.failures += [EnvFailure(worker.ticks + 1, start + k, told, trace) for k in range(self.rows)]

    def _settle(self, worker: _Worker) -> None:
        """Answer the rows that a worker owes after its death, none of which is a transition.

        Where environments reset within a step, the end of an episode shows the next one's beginning, and waits for it.
        """
        if worker.is_sent and worker.owes == "end":
            worker.owes = "beginning"
            self._answer(worker, truncated=True)
        elif worker.is_sent and worker.owes == "beginning" and worker.is_up:
            worker.owes = "nothing"
            self._answer(worker, truncated=self.spec.autoreset == "same_step")

    def _answer(self, worker: _Worker, truncated: bool | None = None) -> None:
        """A group is ready; ``truncated`` where its worker did not write flags and rewards."""
        if truncated is not None:
            rows = self._rows_of(worker)
            self.rewards[rows], self.terminated[rows], self.truncated[rows] = 0.0, False, truncated
        worker.is_sent = False
        worker.ticks += 1
        self._ready.append(worker.number)

    def _rows_of(self, worker: _Worker) -> slice:
        return slice(worker.number * self.rows, (worker.number + 1) * self.rows)

    def _how_it_ended(self, worker: _Worker) -> str:
        if "error" in worker.last_words:
            return str(worker.last_words["error"])
        if worker.tree is None:
            return "its process ended"
        try:
            status = worker.tree.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            return "its process closed what it shares with the actor"
        return describe_end(status, {})

    def _end(self, worker: _Worker) -> None:
        if worker.tree is not None:
            worker.tree.end(_GRACE_S)
            with suppress(subprocess.TimeoutExpired):  # One that cannot be interrupted ends when it returns.
                worker.tree.process.wait(_GRACE_S)
            worker.tree = None

    def _forget(self, worker: _Worker) -> None:
        if worker.lines is not None:
            self._selector.unregister(worker.lines.socket)
            worker.lines.socket.close()
            worker.lines = None
