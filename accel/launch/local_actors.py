"""A job whose processes are all on this machine, without MPI: the learner starts its actors itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel.errors import EnvError
from accel.launch.actor import command
from accel.launch.outcome import noting_how_to_continue, registered_here
from accel.launch.starting import initialiser
from accel.system.signals import StopRequest
from accel.transport.base import TransportOptions
from accel.transport.launcher import LaunchInfo
from accel.transport.pinning import all_cores, free_cores, pin_rank, use_cores

if TYPE_CHECKING:
    from accel.runs.job import Job
    from accel.runs.summary import Summary


def learn_with_local_actors(job: Job) -> Summary:
    """Learn in this process, with actors in processes of their own, which end with it."""
    from accel.acting.processes import ActorProcesses
    from accel.learning.handshake import LearnerPlace
    from accel.learning.run import run_session

    config, stop, initialise = job.config, StopRequest(), initialiser(job)
    ranks = config.acting.actors + 1
    options = TransportOptions(max_held=config.store.held_unrolls + 1)
    with stop.installed(), noting_how_to_continue(job):
        transport = ActorProcesses(
            config.acting.actors, lambda number: command(LaunchInfo(number + 1, ranks, number + 1, "local")), options
        )
        allowed = all_cores()
        try:
            cores = free_cores(allowed, ranks)
            if config.acting.pin_cores:
                pin_rank(LaunchInfo(0, ranks, 0, "local"), (0, 1))
            place = LearnerPlace(transport, stop, cores, allowed_cores=len(allowed))
            return run_session(job, place, initialise=initialise)
        except BaseException as error:
            transport.abort(str(error) or type(error).__name__)
            if isinstance(error, EnvError) and (hint := registered_here(config.environment.env)):
                raise EnvError(f"{error}{hint}") from error
            raise
        finally:
            transport.close()
            use_cores(allowed)  # for what the caller of accel.train goes on with
