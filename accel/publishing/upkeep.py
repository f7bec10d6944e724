"""What keeps a compressed policy good as the learner's changes: a student's lessons, choices, ranges; slow and rare."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from compressors.plan import Plan, PlanUpdate

Arrays = Mapping[str, npt.NDArray[np.generic]]


class Stopped(Exception):  # noqa: N818 - a request, no error
    """Nobody waits for the work any more."""


@dataclass(frozen=True)
class Task:
    """What is to be done to a plan and the inputs for it, [N, *shape] by name, which nobody else has.

    Attributes:
        lessons: what a student learns from, a step each.
        chooses: whether channels and bases are chosen anew, with ``calibration`` in view if it is given.
        calibration: what activation ranges are measured on; None: they are not.
        recent: a few rows on which to look for activations that left their range; None: nobody looks.
    """

    lessons: Sequence[Mapping[str, torch.Tensor]] = ()
    chooses: bool = False
    calibration: Arrays | None = None
    recent: Arrays | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of a task.

    Attributes:
        update: of the plan, to be committed.
        student_kl: divergence before the last lesson, nats; None without a student.
        elapsed_s: what the whole task took. choice_s: choosing and calibrating.
    """

    update: PlanUpdate
    student_kl: float | None
    elapsed_s: float
    choice_s: float


def carry_out(task: Task, plan: Plan, module: nn.Module, stopping: threading.Event) -> Outcome | None:
    """Work on a copy of the plan's state, in any thread, while the module keeps its weights.

    Returns:
        None when the policy is not finite: one number of it would stay in running ranges and students for good.
    Raises:
        CalibrationError: the inputs lead to activations that are not finite.
        Stopped: on request, between two parts of the task.
    """
    if not is_finite(module):
        return None
    started = perf_counter()
    update, student_kl = plan.begin_update(module), None
    for lesson in task.lessons:
        _look(stopping)
        student_kl = update.distill_step(lesson)
    taught = perf_counter()
    _look(stopping)
    if task.calibration is not None:
        update.calibrate(task.calibration, reselect=task.chooses, between=lambda: _look(stopping))
    elif task.chooses:
        update.reselect()
    if task.recent is not None and task.calibration is None:
        _look(stopping)
        update.recalibrate_on_drift(task.recent)
    ended = perf_counter()
    return Outcome(update, student_kl, ended - started, ended - taught)


class Twin:
    """A copy of a module that keeps its weights while the learner changes the module's own."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._copy: nn.Module | None = None

    def take(self, *, gradients: bool) -> nn.Module:
        """The copy, brought up to date; with the gradients that the learner's last backward pass left, if asked for."""
        if self._copy is None:
            self._copy = copy.deepcopy(self._module)
        with torch.no_grad():
            for buffer, live in zip(self._copy.buffers(), self._module.buffers(), strict=True):
                buffer.copy_(live)
            for mine, theirs in zip(self._copy.parameters(), self._module.parameters(), strict=True):
                mine.copy_(theirs)
                mine.grad = theirs.grad.clone() if gradients and theirs.grad is not None else None
        return self._copy


def _look(stopping: threading.Event) -> None:
    if stopping.is_set():
        raise Stopped


def is_finite(module: nn.Module) -> bool:
    """Whether all parameters are; one pass, which only huge ones fool."""
    sums = torch.stack([parameter.detach().sum() for parameter in module.parameters()])
    return bool(torch.isfinite(sums).all())
