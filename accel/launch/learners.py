"""The learners of a launched job: their transport, cores and links, and how they end a job that fails."""

from __future__ import annotations

import atexit
import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from accel.compressors.artifact import FORMAT_VERSION as ARTIFACT_FORMAT
from accel.compressors.errors import CompressorError
from accel.errors import EXIT_ABORTED, AccelError, DivergenceError, LaunchError, TransportError
from accel.experience.unroll import FORMAT_VERSION as UNROLL_FORMAT
from accel.launch.starting import initialiser
from accel.monitor.errors import MonitorError
from accel.monitor.plain_text import without_controls
from accel.system.signals import StopRequest
from accel.transport.base import TransportOptions
from accel.transport.join import START_TIMEOUT_S, join_world
from accel.transport.launcher import LaunchInfo, Topology
from accel.transport.learners import LearnerLink, give_roles
from accel.transport.pinning import all_cores, cores_for, free_cores, local_size, pin_rank
from accel.transport.remote_learner import RemoteLearner

if TYPE_CHECKING:
    from accel.runs.job import Job
    from accel.runs.summary import Summary
    from accel.transport.mpi import MpiEndpoint

FORMATS = {"unroll": UNROLL_FORMAT, "artifact": ARTIFACT_FORMAT}
SILENCE_S = 10.0
"""How long an actor's rank, which sends a sign of life every two seconds, may be silent."""
USER_ERRORS = (AccelError, CompressorError, MonitorError)

logger = logging.getLogger("accel")


def learn(job: Job, info: LaunchInfo) -> Summary:
    """The first learner's role in a launched job. Whatever goes wrong, every other rank is told and ends too."""
    from accel.learning.handshake import LearnerPlace
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
        give_roles(endpoint, topology, job.to_text())
        place = _LearnerRank(job, info, endpoint, topology)
        try:
            allowed = all_cores()  # Before pinning: the machine is what all ranks share.
            ours = LearnerPlace(place.transport, stop, place.pin(), allowed_cores=len(allowed), link=place.link)
            summary = run_session(job, ours, initialise=initialiser(job))
            if not place.transport.is_left:
                # Some rank never said goodbye, and the launcher waits for it: but the caller has a summary to show.
                atexit.register(endpoint.abort_job, EXIT_ABORTED)
            return summary
        except BaseException as error:
            place.give_up(error)
            raise
        finally:
            place.transport.close()


def follow(job: Job, info: LaunchInfo, endpoint: MpiEndpoint, topology: Topology) -> int:
    """The role of every other learner; returns the exit status. What it meets, it says on standard error."""
    from accel.learning.handshake import LearnerPlace
    from accel.learning.run import follow_session

    place = _LearnerRank(job, info, endpoint, topology)
    if place.link is not None and logging.getLogger().handlers:
        logging.getLogger().handlers[0].setFormatter(logging.Formatter(f"learner {place.link.learner}: %(message)s"))
    try:
        if place.link is not None:
            # Learner 0 heeds signals.
            mine = LearnerPlace(place.transport, lambda: None, place.pin(), link=place.link)
            follow_session(job, mine, place.link)
        return 0
    except DivergenceError as error:
        place.give_up(error)
        return EXIT_ABORTED  # learner 0 has said it
    except BaseException as error:
        place.give_up(error)
        raise
    finally:
        place.transport.close()


class _LearnerRank:
    """A learner's place in a job: its transport, its cores, its link to the other learners."""

    def __init__(self, job: Job, info: LaunchInfo, endpoint: MpiEndpoint, topology: Topology) -> None:
        number = [group.learner for group in topology.groups].index(endpoint.rank)
        held = job.config.share(number).store.held_unrolls
        options = TransportOptions(held + 1, held, SILENCE_S, lost_s=job.config.run.peer_timeout_s)
        self.transport = RemoteLearner(endpoint, topology.groups[number], options=options, formats=FORMATS)
        # Another learner may wait for its actors, and import torch, before it answers.
        patience_s = 2.0 * job.config.run.peer_timeout_s + START_TIMEOUT_S
        self.link = LearnerLink(endpoint, topology, patience_s) if topology.learners > 1 else None
        if self.link is not None:
            self.transport.others = self.link.take
        self._job, self._info, self._endpoint = job, info, endpoint

    def pin(self) -> tuple[int, ...]:
        """The cores that this learner computes on; pins it where the configuration wants that."""
        ranks, place = local_size(os.environ), (0, 1)
        cores = free_cores(all_cores(), ranks)
        if self.link is not None:
            host = os.uname().nodename
            hosts = [told["host"] for told in self.link.gather({"host": host})]
            place = hosts[: self.link.learner].count(host), hosts.count(host)
            cores = cores_for(self._info, ranks, all_cores(), place)
            if ranks is None or len(cores) == len(all_cores()):
                cores = cores[: max(len(cores) // place[1] - 1, 1)]
        if self._job.config.acting.pin_cores:
            pin_rank(self._info, place)
        return cores

    def give_up(self, error: BaseException) -> None:
        """Tell the other learners and this one's actors; ends the job where they do not answer."""
        reason = str(error) or type(error).__name__
        if self.link is not None:
            self.link.abort(reason)
        try:
            unresponsive = self.transport.abort(reason)
        except TransportError:  # such as another learner's word that it gives up too; the first error is what counts
            unresponsive = frozenset()
        if unresponsive:
            # This ends the process too, so no caller could report what was wrong.
            logger.error("accel: %s", without_controls(reason), exc_info=not isinstance(error, USER_ERRORS))
            logger.error("actors %s do not answer: ending the job", ", ".join(map(str, sorted(unresponsive))))
            self._endpoint.abort_job(EXIT_ABORTED)


def abort_job(info: LaunchInfo, error: AccelError) -> None:
    """Before a job exists: make every other rank of a launched job end with this error."""
    if info.is_launched and (info.size is None or info.size > 1):
        _end_all(join_world(info, START_TIMEOUT_S), error)


def _end_all(endpoint: MpiEndpoint, error: AccelError) -> None:
    """Make every other rank, which waits for its role, end as an actor of this one does."""
    if endpoint.size == 1:
        return
    topology = Topology.of(endpoint.size, 1)
    give_roles(endpoint, topology)
    transport = RemoteLearner(endpoint, topology.groups[0], formats=FORMATS)
    transport.abort(str(error))
    transport.close()
