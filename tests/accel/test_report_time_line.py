"""The figures of a run's course: what their lines say of each actor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from accel.monitor.decisions import Decision
from accel.reports.charts import steps_by_actor
from accel.reports.runs import Run
from accel.reports.series import Series

SURVEY = Decision(1.0, 10, None, "survey", "fp32:8", "fp32:8;int8:0", "why")
TRIAL = Decision(2.0, 20, 1, "trial", "fp32:8", "int8:8", "why")
ACCEPT = [Decision(3.0, 30 + 10 * i, actor, "accept", "fp32:8", "int8:8", "why") for i, actor in enumerate((0, 2))]
RELAX = Decision(4.0, 50, None, "relax", "int8:8", "fp32:8", "why")
REJECT = Decision(4.0, 50, 1, "reject", "int8:8", "fp32:8", "why")
ALL = ([0, 10, 100], [0, 0, 0])
TRIED = ([0, 10, 20, 50, 100], [0, 0, 1, 0, 0])


def lines(actors: int | None, decisions: Sequence[Decision]) -> list[tuple[list[float], list[float]]]:
    """Environment steps and levels (fp32 is 0, int8 is 1) of each line."""
    series = Series({"env_steps": np.array([100.0])}, 1)
    run = Run("a", "/a", {} if actors is None else {"actors": actors}, {}, None, series, decisions)
    return [(list(x), list(y)) for x, y in steps_by_actor(run, ["fp32", "int8"])]


def test_a_decision_for_all_actors_changes_the_line_of_each() -> None:
    zero, two = ([0, 10, 30, 50, 100], [0, 0, 1, 0, 0]), ([0, 10, 40, 50, 100], [0, 0, 1, 0, 0])
    assert lines(3, [SURVEY, TRIAL, *ACCEPT, RELAX]) == [TRIED, zero, two]
    assert lines(None, [SURVEY, TRIAL, RELAX]) == [TRIED]


def test_actors_that_were_never_decided_on_alone_share_a_line() -> None:
    assert lines(2, [SURVEY]) == [ALL]
    assert lines(2, [SURVEY, TRIAL, REJECT]) == [ALL, TRIED]
