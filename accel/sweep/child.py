"""A training run as a sweep's child: ``python -P -m accel.sweep.child PARENT OPTIONS`` is ``accel train OPTIONS``.

It ends with its parent, however that ends, and is no rank of a launcher that started the parent.
"""

from __future__ import annotations

import os
import sys

from accel.system.signals import FORWARDED, end_with_parent

# A launcher's variables would make a child of one of its ranks look like a rank.
LAUNCHER_PREFIXES = (
    *("OMPI_", "PMIX_", "PMI_", "PRTE_", "MV2_", "MPI_LOCALRANKID", "PALS_", "FLUX_TASK_"),
    *("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)


def main() -> int:
    """Tie this process to its parent, then train."""
    parent = int(sys.argv[1])
    end_with_parent(FORWARDED)  # a second one does not end this process at once, as one of the others would
    if os.getppid() != parent:
        return 1  # it died before it could be watched
    from accel.cli import main as accel

    return accel(["train", *sys.argv[2:]])


if __name__ == "__main__":
    sys.exit(main())
