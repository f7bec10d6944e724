"""One run from the learner's side: directory, handshake, training, and an ending in good order whatever happens."""

from __future__ import annotations

import importlib
import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from accel.compression_choice import FULL_PRECISION, parse_choice
from accel.config import TrainConfig
from accel.errors import ConfigError, LaunchError, TransportError
from accel.job import Job, error_of_kind
from accel.machine import describe_machine, read_machine
from accel.rundir import RunDirectory
from accel.spaces import EnvSpec, Json
from accel.summary import Summary
from accel.transport.base import ActorTransport, LearnerTransport

if TYPE_CHECKING:
    from accel.actor import Actor
    from accel.assembly import Assembly

POLL_S = 0.002

logger = logging.getLogger("accel")


class Stop(Protocol):
    """Why the run should stop, or None."""

    def __call__(self) -> str | None:
        """Polled between updates."""
        ...


class LocalActor:
    """The one actor of a run in a single process."""

    def __init__(self, transport: ActorTransport) -> None:
        self._transport = transport
        self.actor: Actor | None = None

    def join(self) -> None:
        """Take the welcome, make the environments, answer. Raises EnvError, MissingExtraError."""
        from accel.launch import join

        self.actor = join(self._transport, 0.0)


@dataclass(frozen=True)
class Crew:
    """What the actors answered, all alike.

    Attributes:
        spec: the environment's layout. layout: digest of the unrolls' layout.
        cpu_features: what every actor's CPU offers.
        hosts: where actors run, by actor.
    """

    spec: EnvSpec
    layout: str
    cpu_features: frozenset[str]
    hosts: tuple[str, ...]


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
    importing = _Import("accel.assembly")
    if job.resume is None:
        _write_facts(job, run, allowed_cores)
    if local is not None:
        local.join()
    crew = wait_for_crew(transport, config.peer_timeout_s, stop)
    while not importing.done:
        transport.pump()
        time.sleep(POLL_S)
    importing.check()
    from accel.assembly import Assembly

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


def welcome(config: TrainConfig, restart: int) -> Json:
    """What every actor is told: the configuration, every scheme that may act and whether several do at once, and how
    often the run was started."""
    choice = parse_choice(config.compressor, config.network)
    return config.to_json() | {
        "env_kwargs": config.env_kwargs,
        "schemes": list(dict.fromkeys((FULL_PRECISION, *choice.levels))),
        "shares_levels": choice.kind == "auto",
        "restart": restart,
    }


def wait_for_crew(transport: LearnerTransport, timeout_s: float, stop: Stop) -> Crew:
    """Every actor's answer to the welcome.

    Raises:
        AccelError: an actor's own error, a silent or dead actor, actors that disagree, or a stop request meanwhile.
    """
    answers: dict[int, Json] = {}
    deadline = time.monotonic() + timeout_s
    while len(answers) < transport.actors:
        for actor, message in transport.messages():
            if "error" in message:
                raise error_of_kind(str(message.get("kind")), f"actor {actor}: {message['error']}")
            answers[actor] = message
        silent = sorted(set(range(transport.actors)) - set(answers))
        if silent and (dead := transport.dead() & set(silent)):
            raise TransportError(f"actors {_numbers(dead)} died before training began; see their messages above")
        if silent and time.monotonic() > deadline:
            raise TransportError(
                f"actors {_numbers(silent)} did not answer within {timeout_s:g} s: look at their nodes, or raise "
                "--peer-timeout-s where environments take longer to make"
            )
        if (reason := stop()) is not None:
            raise LaunchError(f"{reason} before training began")
        if silent:
            time.sleep(POLL_S)
    first = answers[0]
    for actor, answer in answers.items():
        if (answer["spec"], answer["layout"]) != (first["spec"], first["layout"]):
            raise TransportError(
                f"actor {actor} on {answer['host']} has another environment or version than actor 0 on "
                f"{first['host']}: install the same packages on every node"
            )
    features = [frozenset(str(f) for f in answer["cpu_features"]) for answer in answers.values()]  # type: ignore[attr-defined]
    return Crew(
        spec=EnvSpec.from_json(first["spec"]),  # type: ignore[arg-type]
        layout=str(first["layout"]),
        cpu_features=frozenset.intersection(*features),
        hosts=tuple(str(answers[actor]["host"]) for actor in sorted(answers)),
    )


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


def _numbers(actors: frozenset[int] | set[int] | list[int]) -> str:
    return ", ".join(str(actor) for actor in sorted(actors))
