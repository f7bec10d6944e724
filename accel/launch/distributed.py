"""A job under an mpirun of its own: start it, and turn the way it ended into a summary or an error."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from accel.errors import EXIT_ABORTED, JobError
from accel.launch import mpirun
from accel.launch.outcome import (
    EXIT_INTERRUPTED,
    EXIT_STOPPED,
    WRITER_S,
    how_it_ended,
    how_to_continue,
    registered_here,
    summary_of,
    written_at,
)
from accel.system.request import REQUEST
from accel.transport.launcher import mpirun_command

if TYPE_CHECKING:
    from accel.launch.mpirun import Ended
    from accel.runs.job import Job
    from accel.runs.summary import Summary

_ANSWER_S = 30.0

logger = logging.getLogger("accel")


def start_mpirun(job: Job) -> Summary:
    """Run a job under mpirun. Raises JobError: it ended without its summary."""
    from accel.runs.directory import CONFIG, STARTS, wait_for_writer

    config = job.config
    hosts = tuple(config.acting.hosts.split(",")) if config.acting.hosts else ()
    if job.resume is not None and len(hosts) > 1:
        # A lost node may have ended the run: it starts on those that are there, with all its actors.
        hosts = mpirun.answering(hosts, min(config.run.peer_timeout_s, _ANSWER_S))
    ranks = config.acting.actors + config.learner.learners + config.inference_ranks
    command = mpirun_command(
        ranks,
        hosts=hosts,
        hostfile=config.acting.hostfile,
        silence_s=config.run.peer_timeout_s,
        by_node=config.learner.learners > 1,
        exports=(REQUEST,),
    )
    elsewhere = config.acting.hosts is not None or config.acting.hostfile is not None
    starts, facts = job.path / STARTS, job.path / CONFIG
    before, facts_before = written_at(starts), written_at(facts)
    # Where nothing began, whoever writes to the directory is another job.
    ended = mpirun.run(
        [*command, sys.executable, "-P", "-m", "accel.launch.rank"],
        ranks=ranks,
        can_stop=lambda: elsewhere or written_at(starts) != before,
        patience_s=config.run.peer_timeout_s,
        request=job.to_text(),
        settle=lambda: wait_for_writer(job.path, WRITER_S) if elsewhere or written_at(starts) != before else None,
    )
    if (summary := summary_of(job)) is not None:
        if ended.trouble or ended.status:
            why = ended.trouble or "a rank or a node was lost on the way"
            logger.warning("%s; mpirun ended with status %d: %s", how_it_ended(summary), ended.status, why)
        return summary
    learner = ended.learner
    if elsewhere and learner is not None and ended.learner_ended and learner.status in (0, EXIT_STOPPED):
        how = "was stopped" if learner.status else "is complete"
        raise JobError(f"the run {how}; its directory {job.path} is on {learner.host}", learner.status)
    began = elsewhere or written_at(starts) != before
    # What cannot be gone on with, as it is complete or its checkpoint damaged, cannot be by the same command again.
    is_refused = job.resume is not None and ended.learner_ended and written_at(facts) == facts_before
    if ended.stopped and not began:
        raise JobError("stopped before training began", EXIT_INTERRUPTED)
    host = None if learner is None else learner.host
    kept = f". {how_to_continue(job, host)}" if began and not is_refused else ""
    raise JobError(f"{_what_happened(ended)}{kept}{registered_here(config.environment.env)}", _exit_code(ended))


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


def _exit_code(ended: Ended) -> int:
    """Never 0, which means that a summary was written."""
    if ended.learner is not None and ended.learner.status != 0:
        return ended.learner.status
    if ended.stopped:
        return EXIT_INTERRUPTED
    return ended.status or EXIT_ABORTED
