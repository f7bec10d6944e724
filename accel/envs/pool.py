"""An actor's environments in worker processes, of which it hears as they are ready. No torch.

A slow step holds up its own worker alone. A worker that dies, hangs or raises is replaced with other seeds, while the
others go on (``accel.supervision.supervised``); the row in which that happened is no transition, as where an
environment of a loop raises (``accel.envs.base.EnvFailure``). An error follows ``max_restarts`` failures in a row, and
``FIRST_RESTARTS`` in a worker's first rows.
"""

from __future__ import annotations

import json
import os
import selectors
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, cast

from accel.envs.base import Actions, AsyncEnvironments, EnvFailure, Observations
from accel.envs.spaces import EnvSpec
from accel.envs.worker import SharedRows
from accel.errors import EnvError, InterfaceError, MissingExtraError
from accel.json_object import Json
from accel.supervision.activity import PREPARING, STEPPING, shared_activities
from accel.supervision.clock import AwakeClock
from accel.supervision.supervised import FIRST_RESTARTS, Supervised
from accel.system.memory import anonymous_memory
from accel.system.request import with_request

WAIT_S = 0.1
"""How long ``EnvironmentPool.receive`` waits for a worker at most."""
_GRACE_S = 5.0
_FIRST_ROWS = 100
_ERRORS = {"MissingExtraError": MissingExtraError, "InterfaceError": InterfaceError}
"""What is raised as the kind of error that the worker raised; all else as an EnvError."""


@dataclass
class _Worker:
    """One worker, and what it owes.

    Attributes:
        process: which steps its environments. is_up: whether they are reset.
        is_sent: whether its rows have actions that are not answered.
        owes: after its death, the row that ends the episodes which that cut off, then the row of new ones.
        ticks: rows answered.
    """

    number: int
    process: Supervised
    is_up: bool = False
    is_sent: bool = False
    owes: Literal["nothing", "end", "beginning"] = "nothing"
    ticks: int = 0


class EnvironmentPool(AsyncEnvironments):
    """The same number of environments in each of W workers; a worker's rows are one group, ready together.

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
        self._max_restarts = max_restarts
        self.groups = workers
        self._memory = anonymous_memory()
        self._selector = selectors.DefaultSelector()
        self._workers = []
        for number, activity in enumerate(shared_activities(self._memory, workers)):
            process = Supervised((), activity, (self._memory,), limits_s=(step_s, preparation_s))
            self._workers.append(_Worker(number, process))
        self._ready: list[int] = []
        self._clock, self._judged_s = AwakeClock(2.0 * WAIT_S), 0.0
        self._is_started = False
        try:
            for worker in self._workers:
                self._start(worker)
            self.spec, self.rows = self._meet()
        except BaseException:
            self.close()
            raise
        shared = self._shared = SharedRows(self._memory, workers, workers * self.rows, self.spec)
        self.observations, self.rewards, self._final = shared.observations, shared.rewards, shared.final_observations
        self.terminated, self.truncated = shared.terminated, shared.truncated

    def reset(self) -> Observations:
        """First episodes everywhere; see ``AsyncEnvironments``."""
        for worker in self._workers:
            _tell(worker, "reset", PREPARING)
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
                _tell(worker, "step", STEPPING)
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
            self._forget(worker)
            if worker.process.channel is not None:
                worker.process.channel.close()
        until_s = time.monotonic() + _GRACE_S
        for worker in self._workers:
            if worker.is_up:
                worker.process.wait(max(until_s - time.monotonic(), 0.0))
            worker.process.end(wait=True)
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
        process = worker.process
        incarnation = [process.incarnation + 1] if process.incarnation >= 0 else []
        request = self._request | {"seed": [self._seed, worker.number, *incarnation]}
        told = json.dumps({"worker": worker.number, "workers": self.groups, "environment": request})
        process.command = (sys.executable, "-P", "-m", "accel.envs.worker")
        process.start(self._clock.s, with_request(told))
        if process.channel is not None and process.is_connected:
            self._selector.register(process.channel, selectors.EVENT_READ, worker)

    def _hear(self, timeout_s: float) -> None:
        """Take in what workers say, for which to wait so long, and judge those that say nothing."""
        for key, _ in self._selector.select(timeout_s):
            worker = key.data
            for kind, body in worker.process.receive(self._clock.s):
                self._take(worker, kind, body)
            if not worker.process.is_connected:
                self._forget(worker)
        if self._clock.look() > self._judged_s + WAIT_S:
            self._judged_s = self._clock.s
            for worker in self._workers:
                if worker.process.is_due(self._clock.s):
                    self._start(worker)
                elif why := worker.process.look(self._clock.s):
                    self._fail(worker, why)

    def _take(self, worker: _Worker, kind: str, body: Json) -> None:
        if kind == "hello":
            first = self._hellos.setdefault(worker.number, body)
            if body != first:
                raise EnvError(f"the environments of worker {worker.number} have other spaces than before")
            if self._is_started:
                _tell(worker, "reset", PREPARING)
        elif kind == "failed":
            self._report(worker, int(str(body["environment"])), str(body["raised"]), str(body["traceback"]))
        elif kind == "done" and worker.is_up:
            self._answer(worker)
        elif kind == "done":
            worker.is_up = True
            worker.process.began_work(self._clock.s)
            self._settle(worker)

    def _fail(self, worker: _Worker, why: str) -> None:
        """A worker is lost: end what is left of it, and plan another. Raises EnvError: too often, or at the start.

        The interface that an environment breaks as soon as it is made, another one of its kind would break too.
        """
        process, told = worker.process, worker.process.last_error
        is_steady = process.is_steady(self._clock.s)
        error = _ERRORS.get(str(told.get("kind")), EnvError)
        if not self._is_started or (error is InterfaceError and not is_steady):
            raise error(str(told.get("message", f"worker {worker.number}: {why}")))
        self._forget(worker)
        was_up, worker.is_up = worker.is_up, False
        has_begun = worker.ticks > _FIRST_ROWS
        most = self._max_restarts if has_begun else min(self._max_restarts, FIRST_RESTARTS)
        if process.fail(self._clock.s, most) is None:
            raise (EnvError if has_begun else InterfaceError)(
                f"environment worker {worker.number} failed {process.failures} times in a row, the last time "
                f"because {why} (--max-actor-restarts): mend the environment"
            )
        if was_up:
            for row in range(self.rows):
                self._report(worker, row, str(told.get("error", f"EnvError: {why}")), str(told.get("traceback", "")))
            worker.owes = "end" if self.spec.autoreset == "next_step" else "beginning"
            self._settle(worker)

    def _report(self, worker: _Worker, row: int, raised: str, trace: str) -> None:
        self.failures.append(EnvFailure(worker.ticks + 1, worker.number * self.rows + row, raised, trace))

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

    def _forget(self, worker: _Worker) -> None:
        with suppress(KeyError, ValueError):  # It is forgotten already, or was never known.
            if worker.process.channel is not None:
                self._selector.unregister(worker.process.channel)


def _tell(worker: _Worker, kind: str, phase: int) -> None:
    """The worker's time begins now, however late it hears this."""
    activity = worker.process.activity
    activity.words[0] += 1
    activity.enter(phase)
    worker.process.send(kind)
