"""The thread beside the learner's in which slow, rare work on policies is done."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

import torch

NICENESS = 5
"""Of the thread: behind the learner and actors, but not starved by them, as a student that learns late is of no use."""

T = TypeVar("T")


class Worker:
    """Does one job at a time, on one core at most and behind other threads where the system can tell them apart.

    The interpreter waits for the job in work when it ends: a thread that dies inside torch takes the process with it.

    Args:
        inline: do jobs in the caller's thread instead, before ``start`` returns, so that equal seeds give equal bits.
    Attributes:
        stopping: set once nobody waits for results any more; jobs that take long look at it.
    """

    def __init__(self, *, inline: bool = False) -> None:
        self.inline = inline
        self.stopping = threading.Event()
        self._executor: ThreadPoolExecutor | None = None
        self._running: Future[object] | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is in work; ``start`` takes none then."""
        return self._running is not None and not self._running.done()

    def start(self, job: Callable[[], T]) -> Future[T]:
        """Begin a job; what it returns or raises is in the future.

        Raises:
            RuntimeError: the worker is busy, or was closed.
        """
        if self.inline:
            return _done(job)
        if self.busy:
            raise RuntimeError("the worker has a job; start the next one when it is no longer busy")
        if self._executor is None:
            self._executor = _one_thread()
        future = self._executor.submit(job)
        self._running = future  # type: ignore[assignment]  # a future of anything is one of objects
        return future

    def close(self, patience_s: float) -> None:
        """Take no more jobs; the one in work is told to stop, and waited for so long at most."""
        self.stopping.set()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
        if self._running is not None:
            wait([self._running], patience_s)


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
    executor = ThreadPoolExecutor(1, thread_name_prefix="accel-upkeep", initializer=_step_back)
    executor.submit(threading.get_native_id).result()
    torch.set_num_threads(threads)
    return executor


def _step_back() -> None:
    """One core for this thread's own operators, and a lower priority where a thread can have one."""
    torch.get_num_threads()  # a thread takes over the number of all when it first asks; only then does its own count
    torch.set_num_threads(1)
    if sys.platform == "linux":
        thread = threading.get_native_id()
        # Only root may lower what the user's own ``nice`` has raised.
        os.setpriority(os.PRIO_PROCESS, thread, max(os.getpriority(os.PRIO_PROCESS, thread), NICENESS))
