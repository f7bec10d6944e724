"""A run on the learner's side: directory, welcome, handshake, session. No torch until the actors have answered.

The session's module imports torch in a thread while actors make their environments.
"""

from __future__ import annotations

import importlib
import threading
import time
from typing import TYPE_CHECKING

from accel.acting.actor import InlineActor
from accel.config.actor import ActorConfig
from accel.errors import ConfigError
from accel.learning.handshake import POLL_S, Stop, wait_for_crew
from accel.runs.directory import RunDirectory
from accel.runs.job import Job
from accel.runs.summary import Summary
from accel.system.machine import describe_machine, read_machine
from accel.transport.base import LearnerTransport
from accel.tuning.choice import FULL_PRECISION, parse_choice

if TYPE_CHECKING:
    from accel.learning.session import Session


def run_session(
    job: Job,
    transport: LearnerTransport,
    stop: Stop,
    *,
    cores: tuple[int, ...] = (),
    allowed_cores: int | None = None,
    inline: InlineActor | None = None,
) -> Summary:
    """Train on a connected transport until done. The actors make their environments while this process imports torch.

    Args:
        job: what to run.
        transport: the learner's end.
        stop: polled between updates.
        cores: those this process runs on; they decide torch's threads where the configuration does not.
        allowed_cores: how many this process might use before it was pinned, for ``machine.json``; None: as many as now.
        inline: the actor, where learner and actor share one process.
    Raises:
        AccelError: whatever keeps the run from starting or going on; a checkpoint was written if any update was made.
    """
    config = job.config
    run = RunDirectory.create(config.run.results_dir, job.name) if job.resume is None else RunDirectory.open(job.resume)
    with run:
        try:
            session = _prepare(job, run, transport, stop, cores, allowed_cores, inline)
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
) -> Session:
    config = job.config
    restart = run.next_restart()
    choice = parse_choice(config.compression.compressor, config.policy.network)
    schemes = tuple(dict.fromkeys((FULL_PRECISION, *choice.levels)))
    told = ActorConfig.of(
        config, schemes=schemes, shares_levels=choice.kind == "auto", restart=restart, env_steps=run.latest_env_steps()
    )
    transport.welcome(told.to_json())
    importing = _Import("accel.learning.session")
    if job.resume is None:
        _write_facts(job, run, allowed_cores)
    if inline is not None:
        inline.join()
    crew = wait_for_crew(transport, config.run.peer_timeout_s, stop)
    while not importing.done:
        transport.pump()
        time.sleep(POLL_S)
    importing.check()
    from accel.learning.session import Session

    session = Session(job, run, crew, transport, stop, cores, restart, inline.actor if inline else None)
    transport.welcome(session.agreement.to_json())
    if job.resume is not None:
        session.restore()
        if (reason := session.loop.finished()) is not None:
            raise ConfigError(
                f"{run.path} has nothing left to do: {reason}. Raise --total-env-steps, or --stop-at-return, to go on"
            )
        # Only now: options that do not go with the checkpoint must not replace those that do.
        _write_facts(job, run, allowed_cores)
    return session


class _Import:
    """Imports a module in a thread, so that this one goes on talking to the actors."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
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
            importlib.import_module(self._name)
        except BaseException as error:  # noqa: BLE001 - raised again by check()
            self._error = error


def _write_facts(job: Job, run: RunDirectory, allowed_cores: int | None) -> None:
    run.write_config(job.config.to_toml_values(), job.config.descriptions())
    run.write_machine(describe_machine(read_machine(allowed_cores=allowed_cores)) | {"command": list(job.command)})
    run.summary.unlink(missing_ok=True)
