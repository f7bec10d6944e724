"""A rank of an mpirun that ``accel train`` started: python -P -m accel.launch.rank. Knows its role first.

Torch is imported after MPI_Init, never beside it (``accel.learning.run``): MPI_Init sets environment variables, and a
library that is loaded meanwhile reads them, which can end in a segmentation fault.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys

from accel.launch.outcome import EXIT_STOPPED, status_of
from accel.supervision.heartbeat import Heartbeat
from accel.system.garbage import freeze_garbage
from accel.system.module_path import add_working_directory
from accel.system.request import take_request
from accel.system.signals import end_with_parent
from accel.transport.join import join_world
from accel.transport.launcher import LaunchInfo, detect_launch, is_actor


def main() -> int:
    """Learn on the first rank, act on the others."""
    from accel.display.errors import report_errors

    end_with_parent(signal.SIGKILL)
    if os.getppid() == 1:
        return 1  # The launcher died before it could be noticed.
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    add_working_directory()
    info, job = detect_launch(), take_request()
    heartbeat = Heartbeat(info.rank)
    supervisor = None
    if acts := is_actor(info):
        from accel.acting.supervisor import ActorSupervisor
        from accel.launch.actor import command

        supervisor = ActorSupervisor(command(info))
    status = report_errors(lambda: _join(info, job), "accel train")
    if status != 0:
        if supervisor is not None:
            supervisor.close()
        heartbeat.say("failed", status)
        return status
    heartbeat.say("joined")
    if acts:
        from accel.launch.roles import act

        heartbeat.stop()
        return report_errors(lambda: act(info, supervisor=supervisor), "accel train")
    status = report_errors(lambda: _learn(info, job), "accel train")
    heartbeat.stop()
    heartbeat.say("ended", status)
    return 0 if status == EXIT_STOPPED else status  # mpirun has words of its own for a status.


def _join(info: LaunchInfo, job: str) -> int:
    # The starting process ends the job at the limit and knows more; this is for when it cannot.
    join_world(info, 2.0 * json.loads(job)["config"]["peer_timeout_s"])
    return 0


def _learn(info: LaunchInfo, job: str) -> int:
    from accel.display.text import show
    from accel.launch.learners import learn
    from accel.runs.job import Job

    summary = learn(Job.from_text(job), info)
    show(f"{summary.text()}\n")
    return status_of(summary)


if __name__ == "__main__":
    status = main()
    freeze_garbage()
    sys.exit(status)
