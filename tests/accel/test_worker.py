"""The worker's thread: one at a time, one core, and nobody else's threads touched."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import Future

import pytest
import torch

from accel.publishing.worker import NICENESS, Worker


def _torch_threads_of_a_new_thread() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


def test_it_takes_one_core_and_leaves_the_others_to_the_learner() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        worker = Worker()
        assert worker.start(torch.get_num_threads).result(300.0) == 1
        assert (torch.get_num_threads(), _torch_threads_of_a_new_thread()) == (2, 2)
        torch.set_num_threads(3)
        assert worker.start(torch.get_num_threads).result(300.0) == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux")
def test_its_thread_steps_back_alone() -> None:
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    worker = Worker()
    theirs = worker.start(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())).result(300.0)
    assert (theirs, os.getpriority(os.PRIO_PROCESS, 0)) == (max(mine, NICENESS), mine)


def test_it_takes_one_job_at_a_time() -> None:
    worker, go = Worker(), threading.Event()
    first: Future[bool] = worker.start(lambda: go.wait(300.0))
    assert worker.busy
    with pytest.raises(RuntimeError, match="no longer busy"):
        worker.start(int)
    go.set()
    assert first.result(300.0) and not worker.busy
    assert worker.start(lambda: 3).result(300.0) == 3


def test_after_an_error_it_goes_on() -> None:
    worker = Worker()
    with pytest.raises(ZeroDivisionError):
        worker.start(lambda: 1 // 0).result(300.0)
    assert worker.start(lambda: 3).result(300.0) == 3


def test_closed_it_takes_nothing_and_tells_the_job_in_work() -> None:
    worker, started = Worker(), threading.Event()

    def job() -> bool:
        started.set()
        return worker.stopping.wait(300.0)

    told = worker.start(job)
    assert started.wait(300.0)
    worker.close(patience_s=300.0)
    assert told.result(0.0) is True
    with pytest.raises(RuntimeError):
        worker.start(int)


def test_inline_work_is_done_in_the_callers_thread() -> None:
    worker = Worker(inline=True)
    assert worker.start(threading.get_ident).result(0.0) == threading.get_ident() and not worker.busy
    failed = worker.start(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failed.result(0.0)
    worker.close(patience_s=300.0)
