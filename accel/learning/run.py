"""A run on the learner's side: directory, welcome, handshake, session. No torch until the actors have answered.

The session's module imports torch in a thread while actors make their environments.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from accel.acting.joining import InlineActor
from accel.config.actor import ActorConfig
from accel.errors import ConfigError
from accel.learning.handshake import POLL_S, ActorGroup, LearnerPlace, join_groups, wait_for_actors
from accel.runs.directory import RunDirectory
from accel.runs.job import Job
from accel.runs.summary import Summary
from accel.system.garbage import without_collection
from accel.system.machine import describe_machine, read_machine
from accel.transport.base import LearnerTransport
from accel.transport.learners import LearnerLink
from accel.tuning.choice import FULL_PRECISION, parse_choice

if TYPE_CHECKING:
    import torch

    from accel.algorithms.gradient_exchange import GradientExchange
    from accel.learning.learner import Learner
    from accel.learning.session import Session


def run_session(
    job: Job,
    place: LearnerPlace,
    inline: InlineActor | None = None,
    initialise: Callable[[Learner], None] | None = None,
) -> Summary:
    """Train on a connected transport until done. The actors make their environments while this process imports torch.

    Args:
        job: what to run. place: this learner's; the run's others call ``follow_session``.
        inline: the actor, where learner and actor share one process.
        initialise: gives a new run's networks other weights than random ones.
    Raises:
        AccelError: whatever keeps the run from starting or going on; a checkpoint was written if any update was made.
    """
    config = job.config
    run = RunDirectory.create(config.run.results_dir, job.name) if job.resume is None else RunDirectory.open(job.resume)
    with run:
        try:
            session = _prepare(job, run, place, inline, initialise)
        except BaseException:
            if job.resume is None:
                run.abandon()
            raise
        return session.train()


def _prepare(
    job: Job,
    run: RunDirectory,
    place: LearnerPlace,
    inline: InlineActor | None,
    initialise: Callable[[Learner], None] | None,
) -> Session:
    restart, env_steps = run.next_restart(), run.latest_env_steps()
    if place.link is not None:
        place.link.gather({"restart": restart, "env_steps": env_steps, "host": os.uname().nodename})
    importing = _welcome(job, place.transport, restart, env_steps, learner=0)
    if inline is not None:
        inline.join()
    group = _meet(job, place, importing)
    job = job.for_observations(group.spec)
    if job.resume is None:
        _write_facts(job, run, place.allowed_cores)
    from accel.learning.session import Session

    connect = None if place.link is None else _connector(place.link, job, 0)
    session = Session(job, run, group, place, inline, connect)
    if initialise is not None:
        initialise(session.learner)
    place.transport.welcome(session.learner.agreement.to_json())
    if job.resume is not None:
        session.checkpoints.restore()
        # A run that reached its end and could not write its summary, on a full disk say, writes it now; one that owes
        # updates makes them from the replay that was kept, which is that of a single learner.
        owed = session.loop.updates_owed
        makes_them = owed > 0 and session.loop.store.available > 0 and job.config.learner.learners == 1
        if (reason := session.loop.finished()) is not None and run.summary.exists() and not makes_them:
            lost = f" ({owed:,} updates are owed, and no replay is there to make them from)" if owed else ""
            raise ConfigError(
                f"{run.path} has nothing left to do: {reason}{lost}. Raise --total-env-steps, --stop-at-env-steps or "
                "--stop-at-return, to go on"
            )
        # Only now: options that do not go with the checkpoint must not replace those that do.
        _write_facts(job, run, place.allowed_cores)
    session.checkpoints.check_space()
    session.learner.synchronise()
    return session


def follow_session(job: Job, place: LearnerPlace, link: LearnerLink) -> None:
    """Train with learner 0, to which the link is too, until done. Raises: AccelError."""
    host = os.uname().nodename
    told = link.gather({"host": host})
    begin, neighbours = told[0], [theirs["host"] for theirs in told[: link.learner]].count(host)
    restart, env_steps = int(str(begin["restart"])), int(str(begin["env_steps"]))
    importing = _welcome(job, place.transport, restart, env_steps, learner=link.learner)
    group = _meet(job, place, importing)
    job = job.for_observations(group.spec)
    from accel.learning.session import follow

    follow(job, group, place, _connector(link, job, neighbours))


def _welcome(job: Job, transport: LearnerTransport, restart: int, env_steps: int, learner: int) -> Future[object]:
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
    return begin_import("accel.learning.session")


def _meet(job: Job, place: LearnerPlace, importing: Future[object]) -> ActorGroup:
    """The answers of all actors, once torch is there too."""
    group = wait_for_actors(place.transport, job.config.run.peer_timeout_s, place.stop)
    while not importing.done():
        place.transport.pump()
        time.sleep(POLL_S)
    importing.result()
    return join_groups(group, place.link)


def _connector(link: LearnerLink, job: Job, neighbours: int) -> Callable[[torch.device], GradientExchange]:
    """Connects to the other learners, so many of which come first on this node, on a device: a GPU of its own."""
    if job.config.learner.device != "cpu":
        from accel.learning.device import take_gpu

        take_gpu(neighbours)
    if job.config.algorithm.asynchronous_gradients:
        from accel.learning.asynchronous import AsynchronousGradients

        return lambda device: AsynchronousGradients(link)
    from accel.learning.process_group import join_learners

    return partial(join_learners, link, timeout_s=job.config.run.peer_timeout_s)


def begin_import(name: str) -> Future[object]:
    """Import a module in a thread, so that this one goes on talking to the actors.

    A process that gives up waits for the thread: torch, cut off in its import, prints tracebacks.
    """
    executor = ThreadPoolExecutor(1)
    importing: Future[object] = executor.submit(without_collection()(importlib.import_module), name)
    executor.shutdown(wait=False)
    return importing


def _write_facts(job: Job, run: RunDirectory, allowed_cores: int | None) -> None:
    run.write_config(job.config.to_toml_values(), job.config.descriptions())
    machine = describe_machine(read_machine(allowed_cores=allowed_cores))
    run.write(run.machine, machine | {"command": list(job.command)})
    run.summary.unlink(missing_ok=True)
