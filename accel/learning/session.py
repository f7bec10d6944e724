"""One run from the learner's side: directory, handshake, training, and an ending in good order whatever happens."""

from __future__ import annotations

import importlib
import threading
import time
from typing import TYPE_CHECKING

from accel.acting.joining import LocalActor
from accel.cli.job import Job
from accel.errors import ConfigError, TransportError
from accel.learning.crew import POLL_S, Stop, wait_for_crew, welcome
from accel.runs.directory import RunDirectory
from accel.runs.summary import Summary
from accel.system.machine import describe_machine, read_machine
from accel.transport.base import LearnerTransport

if TYPE_CHECKING:
    from accel.learning.assembly import Assembly


def run_session(
    job: Job,
    transport: LearnerTransport,
    stop: Stop,
    *,
    cores: tuple[int, ...] = (),
    allowed_cores: int | None = None,
    local: LocalActor | None = None,
) -> Summary:
    """Train on a connected transport until done. The actors make their environments while this process imports torch.

    Args:
        job: what to run.
        transport: the learner's end.
        stop: polled between updates.
        cores: those this process runs on; they decide torch's threads where the configuration does not.
        allowed_cores: how many this process might use before it was pinned, for ``machine.json``; None: as many as now.
        local: the actor, where learner and actor share one process.
    Raises:
        AccelError: whatever keeps the run from starting or going on; a checkpoint was written if any update was made.
    """
    config = job.config
    run = RunDirectory.create(config.results_dir, job.name) if job.resume is None else RunDirectory.open(job.resume)
    with run:
        try:
            assembly = _prepare(job, run, transport, stop, cores, allowed_cores, local)
        except BaseException:
            if job.resume is None:
                run.abandon()
            raise
        return assembly.train()


def _prepare(
    job: Job,
    run: RunDirectory,
    transport: LearnerTransport,
    stop: Stop,
    cores: tuple[int, ...],
    allowed_cores: int | None,
    local: LocalActor | None,
) -> Assembly:
    config = job.config
    restart = run.next_restart()
    transport.welcome(welcome(config, restart))
    importing = _Import("accel.learning.assembly")
    if job.resume is None:
        _write_facts(job, run, allowed_cores)
    if local is not None:
        local.join()
    crew = wait_for_crew(transport, config.peer_timeout_s, stop)
    while not importing.done:
        transport.pump()
        time.sleep(POLL_S)
    importing.check()
    from accel.learning.assembly import Assembly

    assembly = Assembly(job, run, crew, transport, stop, cores, restart, local.actor if local else None)
    if assembly.layout.digest != crew.layout:
        raise TransportError("actors and learner lay out unrolls differently: install the same version on every node")
    if job.resume is not None:
        assembly.restore()
        if (reason := assembly.trainer.finished()) is not None:
            raise ConfigError(
                f"{run.path} has nothing left to do: {reason}. Raise --total-env-steps, or --stop-at-return, to go on"
            )
        # Only now: options that do not go with the checkpoint must not replace those that do.
        _write_facts(job, run, allowed_cores)
    return assembly


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
    comments = {name: field.description or "" for name, field in type(job.config).model_fields.items()}
    run.write_config(job.config.to_toml_values(), comments)
    run.write_machine(describe_machine(read_machine(allowed_cores=allowed_cores)) | {"command": list(job.command)})
    run.summary.unlink(missing_ok=True)
