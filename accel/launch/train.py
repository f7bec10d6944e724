"""Training from a configuration: as a rank of a launched job, on this machine, or under an mpirun of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from accel.errors import LaunchError
from accel.launch.learners import learn
from accel.launch.local_actors import learn_with_local_actors
from accel.launch.single_process import learn_in_one_process
from accel.supervision.activity import WAITING, Activity
from accel.transport import detect_launch, is_actor

if TYPE_CHECKING:
    from accel.config import TrainConfig
    from accel.runs.job import Job
    from accel.runs.summary import Summary


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
    if job.config.acting.actors == 0:
        return learn_in_one_process(job, leave=leave, activity=activity)
    if is_local(job.config):
        if activity is not None:
            activity.enter(WAITING)  # Its actors are watched one by one.
        return learn_with_local_actors(job)
    from accel.launch.distributed import start_mpirun

    return start_mpirun(job)


def is_local(config: TrainConfig) -> bool:
    """Whether a run that no launcher has started needs none, nor any MPI: all its processes are here."""
    return config.acting.actors == 0 or (config.acting.launcher != "mpirun" and not config.needs_mpirun)
