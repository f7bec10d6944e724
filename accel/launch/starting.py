"""What a run's networks start from: random weights, or a policy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accel.learning.learner import Learner
    from accel.runs.job import Job


def initialiser(job: Job) -> Callable[[Learner], None] | None:
    """What makes the networks of a new run those of ``init_from``, which is read now; None where nothing does."""
    if job.resume is not None or job.config.policy.init_from is None:
        return None
    from accel.launch.initial_policy import read_initial_policy, start_from

    return partial(start_from, read_initial_policy(job.config))
