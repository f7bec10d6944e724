"""One compression scheme in a run: bound once, refreshed at each publication, maintained in between.

Metrics, as ``name/scheme``:

    payload_bytes           bytes of the last artifact
    refresh_ms              quantise, patch and serialise, mean since the last record
    calibrations            how often activation ranges were measured
    drifted_activations     activations found outside their range, over the whole run
    withheld                publications at which validation failed
    publish_kl              mean divergence of the artifact from the policy, nats, at the last full check
    publish_kl_age_updates  learner updates since that check
    check_ms                validation of a publication, mean since the last record
    reselections            selections of channels and bases, over the whole run
    distill_kl              mean divergence of the student from the policy, nats, at its last training step
    distill_steps           the student's training steps

A metric is absent where the scheme does not have it, or before its first value.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Literal

import torch

from accel.compressors.artifact import CompressedPolicy
from accel.compressors.errors import CalibrationError, CompressorError, VerificationError, WeightsError
from accel.compressors.plan import Plan
from accel.compressors.qat.fake_quantiser import FakeQuantiser, is_quantisation_aware
from accel.compressors.scheme import parse_scheme
from accel.config import TrainConfig
from accel.publishing.background import (
    BackgroundWorker,
    UpkeepCancelled,
    UpkeepResult,
    UpkeepTask,
    is_finite,
    perform_upkeep,
)
from accel.publishing.inputs import RecentInputs
from accel.publishing.validation import Validator

FULL_PRECISION = "fp32"
_DRIFT_ROWS = 64
_DRIFT_IMAGES = 16
WIDEN_ROWS = 256
_DISTILL_ROWS = 256
_DISTILL_IMAGES = 16
FIRST_DISTILL_STEPS = 100
_FIRST_RESELECT_UPDATES = 25
_FIRST_CHECK_UPDATES = 8
_REFIT_STEPS = 16
"""Optimiser steps between least-squares fits of the compensation for pruned channels; at least one update."""


@dataclass(frozen=True)
class Intervals:
    """Optimiser steps between two pieces of upkeep, each of which is at least an update apart.

    Attributes:
        calibration: measures activation ranges. drift: looks for activations outside of them, which widen them.
        reselect: selects pruned channels and low-rank bases; more frequent at first.
        distill: a training step of a student on recent observations; at most 100 of these an update.
        check: compares the published policy with the learner's on many observations; every other one is on a few.
    """

    calibration: int = 500
    drift: int = 50
    reselect: int = 1000
    distill: int = 2
    check: int = 200


INTERVALS = Intervals()
Work = Literal["distillation", "selection", "calibration", "drift"]
_NUMBER = re.compile(r"\d[\d.e+-]*")

logger = logging.getLogger("accel")


def interval_updates(config: TrainConfig, steps: int) -> int:
    """Updates that make ``steps`` steps of the optimiser, rounded down, at least one.

    The policy, what it sees and so its activations move with the optimiser's steps, not with updates.
    """
    return max(1, steps // config.algorithm.optimiser_steps)


def distillation_schedule(config: TrainConfig, intervals: Intervals) -> tuple[int, int]:
    """Updates between a student's trainings, and steps of each: as many an optimiser step for every algorithm, since
    the policy moves away by those; no more than its first training has."""
    steps = config.algorithm.optimiser_steps
    return interval_updates(config, intervals.distill), max(1, min(steps // intervals.distill, FIRST_DISTILL_STEPS))


class UpdateInterval:
    """Due every ``interval`` updates; at the start after ``first``, then 2 ``first``, then 4 ``first`` … further
    updates.

    The policy changes fast at first, so the intervals grow. Counts decide, not clocks, so that a run in one process
    stays deterministic.
    """

    def __init__(self, interval: int, first: int | None = None) -> None:
        self._interval = interval
        self._step = self._left = interval if first is None else min(first, interval)

    def tick(self) -> bool:
        """Count one update; returns whether the work is due."""
        self._left -= 1
        if self._left > 0:
            return False
        self._step = self._left = min(2 * self._step, self._interval)
        return True


@dataclass
class LevelStatistics:
    """Counters of one level. Refreshes and their times are reset at each record."""

    refreshes: int = 0
    refresh_s: float = 0.0
    payload_bytes: int = 0
    withheld: int = 0
    distill_steps: int = 0
    student_divergence: float | None = None
    reselections: int = 0


class Level:
    """One scheme that policies may be published in.

    ``after_update`` determines what is due, ``start_work`` does it, in a background thread or at once, and
    ``adopt_result`` commits all of it between two publications. Until then artifacts use the previous selection, ranges
    and student.

    Args:
        plan: bound to the module, not calibrated yet.
        module: the learner's acting module. published: what artifacts are made of: the module, or a snapshot of it.
        inputs: what ranges, selections and students are made with.
    Attributes:
        ready: whether real inputs have been seen, where the scheme waits for them: calibrated, selected, trained.
        renewing: whether an outdated selection is being renewed; until then the level is not published.
        quantiser: fake quantisation for the learner at a ``qat`` level, once that is ready.
    """

    def __init__(
        self,
        scheme: str,
        plan: Plan,
        module: torch.nn.Module,
        published: torch.nn.Module,
        config: TrainConfig,
        intervals: Intervals,
        validator: Validator,
        inputs: RecentInputs,
    ) -> None:
        self.scheme = scheme
        self.ready = scheme == FULL_PRECISION
        self.renewing = False
        self.quantiser: FakeQuantiser | None = None
        self._plan = plan
        self._statistics = LevelStatistics()
        self._module, self._published = module, published
        self._validator = validator
        self._inputs = inputs
        self._withheld = False
        self._calibrations = UpdateInterval(interval_updates(config, intervals.calibration))
        self._fresh_updates = interval_updates(config, intervals.drift)
        self._drift = UpdateInterval(self._fresh_updates, first=1)
        self._renewed_at = 0  # the learner's updates then
        names = {method.name for method in parse_scheme(scheme).methods}
        self._quantisation_aware = is_quantisation_aware(scheme)
        self._selects = not names.isdisjoint({"prune", "lowrank"}) and not self._quantisation_aware
        self._prunes = "prune" in names and not self._quantisation_aware
        self._check_interval = interval_updates(config, intervals.check)
        self._longest_pause = intervals.check  # in updates: what is tried in vain is to cost little
        self._checks = UpdateInterval(self._check_interval, first=_FIRST_CHECK_UPDATES if self._selects else None)
        self._selections = UpdateInterval(interval_updates(config, intervals.reselect), first=_FIRST_RESELECT_UPDATES)
        self._refits = UpdateInterval(interval_updates(config, _REFIT_STEPS))
        self._refit_due = False
        self._has_student = "distill" in names
        distill_interval, self._distill_steps = distillation_schedule(config, intervals)
        self._distillations = UpdateInterval(distill_interval)
        self._due: set[Work] = set()
        self._task = UpkeepTask()
        self._pending: Future[UpkeepResult | None] | None = None
        self._causes: set[str] = set()

    def artifact(self, version: int) -> CompressedPolicy:
        """The current policy. Raises WeightsError: it is not finite; CalibrationError: the level is not ready."""
        return self._plan.refresh(self._published, version, in_torch=self._published is not self._module)

    def payload(self) -> bytes | None:
        """The current policy, serialised as version 0; None when it fails validation and is withheld."""
        if self._withheld and not self._validator.full_check_due:
            self._statistics.withheld += 1
            return None
        if self._refit_due:
            self._refit()
        try:
            try:
                payload = self._checked_payload()
            except VerificationError:
                if not self._widen():
                    raise
                self._validator.full_check_due = True  # new ranges, and perhaps what a full check refused
                payload = self._checked_payload()
        except (VerificationError, WeightsError) as error:
            self._withhold(error)
            return None
        self._statistics.payload_bytes = len(payload)
        self._release()
        return payload

    @property
    def fit(self) -> bool:
        """Whether its artifacts are published: it has seen real inputs, and its last check in use passed."""
        return self.ready and not self._withheld

    @property
    def has_work(self) -> bool:
        """Whether work is due and none in progress."""
        return bool(self._due) and self._pending is None

    @property
    def is_quick(self) -> bool:
        """Whether due work must be done at once: first ranges, and all that the learner's forward pass uses."""
        return self._quantisation_aware or (
            (not self.ready or self.renewing) and not (self._selects or self._has_student)
        )

    def enter_use(self) -> None:
        """Before first use, and when it returns to use: schedule a full check, and ranges and a selection for the
        current policy unless they are as new as those of a level in use."""
        if self.scheme == FULL_PRECISION or not self._inputs.full:
            return
        self._validator.full_check_due = True
        if self.ready and self._inputs.updates - self._renewed_at <= self._fresh_updates:
            return
        self._renew()
        self.renewing = self.ready

    def leave_use(self) -> None:
        """Out of use: drop the validator's session and verdict; ``enter_use`` schedules a full check."""
        self._validator.close()
        if self._withheld:
            self._withheld, self._checks = False, UpdateInterval(self._check_interval)

    def after_update(self) -> None:
        """After each learner update: determine what is due."""
        if self.quantiser is not None:
            self.quantiser.apply_masks(self._module)
        self._validator.count_update()
        check = self._checks.tick()
        self._validator.full_check_due |= check and (self.scheme == FULL_PRECISION or not self._withheld)
        if self.scheme == FULL_PRECISION:
            return
        if not self.ready:
            if self._inputs.full:
                self._renew()
            return
        if self._has_student and self._distillations.tick():
            self._due.add("distillation")
        # while the level is withheld, the check follows on the new selection
        if (self._selects and self._selections.tick()) or (self._withheld and check):
            self._due.add("selection")
        if self._calibrations.tick():
            self._due.add("calibration")
        if self._drift.tick() and self._plan.encoder.calibrations:
            self._due.add("drift")
        self._refit_due |= self._prunes and self._refits.tick()

    def check_ranges(self) -> None:
        """Have activations outside their ranges widen them soon, which is otherwise looked for at intervals."""
        if self.ready and self._plan.encoder.calibrations:
            self._due.add("drift")

    def start_work(self, worker: BackgroundWorker, copied: Callable[[], torch.nn.Module]) -> None:
        """Start the due work in a worker, on copies of the policy and of inputs."""
        due, self._due = self._due, set()
        calibrates = not due.isdisjoint({"selection", "calibration"})
        few = _DRIFT_IMAGES if self._inputs.has_images else _DRIFT_ROWS
        steps = 0 if "distillation" not in due else self._distill_steps if self.ready else FIRST_DISTILL_STEPS
        self._task = task = UpkeepTask(
            distill_batches=[_tensors(self._inputs) for _ in range(steps)],
            # channels pruned from the learner's own network cannot be selected again
            reselects="selection" in due and not (self._quantisation_aware and self.ready),
            calibration=self._inputs.every() if calibrates else None,
            drift_inputs=self._inputs.newest(few) if "drift" in due and not calibrates else None,
        )
        if calibrates:
            self._renewed_at = self._inputs.updates
        module = self._module if worker.inline else copied()
        self._pending = worker.submit(partial(perform_upkeep, task, self._plan, module, worker.cancelled))

    def adopt_result(self) -> None:
        """Commit finished work as a whole, for the next artifact. Raises the worker's errors but CalibrationError."""
        if self._pending is None or not self._pending.done():
            return
        pending, self._pending, task = self._pending, None, self._task
        try:
            result = pending.result()
            if result is not None:
                self._adopt(task, result)
        except CalibrationError as error:
            kept = f"{self.scheme} keeps its ranges" if self.ready else f"{self.scheme} cannot be calibrated"
            self._warn_once(kept, error)
        if task.calibration is not None:
            self.renewing = False
            self._validator.full_check_due = True

    def abandon(self) -> None:
        """At the end of a run: drop work in progress, and log an error that was not raised yet."""
        pending, self._pending = self._pending, None
        if pending is None or not pending.done() or pending.cancelled():
            return
        error = pending.exception()
        if error is not None and not isinstance(error, CalibrationError | UpkeepCancelled):
            logger.error("background work on %s failed as the run ended", self.scheme, exc_info=error)

    def policy_is_finite(self) -> bool:
        """Whether the policy may be published at all."""
        return is_finite(self._published)

    def metrics(self) -> dict[str, float]:
        """Metrics by name, without the scheme; resets means. See the module's docstring."""
        statistics, checks, encoder = self._statistics, self._validator.statistics, self._plan.encoder
        found: dict[str, float | None] = {
            "payload_bytes": statistics.payload_bytes or None,
            "calibrations": encoder.calibrations or None,
            "drifted_activations": encoder.drifted_activations if encoder.calibrations else None,
            "withheld": statistics.withheld,
            "publish_kl": checks.divergence,
            "publish_kl_age_updates": None if checks.divergence is None else checks.age_updates,
            "reselections": statistics.reselections or None,
            "distill_kl": statistics.student_divergence,
            "distill_steps": statistics.distill_steps or None,
        }
        if statistics.refreshes:
            found["refresh_ms"] = 1e3 * statistics.refresh_s / statistics.refreshes
            statistics.refreshes, statistics.refresh_s = 0, 0.0
        if checks.checks:
            found["check_ms"] = 1e3 * checks.checks_s / checks.checks
            checks.checks, checks.checks_s = 0, 0.0
        return {name: float(value) for name, value in found.items() if value is not None}

    def _checked_payload(self) -> bytes:
        """Raises WeightsError: the policy is not finite; VerificationError: the artifact fails validation."""
        statistics, started = self._statistics, perf_counter()
        artifact = self.artifact(0)
        payload = artifact.to_bytes()
        statistics.refresh_s += perf_counter() - started
        statistics.refreshes += 1
        self._validator.validate(artifact, payload, self._published, self.quantiser)
        return payload

    def _widen(self) -> bool:
        """Make room for activations of new kinds of states, which can appear between two policies; whether any did."""
        update = self._plan.begin_update(self._published)
        try:
            drifted = update.recalibrate_on_drift(self._inputs.newest(WIDEN_ROWS))
        except CalibrationError:
            return False
        update.commit()
        return drifted > 0

    def _refit(self) -> None:
        """Fit the compensation for pruned channels to the policy that is published."""
        self._refit_due = False
        if not self.policy_is_finite():
            return
        try:
            self._plan.refit(self._published, self._inputs.every())
        except CalibrationError as error:
            self._warn_once(f"{self.scheme} keeps its compensation", error)

    def _renew(self) -> None:
        if self.ready:
            self._due |= {"selection", "calibration"}
        elif self._pending is None:
            self._due = {"selection", "calibration"}
            if self._has_student:
                self._due.add("distillation")

    def _adopt(self, task: UpkeepTask, result: UpkeepResult) -> None:
        result.update.commit()
        self._validator.full_check_due |= result.update.changed
        statistics = self._statistics
        statistics.distill_steps += len(task.distill_batches)
        if result.student_divergence is not None:
            statistics.student_divergence = result.student_divergence
        if self.ready and task.reselects:
            statistics.reselections += self._selects
        if not self.ready and task.calibration is not None:
            if self._quantisation_aware:
                self.quantiser = FakeQuantiser(self._plan, self._module)
                self.quantiser.prune(self._module)
                self._plan.calibrate(task.calibration)
            self.ready = True
            rows, elapsed_ms = len(next(iter(task.calibration.values()))), 1e3 * result.elapsed_s
            logger.info("%s is ready, calibrated on %d observations in %.0f ms", self.scheme, rows, elapsed_ms)

    def _withhold(self, error: CompressorError) -> None:
        """Withhold the level until a check passes.

        Checks follow with exponential back-off, each after a new selection and calibration."""
        self._statistics.withheld += 1
        self._validator.full_check_due = False
        if not self._withheld:
            self._withheld = True
            self._checks = UpdateInterval(self._longest_pause, first=1)
        instead = "fp32 stands in for it" if self.policy_is_finite() else "actors go on with the last good policy"
        self._warn_once(f"{self.scheme} is withheld, {instead}", error)

    def _release(self) -> None:
        if self._withheld:
            logger.info("%s is published again", self.scheme)
            self._withheld, self._checks = False, UpdateInterval(self._check_interval)

    def _warn_once(self, consequence: str, error: CompressorError) -> None:
        """Log each cause once, ignoring the numbers in it."""
        cause = _NUMBER.sub("#", f"{consequence}: {error}")
        if cause not in self._causes:
            self._causes.add(cause)
            logger.warning("%s: %s", consequence, error)


def _tensors(inputs: RecentInputs) -> dict[str, torch.Tensor]:
    drawn = inputs.draw(_DISTILL_ROWS, images=_DISTILL_IMAGES)
    return {name: torch.from_numpy(values) for name, values in drawn.items()}
