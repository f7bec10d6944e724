"""The composition root: a config and a role become objects. Starts mpirun where nobody has."""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from accel.acting.child import Host
from accel.cli.actor import command as actor_command
from accel.compressors.artifact import FORMAT_VERSION as ARTIFACT_FORMAT
from accel.compressors.errors import CompressorError
from accel.errors import AccelError, DivergenceError, EnvError, JobError, LaunchError, TransportError
from accel.experience.unroll import FORMAT_VERSION as UNROLL_FORMAT
from accel.monitor.errors import MonitorError
from accel.monitor.plain_text import without_controls
from accel.system.pinning import free_cores, local_size, pin_rank, share_cores
from accel.system.pulse import WAITING, Pulse, Watch
from accel.system.signals import Interrupted, StopRequest, end_with_parent, ignore_stop_signals, interruptible
from accel.system.untrusted import read_toml
from accel.transport import (
    LaunchInfo,
    Role,
    Topology,
    TransportOptions,
    detect_launch,
    is_actor,
    join_world,
)
from accel.transport.inference import Questions
from accel.transport.join import START_TIMEOUT_S
from accel.transport.learners import LearnerLink, give_roles, take_role
from accel.transport.remote_actor import RemoteActor
from accel.transport.remote_learner import RemoteLearner

if TYPE_CHECKING:
    from accel.acting.actor import InlineActor
    from accel.cli.mpirun import Ended
    from accel.config import TrainConfig
    from accel.runs.job import Job
    from accel.runs.summary import Summary
    from accel.transport.endpoint import Endpoint

FORMATS = {"unroll": UNROLL_FORMAT, "artifact": ARTIFACT_FORMAT}
EXIT_ABORTED = 3
EXIT_INTERRUPTED = 130
_ANSWER_S = 30.0
_CLOSE_S = 5.0
"""How long environments in the learner's process may take to close."""
SILENCE_S = 10.0
"""How long an actor's rank, which sends a sign of life every two seconds, may be silent."""
_OF_USERS = (AccelError, CompressorError, MonitorError)

logger = logging.getLogger("accel")


def train(config: TrainConfig, *, resume: Path | None = None) -> Summary:
    """Train a policy and return what happened.

    With ``actors = 0`` everything happens in this process: an environment that crashes it, or leaves through C's
    ``exit`` (``os._exit``), ends it without a word. Otherwise mpirun is started, with the learner and the actors
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

    chosen = config.compression.compressor != config.default_compressor
    job = Job(check_config(config), resume, compressor_chosen=chosen)
    info = detect_launch()
    if is_actor(info):
        raise LaunchError("train() belongs on the first rank only; on the others call accel.cli.launch.act()")
    if info.is_launched:
        return learn(job, info)
    return start(job)


def start(job: Job, *, may_exit: bool = False) -> Summary:
    """Run a job from outside any launcher: in this process, or under an mpirun of its own.

    Args:
        may_exit: whether this process may be ended where environments in it hang for good.
    """
    if job.config.acting.actors == 0:
        return learn_alone(job, leave=os._exit if may_exit else None)
    return _start_mpirun(job)


def learn(job: Job, info: LaunchInfo) -> Summary:
    """The first learner's role in a launched job. Whatever goes wrong, every other rank is told and ends too."""
    from accel.learning.run import run_session

    stop = StopRequest()
    with stop.installed():
        endpoint = join_world(info, job.config.run.peer_timeout_s)
        learners, ranks = job.config.learner.learners, endpoint.size
        try:
            others = learners + job.config.inference_ranks
            topology = Topology.of(ranks, learners, job.config.inference_ranks > 0)
            if info.size is None:  # The launcher told only ranks: the command line could not know how many act.
                job = replace(job, config=job.config.replace(actors=ranks - others))
            if ranks - others != job.config.acting.actors:
                raise LaunchError(
                    f"actors = {job.config.acting.actors}, but the launcher started {ranks - others} ranks beside "
                    f"the learner{'s' if learners > 1 else ''}{' and inference' if others > learners else ''}: start "
                    f"{job.config.acting.actors + others} ranks, or leave --actors out"
                )
        except LaunchError as error:
            _end_all(endpoint, error)
            raise
        given = give_roles(endpoint, topology, job.to_text())
        seat = _Seat(job, info, endpoint, topology)
        try:
            allowed = all_cores()  # Before pinning: the machine is what all ranks share.
            summary = run_session(
                job, seat.transport, stop, cores=seat.pin(), allowed_cores=len(allowed), link=seat.link
            )
            if not seat.transport.is_left:
                # Some rank never said goodbye, and the launcher waits for it: but the caller has a summary to show.
                atexit.register(endpoint.abort_job, EXIT_ABORTED)
            return summary
        except BaseException as error:
            seat.give_up(error)
            raise
        finally:
            seat.transport.close()
            del given


def follow(job: Job, info: LaunchInfo, endpoint: Endpoint, topology: Topology) -> int:
    """The role of every other learner; returns the exit status. What it meets, it says on standard error."""
    from accel.learning.run import follow_session

    seat = _Seat(job, info, endpoint, topology)
    if seat.link is not None and logging.getLogger().handlers:
        logging.getLogger().handlers[0].setFormatter(logging.Formatter(f"learner {seat.link.learner}: %(message)s"))
    try:
        if seat.link is not None:
            follow_session(job, seat.transport, lambda: None, seat.link, cores=seat.pin())  # Learner 0 heeds signals.
        return 0
    except DivergenceError as error:
        seat.give_up(error)
        return EXIT_ABORTED  # learner 0 has said it
    except BaseException as error:
        seat.give_up(error)
        raise
    finally:
        seat.transport.close()


class _Seat:
    """A learner's place in a job: its transport, its cores, its link to the other learners."""

    def __init__(self, job: Job, info: LaunchInfo, endpoint: Endpoint, topology: Topology) -> None:
        number = [group.learner for group in topology.groups].index(endpoint.rank)
        share = job.config.share(number)
        held = share.store.held_unrolls
        options = TransportOptions(
            share.acting.unrolls_in_flight, held + 1, held, SILENCE_S, lost_s=job.config.run.peer_timeout_s
        )
        self.transport = RemoteLearner(endpoint, topology.groups[number], options=options, formats=FORMATS)
        # Another learner may wait for its actors, and import torch, before it answers.
        patience_s = 2.0 * job.config.run.peer_timeout_s + START_TIMEOUT_S
        self.link = LearnerLink(endpoint, topology, patience_s) if topology.learners > 1 else None
        if self.link is not None:
            self.transport.others = self.link.take
        self._job, self._info, self._endpoint = job, info, endpoint

    def pin(self) -> tuple[int, ...]:
        """The cores that this learner computes on; pins it where the configuration wants that."""
        cores, place = free_cores(all_cores(), local_size(os.environ)), None
        learners = 1
        if self.link is not None:
            host = os.uname().nodename
            learners, hosts = self.link.learners, [told["host"] for told in self.link.gather({"host": host})]
            place = hosts[: self.link.learner].count(host), hosts.count(host)
            cores = share_cores(self._info, local_size(os.environ), all_cores(), place)
            if local_size(os.environ) is None or len(cores) == len(all_cores()):
                cores = cores[: max(len(cores) // place[1] - 1, 1)]
        if self._job.config.acting.pin_cores:
            pin_rank(self._info, learners, place)
        return cores

    def give_up(self, error: BaseException) -> None:
        """Tell the other learners and this one's actors; ends the job where they do not answer."""
        reason = str(error) or type(error).__name__
        if self.link is not None:
            self.link.abort(reason)
        try:
            deaf = self.transport.abort(reason)
        except TransportError:  # such as another learner's word that it gives up too; the first error is what counts
            deaf = frozenset()
        if deaf:
            # This ends the process too, so no caller could report what was wrong.
            logger.error("accel: %s", without_controls(reason), exc_info=not isinstance(error, _OF_USERS))
            logger.error("actors %s do not answer: ending the job", ", ".join(map(str, sorted(deaf))))
            self._endpoint.abort_job(EXIT_ABORTED)


def act(info: LaunchInfo | None = None, timeout_s: float = START_TIMEOUT_S, host: Host | None = None) -> int:
    """The role of every rank but the first, as that one says; returns the exit status. Actors' errors reach the user
    through their learner.

    Args:
        info: what the launcher announced; None: read it from the environment.
        timeout_s: how long MPI may take to start.
        host: whose child is starting already.

    From then on this process ignores stop signals and, on Linux, ends when its launcher does.
    """
    ignore_stop_signals()
    end_with_parent(signal.SIGKILL)
    info = info or detect_launch()
    if info.rank == 0:
        raise LaunchError("rank 0 is the learner: call accel.train() on it")
    host = host or Host(actor_command(info))
    try:
        endpoint = join_world(info, timeout_s)
        topology, job = take_role(endpoint)
        role, group = topology.role(endpoint.rank), topology.group(endpoint.rank)
        if role is not Role.LEARNER:
            options = TransportOptions(in_flight=2, max_held=2, prefetch=1)
            transport = RemoteActor(endpoint, group, options=options, formats=FORMATS)
            try:
                if role is Role.ACTOR:
                    return host.serve(transport)
                host.close()
                return _infer(info, transport, Questions(endpoint, group.actors))
            finally:
                transport.close()
    finally:
        host.close()
    from accel.runs.job import Job

    return follow(Job.from_text(job), info, endpoint, topology)


def _infer(info: LaunchInfo, transport: RemoteActor, questions: Questions) -> int:
    from accel.acting.central import InferenceServer

    server = InferenceServer(transport, questions, lambda learners: pin_rank(info, learners))
    try:
        return server.serve()
    except _OF_USERS as error:
        transport.report({"error": str(error)})
        return EXIT_ABORTED


def abort_job(info: LaunchInfo, error: AccelError) -> None:
    """Before a job exists: make every other rank of a launched job end with this error."""
    if info.is_launched and (info.size is None or info.size > 1):
        _end_all(join_world(info, START_TIMEOUT_S), error)


def _end_all(endpoint: Endpoint, error: AccelError) -> None:
    """Make every other rank, which waits for its role, end as an actor of this one does."""
    if endpoint.size == 1:
        return
    topology = Topology.single_learner(endpoint.size)
    given = give_roles(endpoint, topology)
    transport = RemoteLearner(endpoint, topology.groups[0], formats=FORMATS)
    transport.abort(str(error))
    transport.close()
    del given


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
        file = read_toml(Path(values["--config"])) if "--config" in values else {}
        return float(str(values.get("--peer-timeout-s", file.get("peer_timeout_s", START_TIMEOUT_S))))
    except (OSError, ValueError, TypeError):
        return START_TIMEOUT_S  # The learner reports what is wrong with it.


def learn_alone(job: Job, *, leave: Callable[[int], NoReturn] | None, pulse: Pulse | None = None) -> Summary:
    """Learner and actor in one process and one thread, in turns: deterministic.

    Args:
        leave: ends this process with a status where its environments hang for good; None: it may not be ended.
        pulse: where progress is shown to another process that watches too.
    """
    from accel.acting.actor import InlineActor
    from accel.learning.run import run_session
    from accel.transport.local import LocalTransport

    stop = StopRequest()
    with stop.installed():
        options = TransportOptions(
            in_flight=job.config.acting.unrolls_in_flight, max_held=job.config.store.held_unrolls + 1
        )
        transport = LocalTransport(1, options=options)
        end = transport.actor(0)
        end.pulse = pulse or end.pulse
        inline = InlineActor(end)
        limits_s = job.config.acting.actor_timeout_s, job.config.run.peer_timeout_s
        with interruptible(lambda: end.pulse.words[1] != WAITING) as interrupt:
            hung = partial(_end_hang, job, interrupt, leave)

            def interrupted() -> bool:
                is_over = inline.actor is not None and bool(inline.actor.is_over())
                if is_over:
                    interrupt(Interrupted())
                return is_over

            try:
                with Watch(end.pulse, *limits_s, hung, interrupted), _telling_what_is_kept(job):
                    return run_session(job, transport.learner, stop, cores=all_cores()[:1], inline=inline)
            finally:
                late = f"closing the environments took longer than {_CLOSE_S:g} s"
                with Watch(end.pulse, _CLOSE_S, _CLOSE_S, lambda _, times: hung(late, times)):
                    _close(inline)


@contextmanager
def _telling_what_is_kept(job: Job) -> Iterator[None]:
    """Whatever ends a run that had begun to train, be it an environment's own error, carries a note of how to go on."""
    from accel.runs.directory import CONFIG

    facts = job.path / CONFIG
    before = _written_at(facts)
    try:
        try:
            yield
        except SystemExit as left:
            raise EnvError(
                f"an environment left through exit({left.code}), and the run with it; with --actors 1 it is in a "
                "process of its own, which is replaced"
            ) from left
    except BaseException as error:
        if _written_at(facts) not in (None, before):
            error.add_note(what_is_kept(job))
        raise


def _close(inline: InlineActor) -> None:
    """Environments that cannot be closed cost nobody what was learned."""
    try:
        if inline.actor is not None:
            inline.actor.close()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody else's code
        logger.warning("the environments could not be closed: %s", error)


def _end_hang(
    job: Job, interrupt: Callable[[BaseException], None], leave: Callable[[int], NoReturn] | None, why: str, times: int
) -> None:
    """Raise in the environment's step, which costs that environment; code that is not Python may never hear of it."""
    if times == 1 or leave is None:
        interrupt(EnvError(why))
        if times == 2:
            logger.error("accel: %s, and cannot be interrupted; train() waits for them. %s", why, what_is_kept(job))
    else:
        logger.error("accel: %s, and cannot be interrupted. %s", why, what_is_kept(job))
        leave(EXIT_ABORTED)


def _start_mpirun(job: Job) -> Summary:
    from accel.cli import mpirun
    from accel.runs.directory import CONFIG, STARTS
    from accel.transport import mpirun_command

    config = job.config
    hosts = tuple(config.acting.hosts.split(",")) if config.acting.hosts else ()
    if job.resume is not None and len(hosts) > 1:
        hosts = _hosts_that_answer(hosts, min(config.run.peer_timeout_s, _ANSWER_S))
    ranks = config.acting.actors + config.learner.learners + config.inference_ranks
    command = mpirun_command(
        ranks,
        hosts=hosts,
        hostfile=config.acting.hostfile,
        silence_s=config.run.peer_timeout_s,
        by_node=config.learner.learners > 1,
    )
    elsewhere = config.acting.hosts is not None or config.acting.hostfile is not None
    starts, facts = job.path / STARTS, job.path / CONFIG
    before, facts_before = _written_at(starts), _written_at(facts)
    ended = mpirun.run(
        [*command, sys.executable, "-P", "-m", "accel.cli.rank", job.to_text()],
        ranks=ranks,
        can_stop=lambda: elsewhere or _written_at(starts) != before,
        patience_s=config.run.peer_timeout_s,
    )
    if (summary := summary_of(job)) is not None:
        if ended.trouble or ended.status:
            why = ended.trouble or "a rank or a node was lost on the way"
            logger.warning("the run is complete; mpirun ended with status %d: %s", ended.status, why)
        return summary
    learner = ended.learner
    if elsewhere and learner is not None and ended.learner_ended and learner.status == 0:
        raise JobError(f"the run is complete; its directory {job.path} is on {learner.host}", 0)
    began = elsewhere or _written_at(starts) != before
    # What cannot be gone on with, as it is complete or its checkpoint damaged, cannot be by the same command again.
    is_refused = job.resume is not None and ended.learner_ended and _written_at(facts) == facts_before
    if ended.stopped and not began:
        raise JobError("stopped before training began", EXIT_INTERRUPTED)
    kept = f". {what_is_kept(job, ended)}" if began and not is_refused else ""
    raise JobError(f"{_what_happened(ended)}{kept}{_registered_here(config.environment.env)}", _exit_code(ended))


def summary_of(job: Job) -> Summary | None:
    """The proof that a job came to its end: the summary that carries its token."""
    from accel.runs.summary import Summary

    if not (job.path / "summary.json").exists():
        return None
    summary = Summary.read(job.path)
    return summary if summary.job == job.token else None


def _hosts_that_answer(hosts: tuple[str, ...], timeout_s: float) -> tuple[str, ...]:
    """A resumed run starts on the nodes that are there, with all its actors; a lost node may have ended it."""
    from accel.cli import mpirun

    found = mpirun.answering(hosts, timeout_s)
    if not found:
        return hosts  # mpirun says what is wrong with them.
    for host in hosts:
        if host not in found:
            logger.warning("%s does not answer; its ranks start on the other hosts", host)
    return found


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


def _registered_here(env: str) -> str:
    """A hint for environments that a script has registered: ranks are processes of their own."""
    registry = getattr(sys.modules.get("gymnasium"), "registry", {})
    if ":" in env or env not in registry:
        return ""
    made_by = registry[env].entry_point
    module = made_by if isinstance(made_by, str) else str(getattr(made_by, "__module__", ""))
    if module.startswith(("gymnasium.", "ale_py.")):
        return ""
    return (
        f"\n{env} is registered in this process; ranks are processes of their own and do not know that: register it in "
        f"a module, and give env='module:{env}'"
    )


def what_is_kept(job: Job, ended: Ended | None = None) -> str:
    """The newest checkpoint, and how to go on from it."""
    command = f"  accel train --resume {shlex.quote(str(job.path))}"
    if not job.path.exists():
        where = "" if ended is None or ended.learner is None else f" on {ended.learner.host}"
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
