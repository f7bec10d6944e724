"""One compression scheme on a live run: bound once, refreshed at each publication, kept up in between."""

from __future__ import annotations

import logging
import re
from concurrent.futures import Future
from functools import partial
from time import perf_counter
from typing import Literal

import torch

from accel.config import TrainConfig
from accel.publishing.check import ArtifactCheck
from accel.publishing.examination import Examiner
from accel.publishing.figures import LevelFigures
from accel.publishing.inputs import RecentInputs
from accel.publishing.schedule import Schedule
from accel.publishing.upkeep import Outcome, Stopped, Task, Twin, carry_out, is_finite
from accel.publishing.worker import Worker
from compressors.artifact import CompressedPolicy
from compressors.errors import CalibrationError, CompressorError, VerificationError, WeightsError
from compressors.plan import Plan
from compressors.qat.fake_quantiser import FakeQuantiser, is_quantisation_aware
from compressors.scheme import parse_scheme

FULL_PRECISION = "fp32"
DRIFT_ROWS = 64
LESSON_ROWS = 256
LESSON_IMAGES = 16
FIRST_LESSONS = 100
_FIRST_RECHOICE_UPDATES = 25
_FIRST_CHECK_UPDATES = 8
FOLLOW_STEPS = 16
"""Optimiser steps between measurements of what a pruned policy must make up for; at least one update."""
Due = Literal["lesson", "choice", "calibration", "drift"]
_NUMBER = re.compile(r"\d[\d.e+-]*")

logger = logging.getLogger("accel")


class Level:
    """One scheme as actors may be given it.

    What ``tend`` finds due is done by ``work``, in a worker's thread or at once, and taken over as a whole by
    ``settle``, between two publications. Until then artifacts follow from the choices, ranges and student of the last
    time.

    Args:
        scheme: its text.
        plan: bound to the module, not calibrated yet.
        module: the learner's acting module.
        config: the run's intervals.
        check: what artifacts must pass, on few rows each and on many now and then.
    Attributes:
        ready: whether real inputs have been seen, where the scheme waits for them: calibrated, chosen, trained.
        awaited: whether choices for a policy long gone are being renewed, until when the level is not published.
        quantiser: what the learner trains with at a ``qat`` level, once that is ready.
    """

    def __init__(
        self, scheme: str, plan: Plan, module: torch.nn.Module, config: TrainConfig, check: ArtifactCheck
    ) -> None:
        self.scheme = scheme
        self.plan = plan
        self.figures = LevelFigures()
        self.ready = scheme == FULL_PRECISION
        self.awaited = False
        self.quantiser: FakeQuantiser | None = None
        self._module = module
        self._config = config
        self._blocked = False
        self._calibrations = Schedule(config.calibration_interval_updates)
        self._drift = Schedule(config.drift_interval_updates, first=1)
        names = {method.name for method in parse_scheme(scheme).methods}
        self._rounds = is_quantisation_aware(scheme)
        self._chooses = not names.isdisjoint({"prune", "lowrank"}) and not self._rounds
        self._prunes = "prune" in names and not self._rounds
        # what a pruned policy goes by ages with the optimiser's steps
        steps = config.passes * config.minibatches if self._chooses else 1
        self._check_interval = max(1, config.check_interval_updates // steps)
        self._checks = Schedule(self._check_interval, first=_FIRST_CHECK_UPDATES if self._chooses else None)
        self._choices = Schedule(max(1, config.reselect_interval_updates // steps), first=_FIRST_RECHOICE_UPDATES)
        self._follows = Schedule(max(1, FOLLOW_STEPS // steps))
        self._has_student = "distill" in names
        self._examiner = Examiner(check, self.figures, follows=not self._has_student)
        self._lessons = Schedule(config.distill_interval_updates)
        self._due: set[Due] = set()
        self._started = Task()
        self._pending: Future[Outcome | None] | None = None
        self._causes: set[str] = set()

    def artifact(self, version: int) -> CompressedPolicy:
        """The present policy. Raises WeightsError: it is not finite; CalibrationError: the level is not ready."""
        return self.plan.refresh(self._module, version=version)

    def payload(self) -> bytes | None:
        """The present policy as it goes on the wire, as version 0; None when it is unfit and is withheld."""
        if self._blocked and not self._examiner.due:
            self.figures.withheld += 1
            return None
        figures, started = self.figures, perf_counter()
        try:
            artifact = self.plan.refresh(self._module, version=0)
            refreshed = perf_counter()
            payload = artifact.to_bytes()
            figures.refresh_s += refreshed - started
            figures.serialise_s += perf_counter() - refreshed
            figures.refreshes += 1
            self._examiner.examine(artifact, payload, self._module, self.quantiser)
        except (VerificationError, WeightsError) as error:
            self._withhold(error)
            return None
        figures.payload_bytes = len(payload)
        self._release()
        return payload

    @property
    def fit(self) -> bool:
        """Whether its artifacts are published: it has seen real inputs, and no check since it came into use failed
        without a later one that passed."""
        return self.ready and not self._blocked

    @property
    def has_work(self) -> bool:
        """Whether something is due and nothing in work."""
        return bool(self._due) and self._pending is None

    @property
    def is_quick(self) -> bool:
        """Whether what is due is best done at once: ranges that nothing is published without, and whatever the
        learner's own forward pass computes with."""
        return self._rounds or ((not self.ready or self.awaited) and not (self._chooses or self._has_student))

    def resume(self, inputs: RecentInputs) -> None:
        """Before use, or after a time out of it: ranges and choices of channels and bases for the present policy."""
        if self.scheme == FULL_PRECISION or not inputs.full:
            return
        self._renew()
        self.awaited = self.ready
        self._examiner.due = True

    def rest(self) -> None:
        """Out of use: what checks keep from one publication to the next goes, and so does what they found. Nobody would
        check it again here, and ``resume`` has it chosen and calibrated anew and wholly checked."""
        self._examiner.rest()
        self._blocked = False

    def tend(self, inputs: RecentInputs) -> None:
        """After each learner update: find out what is due; what a pruned policy goes by is measured at once."""
        if self.quantiser is not None:
            self.quantiser.apply_masks(self._module)
        check = self._checks.tick()
        self._examiner.due |= check and (self.scheme == FULL_PRECISION or not self._blocked)
        if self.scheme == FULL_PRECISION:
            return
        if not self.ready:
            if inputs.full:
                self._renew()
            return
        if self._has_student and self._lessons.tick():
            self._due.add("lesson")
        # when it is blocked, the check follows, on what comes of the choice
        if (self._chooses and self._choices.tick()) or (self._blocked and check):
            self._due.add("choice")
        if self._calibrations.tick():
            self._due.add("calibration")
        if self._drift.tick() and self.plan.statistics.calibrations:
            self._due.add("drift")
        if self._prunes and self._follows.tick():
            self._follow(inputs)

    def work(self, worker: Worker, twin: Twin, inputs: RecentInputs) -> None:
        """Give a worker what is due; it gets copies of the policy and of inputs."""
        due, self._due = self._due, set()
        calibrates = not due.isdisjoint({"choice", "calibration"})
        lessons = 0 if "lesson" not in due else 1 if self.ready else FIRST_LESSONS
        self._started = task = Task(
            lessons=[inputs.draw(LESSON_ROWS, images=LESSON_IMAGES) for _ in range(lessons)],
            # what is pruned from the learner's own network is gone
            chooses="choice" in due and not (self._rounds and self.ready),
            calibration=inputs.every() if calibrates else None,
            recent=inputs.newest(DRIFT_ROWS) if "drift" in due and not calibrates else None,
        )
        module = self._module if worker.inline else twin.take(gradients=task.chooses)
        self._pending = worker.start(partial(carry_out, task, self.plan, module, worker.stopping))

    def settle(self) -> None:
        """Take over what is done, all of it, so that the next artifact follows from it. Whatever went wrong in the
        worker and is no matter of ranges is raised here."""
        if self._pending is None or not self._pending.done():
            return
        pending, self._pending, task = self._pending, None, self._started
        try:
            outcome = pending.result()
            if outcome is not None:
                self._adopt(task, outcome)
        except CalibrationError as error:
            kept = f"{self.scheme} keeps its ranges" if self.ready else f"{self.scheme} cannot be calibrated"
            self._complain(kept, error)
        if task.calibration is not None:
            self.awaited = False
            self._examiner.due = True

    def abandon(self) -> None:
        """At the end of a run: forget what is in work. An error that nobody has seen yet is logged."""
        pending, self._pending = self._pending, None
        if pending is None or not pending.done() or pending.cancelled():
            return
        error = pending.exception()
        if error is not None and not isinstance(error, CalibrationError | Stopped):
            logger.error("the upkeep of %s failed as the run ended", self.scheme, exc_info=error)

    def policy_is_finite(self) -> bool:
        """Whether the learner's policy may be published at all."""
        return is_finite(self._module)

    def _follow(self, inputs: RecentInputs) -> None:
        """At once, as it is worth little later."""
        if not self.policy_is_finite():
            return
        try:
            self.plan.refit(self._module, inputs.every())
        except CalibrationError as error:
            self._complain(f"{self.scheme} keeps its predictions", error)

    def _renew(self) -> None:
        if self.ready:
            self._due |= {"choice", "calibration"}
        elif self._pending is None:
            self._due = {"lesson", "choice", "calibration"} if self._has_student else {"choice", "calibration"}

    def _adopt(self, task: Task, outcome: Outcome) -> None:
        outcome.update.commit()
        self._examiner.due |= outcome.update.changed
        figures = self.figures
        figures.distill_steps += len(task.lessons)
        if outcome.student_kl is not None:
            figures.student_kl = outcome.student_kl
        if self.ready and task.chooses:
            figures.reselections += self._chooses
            figures.reselect_s += outcome.choice_s
        if not self.ready and task.calibration is not None:
            if self._rounds:
                self.quantiser = FakeQuantiser(self.plan, self._module)
                self.quantiser.prune(self._module)
                self.plan.calibrate(task.calibration)
            self.ready = True
            rows, elapsed_ms = len(next(iter(task.calibration.values()))), 1e3 * outcome.elapsed_s
            logger.info("%s is ready, calibrated on %d observations in %.0f ms", self.scheme, rows, elapsed_ms)

    def _withhold(self, error: CompressorError) -> None:
        """Nothing goes out until a check passes; the next is soon, later ones are rarer. Before each, the level is
        chosen and calibrated anew for the present weights."""
        self.figures.withheld += 1
        self._examiner.due = False
        if not self._blocked:
            self._blocked = True
            self._checks = Schedule(self._check_interval, first=1)
        instead = "fp32 stands in for it" if self.policy_is_finite() else "actors go on with the last good policy"
        self._complain(f"{self.scheme} is withheld, {instead}", error)

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
