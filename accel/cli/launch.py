"""The composition root: a config and a role become objects. Starts mpirun where nobody has."""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import signal
import sys
import tomllib
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from accel.errors import AccelError, JobError, LaunchError, TransportError
from accel.experience.unroll import FORMAT_VERSION as UNROLL_FORMAT
from accel.system.pinning import free_cores, local_size, pin_rank
from accel.system.signals import StopRequest, end_with_parent, ignore_stop_signals
from accel.transport import (
    Aborted,
    LaunchInfo,
    Stopped,
    Topology,
    TransportOptions,
    connect,
    detect_launch,
    is_actor,
    join_world,
)
from accel.transport.base import ActorTransport
from accel.transport.join import START_TIMEOUT_S
from accel.transport.remote_actor import RemoteActor
from accel.transport.remote_learner import RemoteLearner
from compressors.artifact import FORMAT_VERSION as ARTIFACT_FORMAT
from compressors.errors import CompressorError
from monitor.errors import MonitorError
from monitor.plain_text import without_controls

if TYPE_CHECKING:
    from accel.cli.mpirun import Ended
    from accel.config import TrainConfig
    from accel.runs.job import Job
    from accel.runs.summary import Summary
    from accel.transport.endpoint import Endpoint

FORMATS = {"unroll": UNROLL_FORMAT, "artifact": ARTIFACT_FORMAT}
EXIT_ABORTED = 3
EXIT_INTERRUPTED = 130
_OF_USERS = (AccelError, CompressorError, MonitorError)

logger = logging.getLogger("accel")


def train(config: TrainConfig, *, resume: Path | None = None) -> Summary:
    """Train a policy and return what happened.

    With ``actors = 0`` everything happens in this process. Otherwise mpirun is started, with the learner and the actors
    as its ranks, unless this process is a rank itself: then rank 0 learns and returns, and other ranks must not call
    this but ``act``.

        import accel
        summary = accel.train(accel.TrainConfig(env="CartPole-v1", total_env_steps=200_000))
        print(summary.return_mean, summary.env_steps_per_s)

    Args:
        config: the run.
        resume: a run directory to go on with; ``config`` then says how.
    Returns:
        The run's summary, as in its ``summary.json``.
    Raises:
        AccelError: one clear message; see ``accel.errors``.
    """
    from accel.runs.job import Job, check_config

    job = Job(check_config(config), resume)
    info = detect_launch()
    if is_actor(info):
        raise LaunchError("train() belongs on the first rank only; on the others call accel.cli.launch.act()")
    if info.is_launched:
        return learn(job, info)
    return start(job)


def start(job: Job) -> Summary:
    """Run a job from outside any launcher: in this process, or under an mpirun of its own."""
    if job.config.acting.actors == 0:
        return _learn_alone(job)
    return _start_mpirun(job)


def learn(job: Job, info: LaunchInfo) -> Summary:
    """The learner's role in a launched job. Whatever goes wrong, every actor is told and ends too."""
    from accel.learning.run import run_session

    stop = StopRequest()
    with stop.installed():
        endpoint, transport = _connect(
            info, job.config.run.peer_timeout_s, job.config.acting.unrolls_in_flight, job.config.store.held_unrolls
        )
        if not isinstance(transport, RemoteLearner):
            raise LaunchError(f"rank {info.rank} is an actor: call accel.cli.launch.act() on it")
        try:
            if info.size is None:  # The launcher told only ranks: the command line could not know how many act.
                job = replace(job, config=job.config.replace(actors=transport.actors))
            if transport.actors != job.config.acting.actors:
                raise LaunchError(
                    f"actors = {job.config.acting.actors}, but the launcher started {transport.actors} ranks beside "
                    f"the learner: start {job.config.acting.actors + 1} ranks, or leave --actors out"
                )
            allowed = all_cores()  # Before pinning: the machine is what all ranks share.
            cores = free_cores(allowed, local_size(os.environ))
            if job.config.acting.pin_cores:
                pin_rank(info)
            summary = run_session(job, transport, stop, cores=cores, allowed_cores=len(allowed))
            if transport.alive():
                # Its actors never said goodbye, and the launcher waits for them: but the caller has a summary to show.
                atexit.register(endpoint.abort_job, EXIT_ABORTED)
            return summary
        except BaseException as error:
            reason = str(error) or type(error).__name__
            if deaf := transport.abort(reason):
                # This ends the process too, so nobody above could tell what was wrong.
                logger.error("accel: %s", without_controls(reason), exc_info=not isinstance(error, _OF_USERS))
                logger.error("actors %s do not answer: ending the job", ", ".join(map(str, sorted(deaf))))
                endpoint.abort_job(EXIT_ABORTED)
            raise
        finally:
            transport.close()


def act(info: LaunchInfo | None = None, timeout_s: float = START_TIMEOUT_S) -> int:
    """An actor's role in a launched job; returns the exit status. Errors reach the user through the learner.

    Args:
        info: what the launcher announced; None: read it from the environment.
        timeout_s: how long MPI may take to start.

    From then on this process ignores stop signals and, on Linux, ends when its launcher does.
    """
    ignore_stop_signals()
    end_with_parent(signal.SIGKILL)  # an environment that hangs would else outlive a launcher that gives up
    info = info or detect_launch()
    _, transport = _connect(info, timeout_s, 2, 1)
    if not isinstance(transport, RemoteActor):
        raise LaunchError(f"rank {info.rank} is the learner: call accel.train() on it")
    try:
        return run_actor(transport, lambda: pin_rank(info))
    except Aborted:
        return EXIT_ABORTED
    finally:
        transport.close()


def run_actor(transport: ActorTransport, pin: Callable[[], object] = lambda: None, timeout_s: float = 600.0) -> int:
    """Serve a learner until it stops this actor; returns the exit status.

    Args:
        transport: this actor's end.
        pin: see ``accel.acting.actor.join``.
        timeout_s: how long to wait for the configuration and for the learner's answer to an error.
    """
    from accel.acting.actor import join

    try:
        actor = join(transport, timeout_s, pin)
    except (Aborted, TransportError):
        raise
    except Exception:
        logger.debug("actor %d cannot start", transport.actor, exc_info=True)
        transport.wait_policy(timeout_s)
        return EXIT_ABORTED
    try:
        actor.start()
        while True:
            actor.step()
    except Stopped:
        return 0
    except TransportError:
        raise
    except Exception as error:  # noqa: BLE001 - the learner reports it
        told: dict[str, object] = {"error": f"{type(error).__name__}: {error}"}
        if not isinstance(error, AccelError):  # somebody else's code: where it failed is half of the message
            told["traceback"] = traceback.format_exc()
        transport.report(told)
        return EXIT_ABORTED
    finally:
        actor.close()


def abort_job(info: LaunchInfo, error: AccelError) -> None:
    """Before a job exists: make every other rank of a launched job end with this error."""
    if info.is_launched and (info.size is None or info.size > 1):
        _, transport = _connect(info, START_TIMEOUT_S, 1, 1)
        if isinstance(transport, RemoteLearner):
            transport.abort(str(error))
            transport.close()


def all_cores() -> tuple[int, ...]:
    """The cores that this process may use."""
    return (
        tuple(sorted(os.sched_getaffinity(0)))
        if hasattr(os, "sched_getaffinity")
        else tuple(range(os.cpu_count() or 1))
    )


def start_timeout_s(arguments: Sequence[str]) -> float:
    """How long MPI may take to start, from a command line or its TOML file: all that an actor needs to know of them."""
    values = dict(pairwise(arguments))
    values |= dict(word.split("=", 1) for word in arguments if word.startswith("--") and "=" in word)
    try:
        file = tomllib.loads(Path(values["--config"]).read_text()) if "--config" in values else {}
        return float(values.get("--peer-timeout-s", file.get("peer_timeout_s", START_TIMEOUT_S)))
    except (OSError, ValueError, TypeError):
        return START_TIMEOUT_S  # The learner reports what is wrong with it.


def _connect(
    info: LaunchInfo, timeout_s: float, in_flight: int, batch_unrolls: int
) -> tuple[Endpoint, RemoteLearner | RemoteActor]:
    endpoint = join_world(info, timeout_s)
    options = TransportOptions(in_flight=in_flight, max_held=batch_unrolls + 1, prefetch=batch_unrolls)
    return endpoint, connect(endpoint, Topology.single_learner(endpoint.size), options=options, formats=FORMATS)


def _learn_alone(job: Job) -> Summary:
    """Learner and actor in one process and one thread, in turns: deterministic."""
    from accel.acting.actor import InlineActor
    from accel.learning.run import run_session
    from accel.transport.local import LocalTransport

    stop = StopRequest()
    with stop.installed():
        options = TransportOptions(
            in_flight=job.config.acting.unrolls_in_flight, max_held=job.config.store.held_unrolls + 1
        )
        transport = LocalTransport(1, options=options)
        inline = InlineActor(transport.actor(0))
        try:
            return run_session(job, transport.learner, stop, cores=all_cores()[:1], inline=inline)
        finally:
            if inline.actor is not None:
                inline.actor.close()


def _start_mpirun(job: Job) -> Summary:
    from accel.cli import mpirun
    from accel.runs.directory import STARTS
    from accel.runs.summary import Summary
    from accel.transport import mpirun_command

    config = job.config
    hosts = tuple(config.acting.hosts.split(",")) if config.acting.hosts else ()
    command = mpirun_command(
        config.acting.actors + 1, hosts=hosts, hostfile=config.acting.hostfile, silence_s=config.run.peer_timeout_s
    )
    elsewhere = config.acting.hosts is not None or config.acting.hostfile is not None
    starts = job.path / STARTS
    before = _written_at(starts)
    ended = mpirun.run(
        [*command, sys.executable, "-P", "-m", "accel.cli.rank", job.to_text()],
        ranks=config.acting.actors + 1,
        can_stop=lambda: elsewhere or _written_at(starts) != before,
        patience_s=config.run.peer_timeout_s,
    )
    if (job.path / "summary.json").exists() and (summary := Summary.read(job.path)).job == job.token:
        if ended.trouble or ended.status:
            why = ended.trouble or "a rank or a node was lost on the way"
            logger.warning("the run is complete; mpirun ended with status %d: %s", ended.status, why)
        return summary
    learner = ended.learner
    if elsewhere and learner is not None and ended.learner_ended and learner.status == 0:
        raise JobError(f"the run is complete; its directory {job.path} is on {learner.host}", 0)
    began = elsewhere or _written_at(starts) != before
    if ended.stopped and not began:
        raise JobError("stopped before training began", EXIT_INTERRUPTED)
    kept = f". {_what_is_kept(job, ended)}" if began else ""
    raise JobError(f"{_what_happened(ended)}{kept}", _exit_code(ended))


def _what_happened(ended: Ended) -> str:
    """Why there is no summary, as far as this process can tell."""
    learner = ended.learner
    if learner is not None and ended.learner_ended:
        return f"the learner ended with an error, status {learner.status}; its message is above"
    if ended.trouble:
        return f"the job was ended: {ended.trouble}"
    if ended.stopped:
        return "stopped before the run could end in good order"
    when = "before the learner had started" if learner is None else "and there is no summary"
    return f"mpirun ended with status {ended.status} {when}; see the messages above"


def _what_is_kept(job: Job, ended: Ended) -> str:
    """The newest checkpoint, and how to go on from it."""
    command = f"  accel train --resume {shlex.quote(str(job.path))}"
    if not job.path.exists():
        where = "" if ended.learner is None else f" on {ended.learner.host}"
        return f"Look for checkpoints in {job.path}{where}, and continue there from the newest:\n{command}"
    checkpoints = sorted(job.path.glob("checkpoints/step-*"))
    if not checkpoints:
        return "No checkpoint had been written: start the run anew under another --name"
    return f"Continue from its newest checkpoint, {checkpoints[-1].name}:\n{command}"


def _exit_code(ended: Ended) -> int:
    """Never 0, which means that a summary was written."""
    if ended.learner is not None and ended.learner.status != 0:
        return ended.learner.status
    if ended.stopped:
        return EXIT_INTERRUPTED
    return ended.status or EXIT_ABORTED


def _written_at(path: Path) -> int | None:
    """When a file was written, in nanoseconds; None where there is none."""
    return path.stat().st_mtime_ns if path.exists() else None
