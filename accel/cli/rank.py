"""What each rank of an mpirun started by ``accel train`` runs: python -P -m accel.cli.rank JOB. Knows its role first.

Torch is imported after MPI_Init, never beside it (``accel.learning.run``): MPI_Init sets environment variables, and a
library that is loaded meanwhile reads them, which can end in a segmentation fault.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys

from accel.cli.signs import SignsOfLife
from accel.system.garbage import leave_to_the_system
from accel.system.module_path import add_working_directory
from accel.system.signals import end_with_parent
from accel.transport.join import join_world
from accel.transport.launcher import LaunchInfo, detect_launch, is_actor


def main() -> int:
    """Learn on the first rank, act on the others."""
    from accel.cli import guarded

    end_with_parent(signal.SIGKILL)
    if os.getppid() == 1:
        return 1  # The launcher died before it could be noticed.
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    add_working_directory()
    info = detect_launch()
    signs = SignsOfLife(info.rank)
    host = None
    if acts := is_actor(info):
        from accel.acting.child import Host
        from accel.cli.actor import command

        host = Host(command(info))
    status = guarded(lambda: _join(info), "accel train")
    if status != 0:
        if host is not None:
            host.close()
        signs.say("failed", status)
        return status
    signs.say("joined")
    if acts:
        from accel.cli.launch import act

        signs.stop()
        return guarded(lambda: act(info, host=host), "accel train")
    status = guarded(lambda: _learn(info), "accel train")
    signs.stop()
    signs.say("ended", status)
    return status


def _join(info: LaunchInfo) -> int:
    # The starting process ends the job at the limit and knows more; this is for when it cannot.
    join_world(info, 2.0 * json.loads(sys.argv[1])["config"]["peer_timeout_s"])
    return 0


def _learn(info: LaunchInfo) -> int:
    from accel.cli.launch import learn
    from accel.display.text import show
    from accel.runs.job import Job

    summary = learn(Job.from_text(sys.argv[1]), info)
    show(f"{summary.text()}\n")
    return 0


if __name__ == "__main__":
    status = main()
    leave_to_the_system()
    sys.exit(status)
