"""Background work: one job at a time on one core; what was cancelled has changed nothing."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch

from accel.publishing.background import (
    NICENESS,
    BackgroundWorker,
    UpkeepCancelled,
    UpkeepTask,
    perform_upkeep,
)
from accel.publishing.level import UpdateInterval
from tests.compressors.policies import CASES, randomise, run_artifact


def test_it_takes_one_core_and_leaves_the_others_to_the_learner() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        worker = BackgroundWorker()
        assert worker.submit(torch.get_num_threads).result(300.0) == 1
        with ThreadPoolExecutor(1) as new_thread:
            assert torch.get_num_threads() == new_thread.submit(torch.get_num_threads).result() == 2
        torch.set_num_threads(3)
        assert worker.submit(torch.get_num_threads).result(300.0) == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux")
def test_only_its_own_thread_has_a_lower_priority() -> None:
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    worker = BackgroundWorker()
    theirs = worker.submit(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())).result(300.0)
    assert (theirs, os.getpriority(os.PRIO_PROCESS, 0)) == (max(mine, NICENESS), mine)


def test_it_takes_one_job_at_a_time() -> None:
    worker, go = BackgroundWorker(), threading.Event()
    first: Future[bool] = worker.submit(lambda: go.wait(300.0))
    assert worker.busy
    with pytest.raises(RuntimeError, match="the worker is busy: submit the next job"):
        worker.submit(int)
    go.set()
    assert first.result(300.0) and not worker.busy
    assert worker.submit(lambda: 3).result(300.0) == 3


def test_after_an_error_it_goes_on() -> None:
    worker = BackgroundWorker()
    with pytest.raises(ZeroDivisionError):
        worker.submit(lambda: 1 // 0).result(300.0)
    assert worker.submit(lambda: 3).result(300.0) == 3


def test_once_closed_it_takes_no_job_and_cancels_the_running_one() -> None:
    worker, started = BackgroundWorker(), threading.Event()

    def job() -> bool:
        started.set()
        return worker.cancelled.wait(300.0)

    told = worker.submit(job)
    assert started.wait(300.0)
    worker.close(timeout_s=300.0)
    assert told.result(0.0) is True
    with pytest.raises(RuntimeError):
        worker.submit(int)


def test_inline_work_is_done_in_the_callers_thread() -> None:
    worker = BackgroundWorker(inline=True)
    assert worker.submit(threading.get_ident).result(0.0) == threading.get_ident() and not worker.busy
    failed = worker.submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failed.result(0.0)
    worker.close(timeout_s=300.0)


@pytest.mark.parametrize(
    ("interval", "first", "due"),
    [(3, None, [3, 6, 9, 12]), (10, 1, [1, 3, 7, 15, 25, 35]), (8, 100, [8, 16, 24])],
)
def test_a_schedule_is_denser_at_the_start(interval: int, first: int | None, due: list[int]) -> None:
    schedule = UpdateInterval(interval, first)
    assert [update for update in range(1, due[-1] + 1) if schedule.tick()] == due


class SetAtLook(threading.Event):
    """Is set from its n-th look on."""

    def __init__(self, look: int) -> None:
        super().__init__()
        self.looks, self._look = 0, look

    def is_set(self) -> bool:
        self.looks += 1
        return self.looks >= self._look


def test_work_stops_between_its_parts_and_leaves_the_plan_as_it_was() -> None:
    case = CASES["relu-mlp"]
    module = randomise(case.make(), seed=0)
    plan = case.bind("prune(0.25)+lowrank(0.25)", module)
    plan.calibrate(case.inputs(64, seed=1))
    inputs = case.inputs(64, seed=2)
    before = run_artifact(plan.refresh(module, version=0), inputs)[0]
    task = UpkeepTask(reselects=True, calibration=inputs)
    uncancelled = SetAtLook(10**9)
    result = perform_upkeep(task, plan, module, uncancelled)
    assert result is not None and result.update.changed
    assert uncancelled.looks >= 3, "before all, before and after the selection"
    for look in range(1, uncancelled.looks + 1):
        with pytest.raises(UpkeepCancelled):
            perform_upkeep(task, plan, module, SetAtLook(look))
    assert (run_artifact(plan.refresh(module, version=1), inputs)[0] == before).all()
    result.update.commit()
    assert (run_artifact(plan.refresh(module, version=2), inputs)[0] != before).any()
