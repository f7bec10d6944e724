"""Speedups and the verdict: intervals that cover, a test that keeps its level and sees a loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from monitor.report.analysis import Choices, analyse
from monitor.report.comparison import difference_of_means, ratio_of_means, same_return, speedup, speedup_bound
from monitor.report.runs import Group, Run
from monitor.report.series import Series


def run(
    *,
    seed: int = 0,
    returns: Sequence[float] = (0.0, 50.0, 100.0),
    seconds: Sequence[float] = (1.0, 2.0, 3.0),
    **config: object,
) -> Run:
    columns = {
        "elapsed_s": np.array(seconds),
        "env_steps": 1000 * np.array(seconds),
        "return_mean": np.array(returns, np.float64),
        "episodes": np.full(len(seconds), 100.0),
    }
    summary = {"reason": "done", "wall_s": seconds[-1] + 2.0}
    values = {"env": "E", "compressor": "int8", "stop_window": 10, "seed": seed} | config
    return Run(f"s{seed}", "/r", values, {"cpu": "A"}, summary, Series(columns, len(seconds)))


def test_welchs_interval_is_its_definition() -> None:
    x, y = np.array([3.0, 5.0, 8.0]), np.array([1.0, 2.0, 4.0])
    found = difference_of_means(x, y, 0.9)
    standard_error = math.sqrt(x.var(ddof=1) / 3 + y.var(ddof=1) / 3)
    # ν = 3.3, rounded down to 3; t_{0.95, 3} = 2.35336 from the tables.
    assert found.estimate == pytest.approx(16 / 3 - 7 / 3)
    assert found.high - found.estimate == pytest.approx(2.35336 * standard_error, rel=1e-5)
    assert found.estimate - found.low == pytest.approx(found.high - found.estimate)


def test_two_seeds_have_no_interval() -> None:
    found = ratio_of_means([2.0, 2.1], [1.0, 1.1, 0.9])
    assert found.estimate == pytest.approx(2.05 / 0.995, rel=0.01)
    assert math.isnan(found.low)
    assert math.isnan(found.high)


@pytest.mark.parametrize("seeds", [3, 5])
def test_ratio_interval_covers_the_true_ratio(seeds: int) -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        x, y = rng.lognormal(math.log(2.0), 0.3, seeds), rng.lognormal(0.0, 0.2, seeds)
        interval = ratio_of_means(x, y)
        covered += interval.low <= 2.0 <= interval.high
    assert covered >= 0.925 * 400


def test_same_return_keeps_its_level_and_has_power() -> None:
    rng = np.random.default_rng(1)
    at_margin = equal = 0
    for _ in range(400):
        baseline = rng.normal(100.0, 2.0, 5)
        at_margin += same_return(baseline, rng.normal(95.0, 2.0, 5), 5.0).outcome in {"same", "higher"}
        equal += same_return(baseline, rng.normal(100.0, 2.0, 5), 5.0).outcome in {"same", "higher"}
    assert at_margin <= 0.075 * 400
    assert equal >= 0.9 * 400


@pytest.mark.parametrize(
    ("group", "outcome"),
    [
        ([99.0, 100.0, 101.0, 99.5, 100.5], "same"),
        ([120.0, 121.0, 119.0, 120.5, 119.5], "higher"),
        ([99.0, 100.0, 101.0, 100.0], "few"),
        ([120.0, 121.0, 119.0], "few"),
        ([50.0, 51.0, 49.0], "lower"),
        ([60.0, 100.0, 140.0], "undecided"),
        ([100.0, 100.0], "untested"),
        ([100.0], "untested"),
    ],
)
def test_outcomes(group: list[float], outcome: str) -> None:
    verdict = same_return([99.5, 100.0, 100.5, 100.0, 99.8], group, 5.0)
    assert verdict.outcome == outcome
    assert outcome == "untested" or "margin 5, one-sided Welch test at 5%" in verdict.text
    assert verdict.text.startswith(f"{outcome} return") == (outcome in {"same", "higher", "lower"})


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


def test_seeds_that_never_got_there_leave_a_bound_and_no_speedup() -> None:
    fast = Group("fast", (run(seed=0), run(seed=1, returns=(0.0, 1.0, 2.0), seconds=(1.0, 2.0, 8.0))))
    slow = Group("slow", (run(seconds=(2.0, 4.0, 6.0)),))
    assert speedup(slow, fast, "time_to_threshold_s", 50.0) is None
    found = speedup_bound(slow, fast, "time_to_threshold_s", 50.0)
    assert found is not None
    assert (found.side, found.failed) == ("at most", 1)
    assert found.ratio == pytest.approx(4.0 / math.sqrt(2.0 * 8.0))
    other = speedup_bound(fast, slow, "steps_to_threshold", 50.0)
    assert other is not None
    assert other.side == "at least"
    assert other.ratio == pytest.approx(math.sqrt(2.0 * 8.0) / 4.0)
    assert speedup_bound(slow, fast, "time_to_threshold_s", 1000.0) is None
    assert speedup_bound(slow, slow, "time_to_threshold_s", 50.0) is None
    throughput = speedup(slow, fast, "env_steps_per_s", 50.0)
    assert throughput is not None
    assert throughput.ratio.estimate == pytest.approx(1.0)


def test_runs_that_all_stopped_at_their_target_are_the_same_by_construction() -> None:
    stop = {"stop_at_return": 90.0}
    ours = [run(seed=s, compressor="fp32", **stop) for s in range(5)]
    theirs = [run(seed=s, seconds=(1.0, 1.5, 2.0), **stop) for s in range(5)]
    analysis = analyse([*ours, *theirs], Choices(), ours[0])
    (comparison,) = analysis.comparisons
    assert comparison.verdict.outcome == "same"
    assert "by construction" in comparison.verdict.text
    assert analysis.threshold == 90.0
    assert "training_s" not in comparison.speedups
    assert "wall_s" in comparison.speedups
    main = comparison.main
    assert main is not None
    assert main.quantity == "time_to_threshold_s"
    (comparison,) = analyse([*ours, *theirs[:4]], Choices(), ours[0]).comparisons
    assert comparison.verdict.outcome == "few"
    assert "same" not in comparison.verdict.text
    theirs[1] = run(seed=1, returns=(0.0, 10.0, 20.0), **stop)
    (comparison,) = analyse([*ours, *theirs], Choices(), ours[0]).comparisons
    assert comparison.verdict.outcome != "same"
    assert not {"time_to_threshold_s", "steps_to_threshold", "training_s", "wall_s"} & set(comparison.speedups)
    assert set(comparison.bounds) == {"time_to_threshold_s", "steps_to_threshold"}


def test_runs_with_several_targets_are_the_same_by_test_only() -> None:
    ours = [run(seed=s, compressor="fp32", stop_at_return=90.0) for s in range(5)]
    theirs = [run(seed=s, stop_at_return=90.0 if s == 0 else 95.0) for s in range(5)]
    choices = Choices(group_by=("compressor",), force=True)
    analysis = analyse([*ours, *theirs], choices, ours[0])
    (comparison,) = analysis.comparisons
    assert "by construction" not in comparison.verdict.text and "Welch" in comparison.verdict.text
    assert "90% of the way" in analysis.threshold_source
    assert not {"training_s", "wall_s"} & set(comparison.speedups)


def test_the_default_threshold_is_most_of_the_way_up() -> None:
    analysis = analyse([run(returns=(-100.0, 0.0, 0.0))], Choices())
    assert analysis.threshold == pytest.approx(-10.0)
