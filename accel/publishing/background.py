"""Background work on compressed policies: when it is due, what it does, and the thread in which it is done.

What is expensive (selecting channels and low-rank bases, training a distilled student, measuring activation ranges) is
done on a schedule, in one thread beside the learner's, on copies of the policy's state and of inputs. The thread takes
one core and a low priority. Its result, a ``PlanUpdate``, is committed as a whole, in the learner's thread, between two
refreshes; until then these go on with the last one. Work that falls due meanwhile is noted once. An error that is no
matter of ranges ends the run. At the end nobody waits for results; the process alone ends no earlier than the one
decomposition that torch is in. With ``actors = 0``, and for ``qat``, whose ranges the learner itself computes with, the
same work is done at once in the learner's thread.
"""

from __future__ import annotations

import copy
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from compressors.plan import Plan, PlanUpdate

NICENESS = 5
"""Of the thread: behind the learner and actors, but not starved by them, as a student that learns late is of no use."""

Arrays = Mapping[str, npt.NDArray[np.generic]]
T = TypeVar("T")


class UpdateInterval:
    """Due every ``interval`` updates; before that after ``first``, 2 ``first`` more, 4 ``first`` more… updates.

    A young policy changes fast, so what is rare later is frequent at the start. Counts alone decide, never the clock: a
    run in one process stays deterministic.
    """

    def __init__(self, interval: int, first: int | None = None) -> None:
        self._interval = interval
        self._step = self._left = interval if first is None else min(first, interval)

    def tick(self) -> bool:
        """Count one update; whether it is due now."""
        self._left -= 1
        if self._left > 0:
            return False
        self._step = self._left = min(2 * self._step, self._interval)
        return True


class UpkeepCancelled(Exception):  # noqa: N818 - a request, no error
    """Nobody waits for the work any more."""


@dataclass(frozen=True)
class UpkeepTask:
    """What is to be done to a plan, and inputs for it, [N, *shape] by name, which nobody else has.

    Attributes:
        distill_batches: what a student is trained on, a step each.
        reselects: whether channels and bases are selected anew, by ``calibration`` if it is given.
        calibration: what activation ranges are measured on; None: they are not.
        drift_inputs: a few rows on which to look for activations that left their range; None: nobody looks.
    """

    distill_batches: Sequence[Mapping[str, torch.Tensor]] = ()
    reselects: bool = False
    calibration: Arrays | None = None
    drift_inputs: Arrays | None = None


@dataclass(frozen=True)
class UpkeepResult:
    """What a task led to.

    Attributes:
        update: of the plan, to be committed.
        student_divergence: before the last training step; None without a student.
        elapsed_s: what the whole task took. selection_s: selection and calibration.
    """

    update: PlanUpdate
    student_divergence: float | None
    elapsed_s: float
    selection_s: float


def perform_upkeep(task: UpkeepTask, plan: Plan, module: nn.Module, cancelled: threading.Event) -> UpkeepResult | None:
    """Work on a copy of the plan's state, in any thread, while the module keeps its weights.

    Returns:
        None when the policy is not finite: one number of it would stay in running ranges and students for good.
    Raises:
        CalibrationError: the inputs lead to activations that are not finite.
        UpkeepCancelled: on request, between two parts of the task.
    """
    if not is_finite(module):
        return None
    started = perf_counter()
    update, student_divergence = plan.begin_update(module), None
    for batch in task.distill_batches:
        _raise_if_set(cancelled)
        student_divergence = update.distill_step(batch)
    trained = perf_counter()
    _raise_if_set(cancelled)
    if task.calibration is not None:
        update.calibrate(task.calibration, reselect=task.reselects, between=lambda: _raise_if_set(cancelled))
    elif task.reselects:
        update.reselect()
    if task.drift_inputs is not None and task.calibration is None:
        _raise_if_set(cancelled)
        update.recalibrate_on_drift(task.drift_inputs)
    ended = perf_counter()
    return UpkeepResult(update, student_divergence, ended - started, ended - trained)


class ModuleCopy:
    """A copy of a module that keeps its weights while the learner changes the module's own."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._copy: nn.Module | None = None

    def update(self, *, gradients: bool) -> nn.Module:
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


class BackgroundWorker:
    """Does one job at a time, on one core at most and behind other threads where the system can tell them apart.

    The interpreter waits for the running job when it ends: a thread that dies inside torch takes the process with it.

    Args:
        inline: do jobs in the caller's thread instead, before ``submit`` returns, so that equal seeds give equal bits.
    Attributes:
        cancelled: set once nobody waits for results any more; long jobs look at it.
    """

    def __init__(self, *, inline: bool = False) -> None:
        self.inline = inline
        self.cancelled = threading.Event()
        self._executor: ThreadPoolExecutor | None = None
        self._running: Future[object] | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is running; ``submit`` takes none then."""
        return self._running is not None and not self._running.done()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Begin a job; what it returns or raises is in the future.

        Raises:
            RuntimeError: the worker is busy, or was closed.
        """
        if self.inline:
            return _done(job)
        if self.busy:
            raise RuntimeError("the worker has a job; submit the next one when it is no longer busy")
        if self._executor is None:
            self._executor = _one_thread()
        future = self._executor.submit(job)
        self._running = future  # type: ignore[assignment]  # a future of anything is one of objects
        return future

    def close(self, timeout_s: float) -> None:
        """Take no more jobs; the running one is told to stop, and waited for so long at most."""
        self.cancelled.set()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
        if self._running is not None:
            wait([self._running], timeout_s)


def is_finite(module: nn.Module) -> bool:
    """Whether all parameters are; one pass, which only huge ones fool."""
    sums = torch.stack([parameter.detach().sum() for parameter in module.parameters()])
    return bool(torch.isfinite(sums).all())


def _raise_if_set(cancelled: threading.Event) -> None:
    if cancelled.is_set():
        raise UpkeepCancelled


def _done(job: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()
    try:
        future.set_result(job())
    except Exception as error:  # noqa: BLE001 - raised again by whoever takes the result
        future.set_exception(error)
    return future


def _one_thread() -> ThreadPoolExecutor:
    """Its thread has started; the caller's number of torch threads stays that of all threads to come."""
    threads = torch.get_num_threads()
    executor = ThreadPoolExecutor(1, thread_name_prefix="accel-upkeep", initializer=_lower_priority)
    executor.submit(threading.get_native_id).result()
    torch.set_num_threads(threads)
    return executor


def _lower_priority() -> None:
    """One core for this thread's own operators, and a lower priority where a thread can have one."""
    torch.get_num_threads()  # a thread takes over the number of all when it first asks; only then does its own count
    torch.set_num_threads(1)
    if sys.platform == "linux":
        thread = threading.get_native_id()
        # Only root may lower what the user's own ``nice`` has raised.
        os.setpriority(os.PRIO_PROCESS, thread, max(os.getpriority(os.PRIO_PROCESS, thread), NICENESS))
