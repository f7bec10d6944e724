"""Statistics against closed forms, tables and coverage."""

from __future__ import annotations

import math
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.errors import StatisticsError
from monitor.statistics import (
    bootstrap_interval,
    interquartile_mean,
    mean,
    mean_interval,
    median,
    quantiles,
    student_t_quantile,
    wilson_interval,
)


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=40))
def test_interquartile_mean_is_the_mean_of_the_sorted_middle(values: list[int]) -> None:
    cut = len(values) // 4
    middle = sorted(values)[cut : len(values) - cut]
    expected = float(Fraction(sum(middle), len(middle)))
    assert float(interquartile_mean(np.array(values, float))) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_interquartile_mean_ignores_outliers_and_keeps_leading_axes() -> None:
    assert float(interquartile_mean(np.array([-1e9, 1.0, 2.0, 3.0, 1e9]))) == 2.0
    table = np.array([[0.0, 1.0, 2.0, 9.0], [4.0, 4.0, 8.0, 100.0]])
    assert interquartile_mean(table).tolist() == [1.5, 6.0]


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


def test_student_tends_to_the_normal() -> None:
    assert student_t_quantile(0.975, 1_000_000) == pytest.approx(NormalDist().inv_cdf(0.975), rel=1e-5)
    assert student_t_quantile(0.5, 3) == pytest.approx(0.0, abs=1e-12)


def test_mean_interval_of_a_known_sample() -> None:
    interval = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.7764451051977987 * math.sqrt(2.5) / math.sqrt(5)
    assert interval.estimate == 3.0
    assert interval.low == pytest.approx(3.0 - half, rel=1e-9)
    assert interval.high == pytest.approx(3.0 + half, rel=1e-9)
    assert interval.count == 5
    assert mean_interval([7.0, 7.0]).low == mean_interval([7.0, 7.0]).high == 7.0


def test_mean_interval_covers_as_often_as_it_says() -> None:
    generator = np.random.default_rng(5)
    intervals = [mean_interval(generator.normal(3.0, 2.0, 5), confidence=0.9) for _ in range(2000)]
    covered = sum(i.low <= 3.0 <= i.high for i in intervals) / 2000
    assert abs(covered - 0.9) < 4 * math.sqrt(0.9 * 0.1 / 2000)


@pytest.mark.parametrize(("successes", "trials"), [(0, 1), (0, 10), (1, 10), (5, 10), (10, 10), (81, 263)])
def test_wilson_ends_solve_the_score_equation(successes: int, trials: int) -> None:
    interval = wilson_interval(successes, trials)
    z = NormalDist().inv_cdf(0.975)
    share = successes / trials
    assert 0.0 <= interval.low <= share <= interval.high <= 1.0
    for end in (interval.low, interval.high):
        if 0 < end < 1:
            assert abs(share - end) == pytest.approx(z * math.sqrt(end * (1 - end) / trials), rel=1e-9)


def test_wilson_matches_a_published_example() -> None:
    # Newcombe 1998, doi:10.1002/(SICI)1097-0258(19980430)17:8<857::AID-SIM777>3.0.CO;2-E, table I, method 3.
    interval = wilson_interval(81, 263)
    assert (round(interval.low, 4), round(interval.high, 4)) == (0.2553, 0.3662)


def test_bootstrap_of_the_mean_agrees_with_its_standard_error() -> None:
    sample = np.random.default_rng(1).normal(10.0, 3.0, 200)
    interval = bootstrap_interval(sample, generator=np.random.default_rng(2), statistic=mean, resamples=8000)
    error = sample.std() / math.sqrt(200)
    assert interval.estimate == pytest.approx(sample.mean())
    assert interval.low == pytest.approx(sample.mean() - 1.96 * error, abs=0.12 * error)
    assert interval.high == pytest.approx(sample.mean() + 1.96 * error, abs=0.12 * error)


def test_bootstrap_stratifies_by_task() -> None:
    """Tasks far apart, runs equal: stratified resampling sees no spread; resampling of all values would."""
    table = np.tile([0.0, 100.0, 1000.0], (5, 1))
    interval = bootstrap_interval(table, generator=np.random.default_rng(0), statistic=mean)
    assert interval.low == interval.high == interval.estimate == pytest.approx(1100 / 3)
    pooled = bootstrap_interval(table.ravel(), generator=np.random.default_rng(0), statistic=mean)
    assert pooled.high - pooled.low > 100


def test_bootstrap_is_reproducible_and_independent_of_its_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = np.arange(12.0)
    first = bootstrap_interval(sample, generator=np.random.default_rng(3), statistic=median)
    assert first == bootstrap_interval(sample, generator=np.random.default_rng(3), statistic=median)
    monkeypatch.setattr("monitor.statistics._BOOTSTRAP_CHUNK_VALUES", 100)
    assert first == bootstrap_interval(sample, generator=np.random.default_rng(3), statistic=median)
    assert first != bootstrap_interval(sample, generator=np.random.default_rng(4), statistic=median, resamples=50)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, math.nan], [1.0, math.inf]])
def test_useless_samples_are_refused(values: list[float]) -> None:
    with pytest.raises(StatisticsError):
        mean_interval(values)
    with pytest.raises(StatisticsError):
        bootstrap_interval(values, generator=np.random.default_rng(0))


def test_other_bad_input_is_refused() -> None:
    with pytest.raises(StatisticsError, match="confidence"):
        mean_interval([1.0, 2.0], confidence=1.0)
    with pytest.raises(StatisticsError, match="successes"):
        wilson_interval(3, 2)
    with pytest.raises(StatisticsError, match="shape"):
        bootstrap_interval(np.zeros((2, 2, 2)), generator=np.random.default_rng(0))
    with pytest.raises(StatisticsError, match="degrees"):
        student_t_quantile(0.9, 0)
    with pytest.raises(StatisticsError, match="at least 1"):
        quantiles([])


def test_quantiles_and_text() -> None:
    assert quantiles([4.0, 1.0, 3.0, 2.0, 5.0]) == (2.0, 3.0, 4.0)
    assert str(mean_interval([7.0, 7.0])) == "7 [7, 7]"
