"""Background work on compressed policies: its tasks, and its thread.

What is expensive (selecting channels and low-rank bases, training a distilled student, measuring activation ranges) is
done on a schedule, in one thread beside the learner's, on copies of the policy's state and of inputs. The thread takes
one core and a low priority. Its result, a ``PlanUpdate``, is committed as a whole, in the learner's thread, between two
refreshes; until then refreshes use the previous state. Work that becomes due meanwhile is queued once. Any error other
than a CalibrationError ends the run. At the end of a run results are not waited for; the process exits after the torch
operator in progress. With ``actors = 0``, and for ``qat``, whose ranges the learner itself computes with, the same work
is done at once in the learner's thread.
"""

from __future__ import annotations

import copy
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from accel.compressors.plan import Plan, PlanUpdate

NICENESS = 5
"""Niceness of upkeep's thread: below learner and actors, but not starved by them, as a late student is useless."""

Arrays = Mapping[str, npt.NDArray[np.generic]]
T = TypeVar("T")


class UpkeepCancelled(Exception):  # noqa: N818 - a request, no error
    """Raised inside work whose result is not needed any more."""


@dataclass(frozen=True)
class UpkeepTask:
    """Work to do on a plan, with its own copies of inputs, [N, *shape] by name.

    Attributes:
        distill_batches: batches to train a student on, one step each. reselects: whether channels and bases are
            selected again, on ``calibration`` if it is given. calibration: inputs to measure activation ranges on;
            None: do not. drift_inputs: a few rows on which to look for activations outside their ranges; None: do not.
    """

    distill_batches: Sequence[Mapping[str, torch.Tensor]] = ()
    reselects: bool = False
    calibration: Arrays | None = None
    drift_inputs: Arrays | None = None


@dataclass(frozen=True)
class UpkeepResult:
    """The result of a task: an update of the plan, to be committed.

    Attributes:
        student_divergence: before the last training step; None without a student.
    """

    update: PlanUpdate
    student_divergence: float | None
    elapsed_s: float


def perform_upkeep(task: UpkeepTask, plan: Plan, module: nn.Module, cancelled: threading.Event) -> UpkeepResult | None:
    """Work on a copy of the plan's state, in any thread, while the module keeps its weights.

    Returns:
        None if the policy is not finite: a NaN would stay in running ranges and students for ever.
    Raises:
        CalibrationError: the inputs lead to activations that are not finite.
        UpkeepCancelled: it was cancelled, between two parts of the task.
    """
    if not is_finite(module):
        return None
    started = perf_counter()
    update, student_divergence = plan.begin_update(module), None
    for batch in task.distill_batches:
        _raise_if_set(cancelled)
        student_divergence = update.distill_step(batch)
    _raise_if_set(cancelled)
    if task.calibration is not None:
        update.calibrate(task.calibration, reselect=task.reselects, between=lambda: _raise_if_set(cancelled))
    elif task.reselects:
        update.reselect()
    if task.drift_inputs is not None and task.calibration is None:
        _raise_if_set(cancelled)
        update.recalibrate_on_drift(task.drift_inputs)
    return UpkeepResult(update, student_divergence, perf_counter() - started)


class Snapshot:
    """A module's weights as they were at one moment, in a copy on its device, while the learner changes the module's
    own. The host waits for no copy.

    Attributes:
        module: the copy; to be read within ``reading``, or by the caller of ``take``, until the next ``take``.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = copy.deepcopy(module)
        self._live, self._copies = _tensors(module), _tensors(self.module)
        self._stream: torch.cuda.Stream | None = None
        if self._live[0].is_cuda:
            self._stream = torch.cuda.Stream(self._live[0].device)  # type: ignore[no-untyped-call]
            self._taken = torch.cuda.Event()  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def take(self) -> None:
        """Begin to copy the weights as they are after all work that is queued on the device."""
        for mine, live in zip(self._copies, self._live, strict=True):
            mine.copy_(live)
        if self._stream is not None:
            self._taken.record()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Work on the copy, in any thread: on a device, on a stream of its own, beside the learner's."""
        with torch.cuda.stream(self._stream):
            if self._stream is not None:
                self._stream.wait_event(self._taken)
            yield


class BackgroundWorker:
    """Runs one job at a time, on at most one core and at low priority where the system has priorities per thread.

    The interpreter waits for the running job when it ends: a thread that dies inside torch takes the process with it.

    Args:
        inline: run jobs in the caller's thread instead, before ``submit`` returns, so that equal seeds give equal bits.
        niceness: of its thread.
    Attributes:
        cancelled: set when results are not needed any more; long jobs check it.
    """

    def __init__(self, *, inline: bool = False, niceness: int = NICENESS) -> None:
        self.inline = inline
        self._niceness = niceness
        self.cancelled = threading.Event()
        self._executor: ThreadPoolExecutor | None = None
        self._running: Future[object] | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is running; ``submit`` takes none then."""
        return self._running is not None and not self._running.done()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Begin a job; its result or exception is in the future. Raises RuntimeError: it is busy, or was closed."""
        if self.inline:
            return _done(job)
        if self.busy:
            raise RuntimeError("the worker is busy: submit the next job when it is done")
        if self._executor is None:
            self._executor = _one_thread(self._niceness)
        future = self._executor.submit(job)
        self._running = future  # type: ignore[assignment]  # a future of anything is one of objects
        return future

    def close(self, timeout_s: float) -> None:
        """Take no more jobs; cancel the running one and wait for it at most this long."""
        self.cancelled.set()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
        if self._running is not None:
            wait([self._running], timeout_s)


def is_finite(module: nn.Module) -> bool:
    """Whether all parameters are finite, by one sum; only huge values, whose sum overflows, count as not finite too."""
    sums = torch.stack([parameter.detach().sum() for parameter in module.parameters()])
    return bool(torch.isfinite(sums).all())


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    """All weights and buffers."""
    return [*module.parameters(), *module.buffers()]


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


def _one_thread(niceness: int) -> ThreadPoolExecutor:
    """Start the thread; the number of torch threads of the caller and of later threads does not change."""
    threads = torch.get_num_threads()
    executor = ThreadPoolExecutor(1, thread_name_prefix="accel-upkeep", initializer=partial(_lower_priority, niceness))
    executor.submit(threading.get_native_id).result()
    torch.set_num_threads(threads)
    return executor


def _lower_priority(niceness: int) -> None:
    """Limit this thread to one core for its operators, at low priority where threads have their own."""
    # a thread copies the global number when it first reads it; its own setting takes effect only afterwards
    torch.get_num_threads()
    torch.set_num_threads(1)
    if sys.platform == "linux":
        thread = threading.get_native_id()
        # Only root may lower what the user's own ``nice`` has raised.
        os.setpriority(os.PRIO_PROCESS, thread, max(os.getpriority(os.PRIO_PROCESS, thread), niceness))
