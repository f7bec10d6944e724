"""What keeping a scheme up costs between refreshes: timed once each, then spread over a run's intervals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from accel.bench.rows import Row
from accel.bench.subject import FULL_PRECISION, Subject
from accel.publishing.check import IMAGES, ROWS
from accel.publishing.distillation import PolicyDivergence
from accel.publishing.level import DRIFT_ROWS, FOLLOW_STEPS, LESSON_IMAGES, LESSON_ROWS
from accel.publishing.upkeep import Task, Twin, carry_out
from compressors.checks.verify import verify_artifact
from compressors.plan import Plan
from compressors.qat.fake_quantiser import trains_rounded
from compressors.scheme import parse_scheme

_TIMES = 3


@dataclass(frozen=True)
class Duty:
    """One part of the upkeep.

    Attributes:
        interval_updates: learner updates from one to the next, once a run is under way; they are closer at its start.
        beside_s: seconds in the worker's thread, beside the learner.
        critical_s: seconds in the learner's thread.
    """

    interval_updates: int
    beside_s: float
    critical_s: float


def upkeep_row(subject: Subject, scheme: str, plan: Plan) -> Row:
    """``schedule_ms`` and ``upkeep_ms``: a publication's share of everything that is not done for each one.

    Beside the learner, in a worker's thread of lower priority (in the learner's own where ``actors`` = 0): lessons of a
    student, choices of channels and bases, calibrations, looks for drift: ``schedule_ms``. In the learner's thread
    itself, so that an update waits: copies of the policy for that work and taking over what comes of it, what a pruned
    policy goes by, and checks of artifacts: ``upkeep_ms``. Every part once, the quickest of three; intervals and
    publications as in the subject's configuration.
    """
    duties = measure_duties(subject, scheme, plan)
    config = subject.run.config
    found = {"schedule_ms": 0.0, "upkeep_ms": 0.0}
    for duty in duties.values():
        share = 1e3 * config.publish_interval_updates / duty.interval_updates
        found["schedule_ms"] += share * duty.beside_s
        found["upkeep_ms"] += share * duty.critical_s
    return dict(found)


def measure_duties(subject: Subject, scheme: str, plan: Plan) -> dict[str, Duty]:
    """Every part that ``accel.publishing.level`` does for the scheme, by name."""
    run, config, every = subject.run, subject.run.config, subject.calibration
    names = {method.name for method in parse_scheme(scheme).methods}
    rounds = trains_rounded(scheme)
    reduces = not names.isdisjoint({"prune", "lowrank"}) and not rounds
    steps = config.passes * config.minibatches if reduces else 1
    tasks: dict[str, tuple[int, Task]] = {}
    if scheme != FULL_PRECISION:
        tasks["calibration"] = config.calibration_interval_updates, Task(calibration=every)
        if plan.statistics.calibrations:
            tasks["drift"] = config.drift_interval_updates, Task(recent=_first(every, DRIFT_ROWS))
        if reduces:
            interval = max(1, config.reselect_interval_updates // steps)
            tasks["choice"] = interval, Task(chooses=True, calibration=every)
        if "distill" in names:
            rows = _first(every, LESSON_IMAGES if run.spec.is_image else LESSON_ROWS)
            lesson = {name: torch.from_numpy(np.array(values)) for name, values in rows.items()}
            tasks["lesson"] = config.distill_interval_updates, Task(lessons=[lesson])
    duties = {name: _task_duty(interval, task, subject, plan) for name, (interval, task) in tasks.items()}
    if reduces and "prune" in names:
        follow_s = _quickest(lambda: plan.follow(run.policy, every))
        duties["follow"] = Duty(max(1, FOLLOW_STEPS // steps), 0.0, follow_s)
    checked, measure = _first(every, IMAGES if run.spec.is_image else ROWS), PolicyDivergence(run.spec.action).of_arrays
    artifact = plan.refresh(run.policy, 0)
    check_s = _quickest(lambda: verify_artifact(artifact, run.policy, checked, None, measure=measure))
    duties["check"] = Duty(max(1, config.check_interval_updates // steps), 0.0, check_s)
    return duties


def _task_duty(interval_updates: int, task: Task, subject: Subject, plan: Plan) -> Duty:
    twin, stopping = Twin(subject.run.policy), threading.Event()
    module = twin.take(gradients=task.chooses)
    beside, critical = [], []
    for _ in range(_TIMES):
        critical.append(_seconds(lambda: twin.take(gradients=task.chooses)))
        began = time.perf_counter()
        outcome = carry_out(task, plan, module, stopping)
        beside.append(time.perf_counter() - began)
        if outcome is not None:
            critical[-1] += _seconds(partial(plan.adopt, outcome.revision))
    return Duty(interval_updates, min(beside), min(critical))


def _quickest(run: Callable[[], object]) -> float:
    return min(_seconds(run) for _ in range(_TIMES))


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _first(inputs: Mapping[str, npt.NDArray[np.generic]], rows: int) -> dict[str, npt.NDArray[np.generic]]:
    return {name: values[:rows] for name, values in inputs.items()}
