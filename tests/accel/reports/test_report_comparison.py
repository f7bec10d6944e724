"""Speedups and returns: what is claimed, from how many seeds, and that the test keeps its level and sees a loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from accel.reports.analysis import Choices, analyse
from accel.reports.comparison import compare_returns, speedup
from accel.reports.runs import Group, Run
from tests.accel.reports.recorded_run import run_record


def run(
    *,
    seed: int = 0,
    returns: Sequence[float] = (0.0, 50.0, 100.0),
    seconds: Sequence[float] = (1.0, 2.0, 3.0),
    **config: object,
) -> Run:
    columns = {
        "elapsed_s": seconds,
        "env_steps": 1000 * np.array(seconds),
        "return_mean": returns,
        "episodes": np.full(len(seconds), 100.0),
    }
    summary = {"reason": "done", "wall_s": seconds[-1] + 2.0}
    return run_record(columns, summary=summary, **{"stop_window": 10, "seed": seed} | config)


def test_fewer_than_five_seeds_have_an_estimate_and_no_interval() -> None:
    times = (2.0, 2.1, 1.9, 2.0, 2.2)
    slow = Group("slow", tuple(run(seed=s, seconds=(1.0, 2.0, 2 * t)) for s, t in enumerate(times)))
    fast = Group("fast", tuple(run(seed=s, seconds=(1.0, 1.5, t)) for s, t in enumerate(times)))
    enough = speedup(slow, fast, "training_s", math.nan)
    few = speedup(slow, Group("fast", fast.runs[:4]), "training_s", math.nan)
    assert enough.is_shown and enough.has_interval and enough.ratio.estimate == pytest.approx(2.0)
    assert not few.is_shown and not few.has_interval and math.isnan(few.ratio.low)


@pytest.mark.parametrize(
    ("group", "outcome", "said"),
    [
        ([99.0, 100.0, 101.0, 99.5, 100.5], "no_loss", "no loss of return: difference"),
        ([120.0, 121.0, 119.0, 120.5, 119.5], "gain", "higher return: difference"),
        ([50.0, 51.0, 49.0, 50.0, 50.5], "loss", "lower return: difference"),
        ([60.0, 100.0, 140.0, 80.0, 120.0], "undecided", "a loss of return is neither shown nor excluded: difference"),
        ([99.0, 100.0, 101.0, 100.0], "too_few_seeds", "too few seeds to compare: 4 of at least 5"),
        ([50.0, 51.0, 49.0], "too_few_seeds", "too few seeds to compare: 3 of at least 5"),
    ],
)
def test_outcomes(group: list[float], outcome: str, said: str) -> None:
    verdict = compare_returns([99.5, 100.0, 100.5, 100.0, 99.8], group, 5.0)
    assert verdict.outcome == outcome
    assert verdict.text.startswith(said)
    assert outcome == "too_few_seeds" or "margin 5" in verdict.text


def test_several_configurations_get_wider_intervals() -> None:
    def made(scheme: str) -> list[Run]:
        return [run(seed=s, compressor=scheme, seconds=(1.0, 2.0, 3.0 + 0.1 * s)) for s in range(5)]

    ours, others = made("fp32"), [made(scheme) for scheme in ("int8", "fp16", "int4")]
    (alone,) = analyse([*ours, *others[0]], Choices(), ours[0]).comparisons
    together = analyse([*ours, *(r for runs in others for r in runs)], Choices(), ours[0]).comparisons
    width, wider = (c.speedups["training_s"].ratio for c in (alone, together[0]))
    assert wider.low < width.low < 1.0 < width.high < wider.high
    assert wider.confidence == pytest.approx(1 - 0.05 / 3)
    assert together[0].verdict.difference.confidence == pytest.approx(1 - 0.1 / 3)


def test_the_threshold_is_crossed_between_two_records() -> None:
    found = run(returns=(math.nan, 40.0, 60.0), seconds=(1.0, 2.0, 4.0)).crossing(50.0)
    assert found == (3.0, 3000.0)
    assert run(returns=(60.0, 70.0, 80.0)).crossing(50.0) == (1.0, 1000.0)
    assert run().crossing(101.0) is None
    assert run(stop_at_return=75.0).crossing(75.0) == (3.0, 3000.0)


def test_returns_of_too_few_episodes_cross_nothing() -> None:
    lucky = run(returns=(90.0, 20.0, 100.0))
    lucky.series.columns["episodes"][0] = 5.0
    assert lucky.crossing(80.0) == pytest.approx((2.75, 2750.0))


def test_seeds_that_never_got_there_leave_a_bound() -> None:
    fast = Group("fast", (run(seed=0), run(seed=1, returns=(0.0, 1.0, 2.0), seconds=(1.0, 2.0, 8.0))))
    slow = Group("slow", (run(seconds=(2.0, 4.0, 6.0)),))
    found = speedup(slow, fast, "time_to_threshold_s", 50.0)
    other = speedup(fast, slow, "steps_to_threshold", 50.0)
    assert (found.bound, found.missing, found.has_interval) == ("at most", 1, False)
    assert found.ratio.estimate == pytest.approx(4.0 / math.sqrt(2.0 * 8.0))
    assert other.bound == "at least" and other.ratio.estimate == pytest.approx(math.sqrt(2.0 * 8.0) / 4.0)
    assert speedup(slow, fast, "time_to_threshold_s", 1000.0) is None
    for quantity in ("time_to_threshold_s", "env_steps_per_s"):
        exact = speedup(slow, slow, quantity, 50.0)
        assert exact is not None and not exact.bound and exact.ratio.estimate == pytest.approx(1.0)


def test_runs_that_all_stopped_at_their_target_are_the_same_by_construction() -> None:
    stop = {"stop_at_return": 90.0}
    ours = [run(seed=s, compressor="fp32", **stop) for s in range(5)]
    theirs = [run(seed=s, seconds=(1.0, 1.5, 2.0), **stop) for s in range(5)]
    analysis = analyse([*ours, *theirs], Choices(), ours[0])
    (comparison,) = analysis.comparisons
    assert comparison.verdict.outcome == "no_loss"
    assert "by construction" in comparison.verdict.text
    assert analysis.threshold.value == 90.0
    assert "training_s" not in comparison.speedups
    assert "wall_s" in comparison.speedups
    main = comparison.main
    assert main.quantity == "time_to_threshold_s"
    (comparison,) = analyse([*ours, *theirs[:4]], Choices(), ours[0]).comparisons
    assert comparison.verdict.outcome == "too_few_seeds"
    theirs[1] = run(seed=1, returns=(0.0, 10.0, 20.0), **stop)
    (comparison,) = analyse([*ours, *theirs], Choices(), ours[0]).comparisons
    assert comparison.verdict.outcome != "no_loss"
    assert not {"training_s", "wall_s"} & set(comparison.speedups)
    assert {comparison.speedups[name].bound for name in ("time_to_threshold_s", "steps_to_threshold")} == {"at most"}


def test_runs_with_several_targets_are_the_same_by_test_only() -> None:
    ours = [run(seed=s, compressor="fp32", stop_at_return=90.0) for s in range(5)]
    theirs = [run(seed=s, stop_at_return=90.0 if s == 0 else 95.0) for s in range(5)]
    choices = Choices(group_by=("compressor",), force=True)
    analysis = analyse([*ours, *theirs], choices, ours[0])
    (comparison,) = analysis.comparisons
    assert "by construction" not in comparison.verdict.text and "margin" in comparison.verdict.text
    assert "90% of the way" in analysis.threshold.source
    assert not {"training_s", "wall_s"} & set(comparison.speedups)
