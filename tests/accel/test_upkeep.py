"""Upkeep of a scheme, part by part: it can be stopped between any two, and what was stopped has changed nothing."""

from __future__ import annotations

import threading

import pytest

from accel.publishing.upkeep import Stopped, Task, carry_out
from tests.compressors.policies import CASES, randomise, run_artifact


class StopsAt(threading.Event):
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
    task = Task(chooses=True, calibration=inputs)
    patient = StopsAt(10**9)
    outcome = carry_out(task, plan, module, patient)
    assert outcome is not None and outcome.update.changed
    assert patient.looks >= 5, "before all, before and after each choice"
    for look in range(1, patient.looks + 1):
        with pytest.raises(Stopped):
            carry_out(task, plan, module, StopsAt(look))
    assert (run_artifact(plan.refresh(module, version=1), inputs)[0] == before).all()
    outcome.update.commit()
    assert (run_artifact(plan.refresh(module, version=2), inputs)[0] != before).any()
