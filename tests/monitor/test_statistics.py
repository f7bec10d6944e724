"""Intervals against closed forms and tables, and their coverage by simulation from fixed seeds."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from accel.monitor.errors import StatisticsError
from accel.monitor.statistics import (
    FloatArray,
    Interval,
    difference_of_means,
    mean_interval,
    ratio_of_means,
    student_t_quantile,
)
from accel.reports.analysis import Choices

TRIALS = 1000


def coverage(draw: Callable[[np.random.Generator], Interval], truth: float) -> float:
    """Share of intervals that cover the truth."""
    generator = np.random.default_rng(5)
    intervals = [draw(generator) for _ in range(TRIALS)]
    return sum(interval.low <= truth <= interval.high for interval in intervals) / TRIALS


def is_nominal(covered: float, nominal: float) -> bool:
    """Within four standard errors of the nominal coverage."""
    return abs(covered - nominal) < 4 * math.sqrt(nominal * (1 - nominal) / TRIALS)


def percentile_bootstrap(sample: FloatArray, generator: np.random.Generator) -> Interval:
    """The wrong method for a few seeds."""
    means = generator.choice(sample, (400, sample.size)).mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval(float(sample.mean()), float(low), float(high), 0.95, sample.size)


@pytest.mark.parametrize(
    ("probability", "degrees", "expected"),
    [
        (0.975, 1, math.tan(0.475 * math.pi)),
        (0.975, 2, 0.95 * math.sqrt(2 / (1 - 0.95**2))),
        (0.975, 4, 2.7764451051977987),
        (0.975, 9, 2.2621571627982046),
        (0.995, 30, 2.7499956535672253),
        (0.95, 7, 1.8945786050900074),
        (0.9, 120, 1.2886462336563779),
    ],
)
def test_student_quantiles_match_closed_forms_and_tables(probability: float, degrees: int, expected: float) -> None:
    assert student_t_quantile(probability, degrees) == pytest.approx(expected, rel=1e-9)
    assert student_t_quantile(1 - probability, degrees) == pytest.approx(-expected, rel=1e-7)


def test_mean_interval_of_a_known_sample() -> None:
    interval = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.7764451051977987 * math.sqrt(2.5) / math.sqrt(5)
    assert interval.estimate == 3.0
    assert interval.low == pytest.approx(3.0 - half, rel=1e-9)
    assert interval.high == pytest.approx(3.0 + half, rel=1e-9)
    assert interval.count == 5
    assert mean_interval([7.0, 7.0]).low == mean_interval([7.0, 7.0]).high == 7.0


DRAWS: dict[str, Callable[[np.random.Generator, int], Interval]] = {
    "mean": lambda g, n: mean_interval(g.normal(4.0, 2.0, n)),
    "difference": lambda g, n: difference_of_means(g.normal(5.0, 3.0, n), g.normal(1.0, 1.0, n)),
    "ratio": lambda g, n: ratio_of_means(g.lognormal(math.log(4.0), 0.3, n), g.lognormal(0.0, 0.2, n)),
}


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_an_interval_covers_as_often_as_it_says(kind: str, seeds: int) -> None:
    covered = coverage(lambda g: DRAWS[kind](g, seeds), 4.0)
    # Rounding the degrees of freedom down makes those of two samples wider than nominal, never narrower.
    assert is_nominal(covered, 0.95) or (kind != "mean" and 0.95 <= covered <= 0.985)


def test_a_bootstrap_of_three_seeds_would_be_found_out() -> None:
    covered = coverage(lambda g: percentile_bootstrap(g.normal(3.0, 2.0, 3), g), 3.0)
    assert covered < 0.8 and not is_nominal(covered, 0.95)


def test_welchs_interval_is_its_definition() -> None:
    x, y = np.array([3.0, 5.0, 8.0]), np.array([1.0, 2.0, 4.0])
    found = difference_of_means(x, y, confidence=0.9)
    standard_error = math.sqrt(x.var(ddof=1) / 3 + y.var(ddof=1) / 3)
    # ν = 3.3, rounded down to 3; t_{0.95, 3} = 2.35336 from the tables.
    assert found.estimate == pytest.approx(16 / 3 - 7 / 3)
    assert found.high - found.estimate == pytest.approx(2.35336 * standard_error, rel=1e-5)
    assert found.estimate - found.low == pytest.approx(found.high - found.estimate)
    assert difference_of_means([7.0, 7.0], [5.0, 5.0]).low == 2.0


@pytest.mark.parametrize(("corrected", "holds"), [(True, True), (False, False)])
def test_several_comparisons_hold_together_once_corrected(corrected: bool, holds: bool) -> None:
    generator = np.random.default_rng(7)
    confidence = Choices().corrected(4 if corrected else 1).confidence
    wrong = 0
    for _ in range(TRIALS):
        baseline = generator.normal(0.0, 1.0, 10)
        found = [difference_of_means(generator.normal(0.0, 1.0, 10), baseline, confidence=confidence) for _ in range(4)]
        wrong += any(not interval.low <= 0.0 <= interval.high for interval in found)
    assert (wrong / TRIALS <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / TRIALS)) is holds


@pytest.mark.parametrize("values", [[], [1.0], [1.0, math.nan], [1.0, math.inf]])
def test_useless_samples_are_refused(values: list[float]) -> None:
    with pytest.raises(StatisticsError):
        mean_interval(values)
    with pytest.raises(StatisticsError):
        difference_of_means([1.0, 2.0], values)


def test_other_bad_input_is_refused() -> None:
    with pytest.raises(StatisticsError, match="confidence"):
        mean_interval([1.0, 2.0], confidence=1.0)
    with pytest.raises(StatisticsError, match="degrees"):
        student_t_quantile(0.9, 0)
    with pytest.raises(StatisticsError, match="NaN or infinite"):
        ratio_of_means([1.0, 0.0], [1.0, 2.0])


def test_an_interval_as_text() -> None:
    assert str(mean_interval([7.0, 7.0])) == "7 [7, 7]"
