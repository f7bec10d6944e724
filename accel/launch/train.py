"""Training from a configuration: as a rank of a launched job, on this machine, or under an mpirun of its own."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from accel.errors import ConfigError, LaunchError
from accel.launch.learners import learn
from accel.launch.local_actors import learn_with_local_actors
from accel.launch.single_process import learn_in_one_process
from accel.learning.memory import check_network
from accel.supervision.activity import WAITING, Activity
from accel.system.machine import available_memory_bytes, usable_cores
from accel.transport.launcher import detect_launch, is_actor

if TYPE_CHECKING:
    from accel.config import TrainConfig
    from accel.runs.job import Job
    from accel.runs.summary import Summary

# what an actor takes until it acts, measured on one core with HalfCheetah-v5: seconds, bytes; with MPI's rank
_START, _START_WITH_MPI = (1.0, 50 << 20), (2.0, 80 << 20)
_ACTORS_FILES, _OWN_FILES = 8, 256
_LEAST_PER_CORE = 4
_SURE = 0.6
"""The part of what may start in time that is advised: a machine does other things too."""


def train(config: TrainConfig, *, resume: Path | None = None) -> Summary:
    """Train a policy and return what happened.

    This process learns, and starts its actors as processes of their own. With ``actors = 0`` environments are in this
    process too: one that crashes it, or leaves through C's ``exit`` (``os._exit``), ends it without a word. Where the
    run needs MPI (``hosts``, several learners, central inference) mpirun is started, with the learners and the actors
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
        raise LaunchError("train() belongs on the first rank only; on the others call accel.launch.roles.act()")
    if info.is_launched:
        return learn(job, info)
    return start(job)


def start(job: Job, *, leave: Callable[[int], NoReturn] | None = None, activity: Activity | None = None) -> Summary:
    """Run a job from outside any launcher: on this machine, or under an mpirun of its own.

    Args:
        leave, activity: see ``learn_in_one_process``.
    """
    if job.config.acting.hosts is None and job.config.acting.hostfile is None:
        check_network(job.config)
    if job.config.acting.actors == 0:
        return learn_in_one_process(job, leave=leave, activity=activity)
    _check_actors(job.config)
    if is_local(job.config):
        if activity is not None:
            activity.enter(WAITING)  # Its actors are watched one by one.
        return learn_with_local_actors(job)
    from accel.launch.distributed import start_mpirun

    return start_mpirun(job)


def _check_actors(config: TrainConfig) -> None:
    """Raises ConfigError: so many actors would not start on this machine in time, or not fit into its memory."""
    acting, limit_s, cores = config.acting, config.run.peer_timeout_s, usable_cores()
    if acting.hosts is not None or acting.hostfile is not None:
        return
    actor_s, actor_bytes = _START if is_local(config) else _START_WITH_MPI
    in_time = max(int(cores * limit_s / actor_s), int(cores * _LEAST_PER_CORE), 1)
    fitting = max(int(available_memory_bytes() / actor_bytes), 1)
    files = _ACTORS_FILES * acting.actors + _OWN_FILES
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < files:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if hard != resource.RLIM_INFINITY and hard < files:
            most = max((hard - _OWN_FILES) // _ACTORS_FILES, 0)
            raise ConfigError(
                f"actors = {acting.actors} need {files} open files, and {hard} are allowed (ulimit -n): raise that, or "
                f"give --actors {most}"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    if acting.actors > fitting:
        most = max(int(_SURE * fitting), 1)
        raise ConfigError(f"actors = {acting.actors} do not fit into the memory that is free: give --actors {most}")
    if acting.actors > in_time:
        most, needed_s = max(int(_SURE * in_time), 1), acting.actors * actor_s / cores / _SURE
        raise ConfigError(
            f"actors = {acting.actors} would not start on {cores:g} cores within peer_timeout_s = {limit_s:g}: give "
            f"--actors {most}, or --peer-timeout-s {needed_s:.0f}"
        )


def is_local(config: TrainConfig) -> bool:
    """Whether a run that no launcher has started needs none, nor any MPI: all its processes are here."""
    return config.acting.actors == 0 or (config.acting.launcher != "mpirun" and not config.needs_mpirun)
