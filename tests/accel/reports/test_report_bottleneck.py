"""The bottleneck of a configuration: the documented rule, on shares as runs have them, and where reports say it."""

from __future__ import annotations

import pytest

from accel.monitor.bottleneck import TimeShares, shares_of
from accel.reports.analysis import Choices, analyse
from accel.reports.document import to_json
from accel.reports.runs import Group, Run
from accel.reports.tables import results_table
from tests.accel.reports.recorded_run import run_record


def run(seed: int, actor_s: dict[str, float], learner_s: dict[str, float], **config: object) -> Run:
    columns = {"elapsed_s": [1.0, 2.0], "env_steps": [1e6, 2e6], "return_mean": [1.0, 2.0]}
    summary = {"env_steps_per_s": 1e6, "training_s": 2.0, "actor_s": actor_s, "learner_s": learner_s}
    return run_record(columns, summary=summary, **{"actors": 1, "seed": seed} | config)


@pytest.mark.parametrize(
    ("actor_wait", "learner_wait", "environment", "bound"),
    [
        (0.38, 0.02, 0.91, "learner"),
        (0.0, 0.25, 0.94, "environment"),
        (0.02, 0.27, 0.35, "policy"),
        (0.13, 0.07, 0.44, "balanced"),
        (0.1, 0.0, 0.9, "learner"),
        (0.3, 0.3, 0.1, "balanced"),
        (0.0, 0.1, 0.5, "environment"),
        (0.0, 0.1, 0.49, "policy"),
    ],
)
def test_the_rule(actor_wait: float, learner_wait: float, environment: float, bound: str) -> None:
    assert TimeShares(actor_wait, learner_wait, environment, 1 - environment).limit == bound


def test_shares_are_of_each_sides_own_time() -> None:
    actor_s = {"env": 6.0, "policy": 2.0, "wait": 2.0}
    assert shares_of(actor_s, {"wait": 1.0, "forward": 4.0}) == TimeShares(0.2, 0.2, 0.75, 0.25)
    # In turns the actor waits for as long as the learner works.
    assert shares_of(actor_s, {"wait": 1.0, "forward": 3.0}, turns=True) == TimeShares(0.75, 0.25, 0.75, 0.25)
    assert shares_of({}, {"wait": 1.0}) is None
    assert shares_of({"wait": 1.0}, {"wait": 1.0}) is None


def test_a_group_has_the_bottleneck_of_its_median_seed() -> None:
    waiting = {"env": 6.0, "wait": 4.0}, {"wait": 0.1, "backward": 9.9}
    working = {"env": 9.0, "policy": 1.0}, {"wait": 5.0, "backward": 5.0}
    found = Group("g", (run(0, *waiting), run(1, *working), run(2, *waiting))).time_shares
    assert (found.limit, found.actor_wait) == ("learner", 0.4)
    alone = Group("g", (run(0, *working, actors=0),)).time_shares
    assert alone.limit == "balanced"


def test_every_form_of_the_report_says_it() -> None:
    busy = {"env": 1.0, "policy": 8.0, "overhead": 1.0, "wait": 0.0}, {"wait": 5.0, "backward": 5.0}
    idle = {"env": 5.0, "wait": 5.0}, {"wait": 0.0, "backward": 10.0}
    analysis = analyse([run(0, *busy), run(1, *busy), run(0, *idle, compressor="fp32")], Choices())
    table = results_table(analysis)
    limits = [row[table.columns.index("bottleneck")] for row in table.rows]
    assert limits[0] == "policy (actors wait 0%, learner 50%; environment 10%, policy 80%)"
    assert limits[1].startswith("learner (")
    value = to_json(analysis)
    assert value["groups"][0]["bottleneck"]["limit"] == "policy"  # type: ignore[index]
