"""A rank of a tuned run whose tuner tries levels that promise nothing: python -m tests.accel.tuned_run JOB."""

from __future__ import annotations

import dataclasses
import sys

from accel.launch import act, learn
from accel.transport.launcher import detect_launch


def main() -> int:
    """Learn on the first rank, act on the others."""
    info = detect_launch()
    if info.rank != 0:
        return act(info)
    from accel import autotune
    from accel.job import Job
    from monitor.tuner_measurements import TunerOptions

    # On few cores the learner is the bottleneck, and the tuner would leave every level alone.
    autotune.OPTIONS = dataclasses.replace(TunerOptions(), gain=-0.05)
    summary = learn(Job.from_text(sys.argv[1]), info)
    sys.stdout.write(f"RETURN {summary.return_mean}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
