"""A run on the learner's side: directory, welcome, handshake, session. No torch until the actors have answered.

The session's module imports torch in a thread while actors make their environments.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from accel.acting.actor import InlineActor
from accel.config.actor import ActorConfig
from accel.errors import ConfigError
from accel.learning.handshake import POLL_S, ActorGroup, Stop, join_groups, wait_for_actors
from accel.runs.directory import RunDirectory
from accel.runs.job import Job
from accel.runs.summary import Summary
from accel.system.garbage import uncollected
from accel.system.machine import describe_machine, read_machine
from accel.transport.base import LearnerTransport
from accel.transport.learners import LearnerLink
from accel.tuning.choice import FULL_PRECISION, parse_choice

if TYPE_CHECKING:
    import torch

    from accel.algorithms.exchange import GradientExchange
    from accel.learning.session import Session


def run_session(
    job: Job,
    transport: LearnerTransport,
    stop: Stop,
    *,
    cores: tuple[int, ...] = (),
    allowed_cores: int | None = None,
    inline: InlineActor | None = None,
    link: LearnerLink | None = None,
) -> Summary:
    """Train on a connected transport until done. The actors make their environments while this process imports torch.

    Args:
        job: what to run.
        transport: the learner's end.
        stop: polled between updates.
        cores: those this process runs on; they decide torch's threads where the configuration does not.
        allowed_cores: how many this process might use before it was pinned, for ``machine.json``; None: as many as now.
        inline: the actor, where learner and actor share one process.
        link: to the run's other learners, which call ``follow_session``; None: there are none.
    Raises:
        AccelError: whatever keeps the run from starting or going on; a checkpoint was written if any update was made.
    """
    config = job.config
    run = RunDirectory.create(config.run.results_dir, job.name) if job.resume is None else RunDirectory.open(job.resume)
    with run:
        try:
            session = _prepare(job, run, transport, stop, cores, allowed_cores, inline, link)
        except BaseException:
            if job.resume is None:
                run.abandon()
            raise
        return session.train()


def _prepare(
    job: Job,
    run: RunDirectory,
    transport: LearnerTransport,
    stop: Stop,
    cores: tuple[int, ...],
    allowed_cores: int | None,
    inline: InlineActor | None,
    link: LearnerLink | None,
) -> Session:
    restart, env_steps = run.next_restart(), run.latest_env_steps()
    if link is not None:
        link.gather({"restart": restart, "env_steps": env_steps, "host": os.uname().nodename})
    importing = _welcome(job, transport, restart, env_steps, learner=0)
    if inline is not None:
        inline.join()
    group = _meet(job, transport, stop, importing, link)
    job = job.for_observations(group.spec)
    if job.resume is None:
        _write_facts(job, run, allowed_cores)
    from accel.learning.session import Session

    if link is not None:
        _take_gpu(job, 0)
    actor = inline.actor if inline else None
    session = Session(job, run, group, transport, stop, cores, actor, allowed_cores, _connector(link, job))
    transport.welcome(session.learner.agreement.to_json())
    if job.resume is not None:
        session.restore()
        # A run that reached its end and could not write its summary, on a full disk say, writes it now.
        if (reason := session.loop.finished()) is not None and run.summary.exists():
            raise ConfigError(
                f"{run.path} has nothing left to do: {reason}. Raise --total-env-steps, --stop-at-env-steps or "
                "--stop-at-return, to go on"
            )
        # Only now: options that do not go with the checkpoint must not replace those that do.
        _write_facts(job, run, allowed_cores)
    session.checkpoints.check_space()
    session.learner.synchronise()
    return session


def follow_session(
    job: Job, transport: LearnerTransport, stop: Stop, link: LearnerLink, *, cores: tuple[int, ...] = ()
) -> None:
    """Train with learner 0 until done. Args: as for ``run_session``. Raises: AccelError."""
    host = os.uname().nodename
    told = link.gather({"host": host})
    begin, place = told[0], [theirs["host"] for theirs in told[: link.learner]].count(host)
    restart, env_steps = int(str(begin["restart"])), int(str(begin["env_steps"]))
    importing = _welcome(job, transport, restart, env_steps, learner=link.learner)
    group = _meet(job, transport, stop, importing, link)
    job = job.for_observations(group.spec)
    from accel.learning.session import Follower

    connect = _connector(link, job)
    if connect is None:
        raise ConfigError("one learner has nobody to follow")
    _take_gpu(job, place)
    follower = Follower(job, group, transport, stop, cores, connect)
    transport.welcome(follower.learner.agreement.to_json())
    follower.learner.synchronise()
    follower.train()


def _welcome(job: Job, transport: LearnerTransport, restart: int, env_steps: int, learner: int) -> _Import:
    """Tell a learner's actors their configuration, and begin to import torch."""
    config = job.config
    choice = parse_choice(config.compression.compressor)
    told = ActorConfig.of(
        config,
        schemes=tuple(dict.fromkeys((FULL_PRECISION, *choice.levels))),
        restart=restart,
        env_steps=env_steps,
        learner=learner,
    )
    transport.welcome(told.to_json())
    return _Import("accel.learning.session")


def _meet(
    job: Job, transport: LearnerTransport, stop: Stop, importing: _Import, link: LearnerLink | None
) -> ActorGroup:
    """The answers of all actors, once torch is there too."""
    group = wait_for_actors(transport, job.config.run.peer_timeout_s, stop)
    while not importing.done:
        transport.pump()
        time.sleep(POLL_S)
    importing.check()
    return join_groups(group, link)


def _take_gpu(job: Job, place: int) -> None:
    """A GPU for one of several learners, where they may compute on one."""
    if job.config.learner.device != "cpu":
        from accel.learning.device import take_gpu

        take_gpu(place)


def _connector(link: LearnerLink | None, job: Job) -> Callable[[torch.device], GradientExchange] | None:
    """Connects to the other learners, on a device."""
    if link is None:
        return None
    if job.config.algorithm.asynchronous_gradients:
        from accel.learning.asynchronous import AsynchronousGradients

        return lambda device: AsynchronousGradients(link)
    from accel.learning.process_group import join_learners

    return partial(join_learners, link, timeout_s=job.config.run.peer_timeout_s)


class _Import:
    """Imports a module in a thread, so that this one goes on talking to the actors."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._error: BaseException | None = None
        # Not a daemon: a process that gives up lets the import end. Torch, cut off in it, prints tracebacks.
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether the import has ended."""
        return not self._thread.is_alive()

    def check(self) -> None:
        """Raises what the import raised."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with uncollected():
                importlib.import_module(self._name)
        except BaseException as error:  # noqa: BLE001 - raised again by check()
            self._error = error


def _write_facts(job: Job, run: RunDirectory, allowed_cores: int | None) -> None:
    run.write_config(job.config.to_toml_values(), job.config.descriptions())
    run.write_machine(describe_machine(read_machine(allowed_cores=allowed_cores)) | {"command": list(job.command)})
    run.summary.unlink(missing_ok=True)
