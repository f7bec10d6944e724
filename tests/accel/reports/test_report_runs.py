"""Which runs are seeds of one another, which may be compared, and what a reader must know about them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from accel.errors import ReportError
from accel.reports.analysis import Choices, analyse
from accel.reports.caveats import caveats, obstacles
from accel.reports.runs import Run, group_runs
from tests.accel.reports.recorded_run import run_record

BASE: dict[str, object] = {"env": "E", "compressor": "int8", "actor_runtime": "onnxruntime", "total_env_steps": 100}


def run(
    name: str,
    *,
    damaged: int = 0,
    ended: bool = True,
    cpu: str = "A",
    machine: Mapping[str, object] | None = None,
    **config: object,
) -> Run:
    machine = {"cpu": cpu, "usable_cores": 2} if machine is None else machine
    values = BASE | {"seed": None} | config
    summary = {"reason": "x"} if ended else None
    columns = {"elapsed_s": [1.0], "env_steps": [100.0]}
    return run_record(columns, name=name, machine=machine, summary=summary, damaged=damaged, **values)


def test_seeds_are_grouped_and_labelled_by_what_differs() -> None:
    groups = group_runs(
        [
            run("a", seed=1),
            run("b", compressor="fp32", actor_runtime="torch", results_dir="x"),
            run("c", seed=0, results_dir="y"),
            run("d", compressor="fp32"),
            run("e", learning_rate=0.5),
        ]
    )
    assert [[r.name for r in group.runs] for group in groups] == [["c", "a"], ["b"], ["d"], ["e"]]
    assert [group.label for group in groups] == [
        "int8",
        "fp32, actor_runtime=torch",
        "fp32",
        "int8, learning_rate=0.5",
    ]


def test_grouping_by_chosen_options() -> None:
    runs = [run("a", learning_rate=0.1), run("b", learning_rate=0.2), run("c", compressor="fp32")]
    assert [group.label for group in group_runs(runs, ["compressor"])] == ["int8", "fp32"]
    with pytest.raises(ReportError, match="no run has an option 'width'"):
        group_runs(runs, ["width"])


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (run("b", env="F"), "another environment: env is 'F', the baseline's is 'E'"),
        (run("b", total_env_steps=200), "another budget: total_env_steps"),
        (run("b", cpu="B"), "another machine: B"),
        (run("b", compressor="fp32", ended=False), "has not finished"),
        (run("b", compressor="fp32", machine={}), "unknown machine: b without a readable machine.json"),
        (
            run("b", compressor="fp32", machine={"cpu": "A", "usable_cores": 2, "versions": {"onnxruntime": "1.30"}}),
            "another version: torch unknown, onnxruntime 1.30; the baseline's is torch unknown, onnxruntime unkn",
        ),
    ],
    ids=["environment", "budget", "machine", "unfinished", "unknown", "version"],
)
def test_what_cannot_be_compared_is_refused_or_marked(other: Run, reason: str) -> None:
    first = run("a")
    baseline, group = group_runs([first, other])[0], group_runs([other])[0]
    assert any(reason in text for text in obstacles(baseline, group))
    if len(group_runs([first, other])) == 2:
        with pytest.raises(ReportError, match="cannot be compared"):
            analyse([first, other], Choices(), first)
        (comparison,) = analyse([first, other], Choices(force=True), first).comparisons
        assert any(reason in text for text in comparison.marks)


@pytest.mark.parametrize(
    ("option", "one", "other", "kind"),
    [
        ("total_env_steps", 100, 300, "budget"),
        ("stop_at_return", None, 9.0, "budget"),
        ("wrapper", None, ["m:f"], "environment"),
        ("env_arg", None, ["g=1"], "environment"),
    ],
)
def test_one_seed_of_another_budget_or_environment_is_refused_or_marked(
    option: str, one: object, other: object, kind: str
) -> None:
    first, odd = run("a"), run("c", compressor="fp32", seed=1)
    odd = replace(odd, config={**odd.config, option: other})
    runs = [first, run("b", compressor="fp32", seed=0), odd, run("d", compressor="fp32", seed=2)]
    by_scheme = Choices(group_by=("compressor",))
    mark = f"another {kind}: {option} is {one!r} and {other!r}, the baseline's is {one!r}"
    with pytest.raises(ReportError, match=re.escape(f"fp32: {mark}")):
        analyse(runs, by_scheme, first)
    (comparison,) = analyse(runs, replace(by_scheme, force=True), first).comparisons
    assert comparison.marks == (mark,)
    mark = f"another {kind}: {option} is {one!r}, the baseline's is {one!r} and {other!r}"
    with pytest.raises(ReportError, match=re.escape(f"int8: {mark}")):
        analyse(runs, by_scheme, odd)


def test_equal_runs_have_no_obstacle() -> None:
    baseline, group = group_runs([run("a"), run("b", compressor="fp32")])
    assert obstacles(baseline, group) == ()
    assert caveats(baseline) == ()


def test_another_commit_is_told() -> None:
    ours, theirs = ({"cpu": "A", "usable_cores": 2, "commit": commit} for commit in ("abc", "def"))
    first, other = run("a", machine=ours), run("b", compressor="fp32", machine=theirs)
    assert analyse([first, other], Choices(), first).caveats == ("different commits: fp32 of def; int8 of abc",)
    alike = run("b", compressor="fp32", machine=ours)
    assert analyse([first, alike], Choices(), first).caveats == ()


def test_readers_are_told() -> None:
    (group,) = group_runs([run("a", seed=1, damaged=3), run("b", seed=1, cpu="B", ended=False)])
    told = "; ".join(caveats(group))
    assert "a: 3 damaged" in told
    assert "b: has not finished" in told
    assert "a seed occurs twice" in told
    assert "different machines" in told


def test_phase_times_come_from_records_where_there_is_no_summary() -> None:
    columns = {
        "elapsed_s": np.array([1.0, 3.0]),
        "env_steps": np.array([100.0, 300.0]),
        "actors_alive": np.array([2.0, 2.0]),
        "actor_env_share": np.array([0.5, 1.0]),
        "actor_wait_share": np.array([0.5, 0.0]),
    }
    unfinished = run_record(columns)
    assert unfinished.seconds_by_phase("actor") == {"env": 1.0 + 4.0, "wait": 1.0}
    assert unfinished.us_per_step("actor")["env"] == pytest.approx(5.0 / 300 * 1e6)
    # A resumed run's summary counts the whole run but times its last part only.
    summary = {"actor_s": {"env": 2.0, "wait": 9.0}, "env_steps_per_s": 50.0, "training_s": 2.0, "env_steps": 300}
    resumed = run_record(columns, summary=summary)
    assert resumed.us_per_step("actor")["env"] == pytest.approx(2.0 / 100 * 1e6)
