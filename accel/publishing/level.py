"""One compression scheme on a live run: bound once, refreshed at each publication, looked after in between."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from time import perf_counter

import torch

from accel.config import TrainConfig
from accel.publishing.check import ArtifactCheck
from accel.publishing.inputs import RecentInputs
from accel.publishing.schedule import Schedule
from compressors.artifact import CompressedPolicy
from compressors.base import Plan
from compressors.differences import CodeDifferences, code_differences
from compressors.errors import CalibrationError, CompressorError, VerificationError, WeightsError
from compressors.qat import FakeQuantiser, RoundedPolicy, trains_rounded
from compressors.scheme import parse_scheme

FULL_PRECISION = "fp32"
DRIFT_ROWS = 64
LESSON_ROWS = 256
LESSON_IMAGES = 16
FIRST_LESSONS = 100
_FIRST_RECHOICE_UPDATES = 25
_FIRST_CHECK_UPDATES = 8
_FOLLOW_STEPS = 16
"""Optimiser steps between measurements of what a pruned policy must make up for; at least one update."""
_NUMBER = re.compile(r"\d[\d.e+-]*")

logger = logging.getLogger("accel")


@dataclass
class LevelFigures:
    """What happened at one level so far; see ``Publisher.metrics``."""

    refreshes: int = 0
    refresh_s: float = 0.0
    serialise_s: float = 0.0
    payload_bytes: int = 0
    kept_back: int = 0
    rechoices: int = 0
    rechoose_s: float = 0.0
    check_kl: float | None = None
    check_s: float = 0.0
    student_kl: float | None = None
    code_differences: CodeDifferences | None = None


class Level:
    """One scheme as actors may be given it.

    Args:
        scheme: its text.
        plan: bound to the module, not calibrated yet.
        module: the learner's acting module.
        config: the run's intervals.
        check: what an artifact must pass.
    Attributes:
        ready: whether real inputs have been seen, where the scheme waits for them: calibrated, chosen, trained.
        quantiser: what the learner trains with at a ``qat`` level, once that is ready.
    """

    def __init__(
        self, scheme: str, plan: Plan, module: torch.nn.Module, config: TrainConfig, check: ArtifactCheck
    ) -> None:
        self.scheme = scheme
        self.plan = plan
        self.figures = LevelFigures()
        self.ready = scheme == FULL_PRECISION
        self.quantiser: FakeQuantiser | None = None
        self._module = module
        self._config = config
        self._check = check
        self._check_due = True
        self._blocked = False
        self._calibrations = Schedule(config.calibration_interval_updates)
        self._drift = Schedule(config.drift_interval_updates, first=1)
        names = {method.name for method in parse_scheme(scheme).methods}
        self._rounds = trains_rounded(scheme)
        self._chooses = not names.isdisjoint({"prune", "lowrank"}) and not self._rounds
        self._prunes = "prune" in names and not self._rounds
        # what a pruned policy goes by ages with the optimiser's steps
        steps = config.passes * config.minibatches if self._chooses else 1
        self._check_interval = max(1, config.check_interval_updates // steps)
        self._checks = Schedule(self._check_interval, first=_FIRST_CHECK_UPDATES if self._chooses else None)
        self._choices = Schedule(max(1, config.rechoose_interval_updates // steps), first=_FIRST_RECHOICE_UPDATES)
        self._follows = Schedule(max(1, _FOLLOW_STEPS // steps))
        self._has_student = "distill" in names
        self._lessons = Schedule(config.distill_interval_updates)
        self._causes: set[str] = set()

    def begin(self, inputs: RecentInputs) -> None:
        """Take the first real inputs: ranges, choices, a student's first lessons. Stays unready if they are unfit."""
        started = perf_counter()
        try:
            if self._has_student:
                for _ in range(FIRST_LESSONS):
                    self._teach(inputs)
            self.plan.rechoose(self._module)
            self.plan.calibrate(inputs.every())
            if self._rounds:
                self.quantiser = FakeQuantiser(self.plan, self._module)
                self.quantiser.prune(self._module)
                self.plan.calibrate(inputs.every())
        except CalibrationError as error:
            self._complain(f"{self.scheme} cannot be calibrated", error)
            return
        self.ready = True
        elapsed_ms = 1e3 * (perf_counter() - started)
        logger.info(
            "actors change to %s, calibrated on %d observations in %.0f ms", self.scheme, inputs.rows, elapsed_ms
        )

    def artifact(self, version: int) -> CompressedPolicy:
        """The present policy. Raises WeightsError: it is not finite; CalibrationError: the level is not ready."""
        return self.plan.refresh(self._module, version=version)

    def payload(self) -> bytes | None:
        """The present policy as it goes on the wire, as version 0; None when it is unfit and is kept back."""
        if self._blocked and not self._check_due:
            self.figures.kept_back += 1
            return None
        figures = self.figures
        started = perf_counter()
        try:
            artifact = self.plan.refresh(self._module, version=0)
            refreshed = perf_counter()
            payload = artifact.to_bytes()
            figures.refresh_s += refreshed - started
            figures.serialise_s += perf_counter() - refreshed
            figures.refreshes += 1
            if self._check_due:
                self._run_check(artifact)
        except (VerificationError, WeightsError) as error:
            self._keep_back(error)
            return None
        figures.payload_bytes = len(payload)
        self._release()
        return payload

    @property
    def fit(self) -> bool:
        """Whether its artifacts are published: it has seen real inputs, and the last check passed."""
        return self.ready and not self._blocked

    def resume(self, inputs: RecentInputs) -> None:
        """Before use, or after a time out of it: ranges and choices of channels and bases for the present policy."""
        if self.scheme == FULL_PRECISION or not inputs.full:
            return
        if not self.ready:
            self.begin(inputs)
            return
        try:
            self._rechoose(inputs)
        except CalibrationError as error:
            self._complain(f"{self.scheme} keeps its ranges", error)
        self._check_due = True

    def tend(self, inputs: RecentInputs) -> None:
        """After each learner update: whatever is due."""
        if self.quantiser is not None:
            self.quantiser.hold(self._module)
        check = self._checks.tick()
        self._check_due |= check
        if self.scheme == FULL_PRECISION:
            return
        if not self.ready:
            if inputs.full:
                self.begin(inputs)
            return
        lesson = self._has_student and self._lessons.tick()
        choice = (self._chooses and self._choices.tick()) or (self._blocked and check)
        calibration, drift = self._calibrations.tick(), self._drift.tick()
        follow = self._prunes and self._follows.tick()
        if not (lesson or choice or calibration or drift or follow) or not self.policy_is_finite():
            return
        try:
            if lesson:
                self._teach(inputs)
            if choice:
                self._rechoose(inputs)
            elif calibration:
                self.plan.calibrate(inputs.every())
            elif drift:
                self.plan.recalibrate_on_drift(inputs.newest(DRIFT_ROWS))
            if follow and not (choice or calibration):
                self.plan.follow(self._module, inputs.every())
        except CalibrationError as error:
            self._complain(f"{self.scheme} keeps its ranges", error)

    def _teach(self, inputs: RecentInputs) -> None:
        lesson = inputs.draw(LESSON_ROWS, images=LESSON_IMAGES)
        self.figures.student_kl = self.plan.train_step(self._module, lesson)

    def policy_is_finite(self) -> bool:
        """One number of a diverged policy would stay in running ranges and students for good."""
        sums = torch.stack([parameter.detach().sum() for parameter in self._module.parameters()])
        return bool(torch.isfinite(sums).all())

    def _rechoose(self, inputs: RecentInputs) -> None:
        started = perf_counter()
        if not self._rounds:  # what is pruned from the learner's own network is gone
            self.plan.rechoose(self._module)
        self.plan.calibrate(inputs.every())
        self.figures.rechoices += self._chooses
        self.figures.rechoose_s += perf_counter() - started

    def _run_check(self, artifact: CompressedPolicy) -> None:
        self._check_due = False
        started = perf_counter()
        try:
            if self.quantiser is None:
                self.figures.check_kl = self._check(artifact, self._module)
                return
            self.figures.check_kl = self._check(artifact, RoundedPolicy(self.quantiser, self._module))
            self.figures.code_differences = code_differences(
                self.quantiser, artifact, self._module, self._check.inputs()
            )
        finally:
            self.figures.check_s = perf_counter() - started

    def _keep_back(self, error: CompressorError) -> None:
        """Nothing goes out until a check passes; the next is soon, later ones are rarer. Before each, the level is
        chosen and calibrated anew for the present weights."""
        self.figures.kept_back += 1
        self._check_due = False
        if not self._blocked:
            self._blocked = True
            self._checks = Schedule(self._check_interval, first=1)
        instead = "fp32 stands in for it" if self.policy_is_finite() else "actors go on with the last good policy"
        self._complain(f"{self.scheme} is kept back, {instead}", error)

    def _release(self) -> None:
        if self._blocked:
            logger.info("%s is published again", self.scheme)
        self._blocked = False

    def _complain(self, consequence: str, error: CompressorError) -> None:
        """Log each cause once, whatever its figures."""
        cause = _NUMBER.sub("#", f"{consequence}: {error}")
        if cause not in self._causes:
            self._causes.add(cause)
            logger.warning("%s: %s", consequence, error)
