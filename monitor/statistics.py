"""Statistics of evaluation reports: interquartile mean, bootstrap, Student's t and Wilson intervals. numpy only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monitor.errors import StatisticsError

FloatArray = NDArray[np.float64]
Statistic = Callable[[FloatArray], FloatArray]
_BOOTSTRAP_CHUNK_VALUES = 1_000_000


@dataclass(frozen=True)
class Interval:
    """A point estimate with its confidence interval.

    Attributes:
        estimate: the statistic of the sample.
        low: lower end of the interval.
        high: upper end of the interval.
        confidence: probability that the method covers the true value, in (0, 1).
        count: how many values the estimate rests on.
    """

    estimate: float
    low: float
    high: float
    confidence: float
    count: int

    def __str__(self) -> str:
        return f"{self.estimate:.4g} [{self.low:.4g}, {self.high:.4g}]"


def mean(values: FloatArray) -> FloatArray:
    """Mean over the last axis."""
    return np.asarray(values.mean(axis=-1))


def median(values: FloatArray) -> FloatArray:
    """Median over the last axis."""
    return np.asarray(np.median(values, axis=-1))


def interquartile_mean(values: FloatArray) -> FloatArray:
    """Mean of the middle half over the last axis [..., n] -> [...].

    floor(n / 4) values are left out at each end, as in rliable, so n < 4 gives the plain mean.

    Source: Agarwal et al. 2021, arXiv:2108.13264, section 4.3. Deviations: none.
    """
    cut = values.shape[-1] // 4
    kept = np.partition(values, (cut, values.shape[-1] - cut - 1), axis=-1)[..., cut : values.shape[-1] - cut]
    return np.asarray(kept.mean(axis=-1))


def quantiles(values: ArrayLike, probabilities: Sequence[float] = (0.25, 0.5, 0.75)) -> tuple[float, ...]:
    """Linearly interpolated quantiles of all values; raises StatisticsError on an empty or non-finite sample."""
    sample = _finite(values, minimum=1).ravel()
    return tuple(float(q) for q in np.quantile(sample, probabilities))


def mean_interval(values: ArrayLike, *, confidence: float = 0.95) -> Interval:
    """Mean with Student's t interval, mean ± t_{(1+confidence)/2, n-1} s / √n; for at least two values.

    Raises: StatisticsError on fewer than two values or a non-finite one.
    """
    sample = _finite(values, minimum=2).ravel()
    _check_confidence(confidence)
    half = student_t_quantile((1 + confidence) / 2, sample.size - 1) * sample.std(ddof=1) / math.sqrt(sample.size)
    centre = float(sample.mean())
    return Interval(centre, centre - float(half), centre + float(half), confidence, sample.size)


def wilson_interval(successes: int, trials: int, *, confidence: float = 0.95) -> Interval:
    """Share of successes with Wilson's score interval, which stays inside [0, 1] and is sound for few trials.

        (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n)

    Raises: StatisticsError unless 0 <= successes <= trials and trials > 0.
    Source: Wilson 1927, doi:10.2307/2276774.
    """
    _check_confidence(confidence)
    if trials <= 0 or not 0 <= successes <= trials:
        raise StatisticsError(f"{successes} successes of {trials} trials; needs 0 <= successes <= trials, trials > 0")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / trials
    scale = 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / scale
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / scale
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == trials else centre + half
    return Interval(share, low, high, confidence, trials)


def bootstrap_interval(
    values: ArrayLike,
    *,
    generator: np.random.Generator,
    statistic: Statistic = interquartile_mean,
    confidence: float = 0.95,
    resamples: int = 2000,
) -> Interval:
    """A statistic with its percentile bootstrap interval, stratified by task.

    Args:
        values: [runs] or [runs, tasks]; runs are drawn with replacement, for each task on its own.
        generator: the randomness; the same state gives the same interval.
        statistic: reduces the last axis of [R, runs * tasks] to [R]; ``interquartile_mean``, ``mean``, ``median``.
        confidence: in (0, 1).
        resamples: how many bootstrap samples.
    Raises:
        StatisticsError: fewer than two runs, a non-finite value, or not one or two dimensions.
    Source:
        Agarwal et al. 2021, arXiv:2108.13264, section 4.1; Efron 1979. Deviations: none.
    """
    sample = _finite(values, minimum=2)
    _check_confidence(confidence)
    if resamples < 1:
        raise StatisticsError(f"resamples={resamples}; needs at least 1")
    if sample.ndim not in (1, 2) or sample.shape[0] < 2:
        raise StatisticsError(f"values has shape {sample.shape}; needs [runs] or [runs, tasks] with runs >= 2")
    runs, tasks = sample.shape if sample.ndim == 2 else (sample.shape[0], 1)
    table = sample.reshape(runs, tasks)
    chunk = max(1, _BOOTSTRAP_CHUNK_VALUES // table.size)
    estimates = np.empty(resamples)
    for start in range(0, resamples, chunk):
        count = min(chunk, resamples - start)
        rows = generator.integers(runs, size=(count, runs, tasks))
        drawn = table[rows, np.arange(tasks)]
        estimates[start : start + count] = statistic(drawn.reshape(count, -1))
    low, high = np.quantile(estimates, ((1 - confidence) / 2, (1 + confidence) / 2))
    estimate = float(statistic(table.reshape(1, -1))[0])
    return Interval(estimate, float(low), float(high), confidence, table.size)


def student_t_quantile(probability: float, degrees: int) -> float:
    """Inverse of Student's t distribution function for integer degrees of freedom, to about 1e-12.

    Bisects the closed form of Abramowitz and Stegun 1964, 26.7.3 and 26.7.4, in θ = atan(t / √degrees).
    Raises: StatisticsError unless 0 < probability < 1 and degrees >= 1.
    """
    if not 0 < probability < 1 or degrees < 1:
        raise StatisticsError(f"probability={probability}, degrees={degrees}; needs 0 < probability < 1, degrees >= 1")
    if probability < 0.5:
        return -student_t_quantile(1 - probability, degrees)
    central, low, high = 2 * probability - 1, 0.0, math.pi / 2
    while True:
        theta = (low + high) / 2
        if theta in (low, high):
            return math.sqrt(degrees) * math.tan(theta)
        if _student_t_central(theta, degrees) < central:
            low = theta
        else:
            high = theta


def _student_t_central(theta: float, degrees: int) -> float:
    """A(t | ν) = P(|T| <= t) with t = √ν tan θ: a finite sum of powers of cos²θ."""
    cosine = math.cos(theta)
    odd = degrees % 2 == 1
    steps = np.arange(1, (degrees - 1) // 2 if odd else degrees // 2)
    ratios = 2 * steps / (2 * steps + 1) if odd else (2 * steps - 1) / (2 * steps)
    series = 1.0 + float(np.cumprod(ratios * cosine * cosine).sum())
    if not odd:
        return math.sin(theta) * series
    tail = math.sin(theta) * cosine * series if degrees > 1 else 0.0
    return 2 / math.pi * (theta + tail)


def _finite(values: ArrayLike, *, minimum: int) -> FloatArray:
    sample = np.asarray(values, np.float64)
    if sample.size < minimum:
        raise StatisticsError(f"{sample.size} values; this statistic needs at least {minimum}")
    if not np.isfinite(sample).all():
        raise StatisticsError(f"{int((~np.isfinite(sample)).sum())} of {sample.size} values are NaN or infinite")
    return sample


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise StatisticsError(f"confidence={confidence}; needs a probability strictly between 0 and 1")
