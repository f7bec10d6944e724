"""Names of configurations: told apart, no longer than needed, and what of an assignment really acts."""

from __future__ import annotations

import pytest

from accel.errors import ReportError
from accel.reports.runs import LONGEST_LABEL, Run, group_runs, labels, relabelled
from tests.accel.reports.recorded_run import run_record

BASE: dict[str, object] = {"compressor": "fp32", "actors": 1}


def test_labels_say_what_is_unusual() -> None:
    """Of groups of runs: ``test_report_runs``."""
    rates = [BASE | {"learning_rate": rate} for rate in (0.1, 0.2)]
    assert labels(rates, ["learning_rate"]) == ["learning_rate=0.1", "learning_rate=0.2"], "no majority"
    assert labels([BASE], []) == ["fp32"]


def test_long_values_keep_their_ends_and_equal_labels_are_numbered() -> None:
    configs = [BASE | {"wrapper": "w" * 90 + end} for end in "123"]
    found = labels(configs, ["wrapper"])
    assert len(set(found)) == 3 and all(len(label) < 60 for label in found)
    twins = [BASE | {"wrapper": "w" * 40 + middle + "w" * 40} for middle in "ab"]
    assert [label[-2:] for label in labels(twins, ["wrapper"])] == ["#1", "#2"]


def make_run(name: str, **options: object) -> Run:
    return run_record(name=name, **BASE | options)


LONG: dict[str, object] = {f"an_option_{i}": i for i in range(9)}


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (("ppo-s0", "dqn-s0"), ["ppo", "dqn"]),
        (("lr-0.01", "lr-0.1"), ["lr-0.01", "lr-0.1"]),
        (("a-run-whose-name-goes-on-and-on-and-on-x", "b"), ["a-run-whose-n…nd-on-and-on-x", "b"]),
        # what nobody named, or names alike, say nothing: the first of what differs
        (("CartPole-v1-20250131-235959-s0", "CartPole-v1-20250131-235958-s0"), None),
        (("run-s0", "run-seed1"), None),
    ],
)
def test_much_that_differs_is_called_by_the_runs_names(names: tuple[str, str], labels: list[str] | None) -> None:
    found = [group.label for group in group_runs([make_run(names[0], **LONG), make_run(names[1], compressor="int8")])]
    assert labels is None or found == labels
    assert len(set(found)) == 2 and max(map(len, found)) <= LONGEST_LABEL


def test_seeds_share_their_name() -> None:
    runs = [make_run(f"wide-{i}", seed=i, **LONG) for i in range(3)] + [make_run("other-s7", seed=7)]
    assert [group.label for group in group_runs(runs)] == ["wide", "other"]
    assert [group.label for group in group_runs([make_run("x"), make_run("y", compressor="int8")])] == ["fp32", "int8"]


@pytest.mark.parametrize("names", [("a", "a"), ("a", " ")])
def test_the_users_names_are_different_and_there(names: tuple[str, str]) -> None:
    groups = group_runs([make_run("x"), make_run("y", compressor="int8")])
    assert [group.label for group in relabelled(groups, ("full", "small"))] == ["full", "small"]
    with pytest.raises(ReportError, match="needs one of its own"):
        relabelled(groups, names)
