"""What a run's networks start from: random weights, or a policy."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from accel.config import TrainConfig
from accel.errors import ConfigError

if TYPE_CHECKING:
    from accel.learning.learner import Learner
    from accel.runs.job import Job


def initialiser(job: Job) -> Callable[[Learner], None] | None:
    """What makes the networks of a new run those of ``init_from``, which is read now; None where nothing does."""
    if job.resume is not None or job.config.policy.init_from is None:
        return None
    from accel.launch.initial_policy import read_initial_policy, start_from

    return partial(start_from, read_initial_policy(job.config))


def options_to_start(config: TrainConfig) -> dict[str, object]:
    """The options that a run from ``init_from`` needs, found in a process of its own: this one may fork, or start MPI,
    after it, and neither goes with torch. Raises ConfigError: the policy cannot be read, or no network suits it."""
    command, asked = [sys.executable, "-P", "-m", "accel.launch.initial_policy"], json.dumps(config.to_json())
    done = subprocess.run(command, input=asked, capture_output=True, text=True)
    if done.returncode != 0:
        why = f"reading init_from = {config.policy.init_from} ended with status {done.returncode}"
        raise ConfigError(done.stderr.strip().removeprefix("accel: ") or why)
    return dict(json.loads(done.stdout.splitlines()[-1]))
