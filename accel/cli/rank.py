"""What each rank of an mpirun started by ``accel train`` runs: python -P -m accel.cli.rank JOB. Knows its role first.

The learner's torch is imported from the first moment on, in a thread, while MPI starts and actors make environments.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading

from accel.system.module_path import add_working_directory
from accel.transport.launcher import detect_launch
from accel.transport.topology import is_actor


def main() -> int:
    """Learn on the first rank, act on the others."""
    from accel.cli import guarded

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    add_working_directory()
    info = detect_launch()
    if is_actor(info):
        from accel.cli.launch import act

        return guarded(lambda: act(info), "accel train")
    threading.Thread(target=importlib.import_module, args=("torch",), daemon=True).start()
    return guarded(_learn, "accel train")


def _learn() -> int:
    from accel.cli.job import Job
    from accel.cli.launch import learn

    summary = learn(Job.from_text(sys.argv[1]), detect_launch())
    print(summary.text(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
