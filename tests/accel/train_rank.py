"""A rank of a training run: python -m tests.accel.train_rank JOB."""

from __future__ import annotations

import sys

from accel.launch import act, learn
from accel.transport.launcher import detect_launch


def main() -> int:
    """Learn on the first rank, act on the others."""
    info = detect_launch()
    if info.rank != 0:
        return act(info)
    from accel.job import Job

    learn(Job.from_text(sys.argv[1]), info)
    return 0


if __name__ == "__main__":
    sys.exit(main())
