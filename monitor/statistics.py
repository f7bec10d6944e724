"""Student's t intervals of means, of differences of means and of ratios; numpy only.

Means with Student's t are used throughout because runs have three to ten seeds, where percentile bootstraps are far too
narrow: that of three values covers the mean in 75 % of cases instead of 95 %.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accel.monitor.errors import StatisticsError

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A point estimate with its confidence interval.

    Attributes:
        estimate: the statistic of the sample.
        low, high: ends of the interval; NaN where there are too few values for one.
        confidence: probability that the method covers the true value, in (0, 1); NaN likewise.
        count: how many values the estimate rests on.
    """

    estimate: float
    low: float
    high: float
    confidence: float
    count: int

    @classmethod
    def point(cls, estimate: float, count: int) -> Self:
        """Of too few values for an interval."""
        return cls(estimate, math.nan, math.nan, math.nan, count)

    def __str__(self) -> str:
        return format(self, ".4g")

    def __format__(self, number: str) -> str:
        """``4.2 [3.9, 4.5]``, or the estimate alone where there is no interval."""
        number = number or ".4g"
        ends = f" [{self.low:{number}}, {self.high:{number}}]" if math.isfinite(self.low) else ""
        return f"{self.estimate:{number}}{ends}"


def mean_interval(values: ArrayLike, *, confidence: float = 0.95) -> Interval:
    """Mean with Student's t interval, mean ± t_{(1+confidence)/2, n-1} s / √n.

    Raises: StatisticsError: fewer than two values, or one that is not finite.
    """
    sample = _finite(values)
    _check_confidence(confidence)
    half = student_t_quantile((1 + confidence) / 2, sample.size - 1) * sample.std(ddof=1) / math.sqrt(sample.size)
    centre = float(sample.mean())
    return Interval(centre, centre - float(half), centre + float(half), confidence, sample.size)


def difference_of_means(x: ArrayLike, y: ArrayLike, *, confidence: float = 0.95) -> Interval:
    """Mean of ``x`` minus mean of ``y`` with Welch's t interval.

        x̄ − ȳ ± t_{(1+confidence)/2, ν} √(s²_x/n_x + s²_y/n_y),  ν by Welch and Satterthwaite, rounded down

    Raises: StatisticsError: fewer than two values on a side, or one that is not finite.
    Source: Welch 1947, doi:10.2307/2332510. Deviations: ν is rounded down, which widens the interval.
    """
    first, second = _finite(x), _finite(y)
    _check_confidence(confidence)
    centre, count = float(first.mean() - second.mean()), first.size + second.size
    parts = float(first.var(ddof=1)) / first.size, float(second.var(ddof=1)) / second.size
    total = sum(parts)
    if total == 0:
        return Interval(centre, centre, centre, confidence, count)
    degrees = total**2 / (parts[0] ** 2 / (first.size - 1) + parts[1] ** 2 / (second.size - 1))
    half = student_t_quantile((1 + confidence) / 2, max(1, math.floor(degrees + 1e-9))) * math.sqrt(total)
    return Interval(centre, centre - half, centre + half, confidence, count)


def ratio_of_means(numerator: ArrayLike, denominator: ArrayLike, *, confidence: float = 0.95) -> Interval:
    """Ratio of geometric means: ``difference_of_means`` of the logarithms, exponentiated.

    Raises: StatisticsError: fewer than two values on a side, or one that is not finite and positive.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y = np.log(np.asarray(numerator, np.float64)), np.log(np.asarray(denominator, np.float64))
    difference = difference_of_means(x, y, confidence=confidence)
    low, centre, high = (math.exp(v) for v in (difference.low, difference.estimate, difference.high))
    return Interval(centre, low, high, confidence, difference.count)


@functools.lru_cache(maxsize=1024)
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


def _finite(values: ArrayLike) -> FloatArray:
    sample = np.asarray(values, np.float64).ravel()
    if sample.size < 2:
        raise StatisticsError(f"{sample.size} values; an interval needs at least 2")
    if not np.isfinite(sample).all():
        raise StatisticsError(f"{int((~np.isfinite(sample)).sum())} of {sample.size} values are NaN or infinite")
    return sample


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise StatisticsError(f"confidence={confidence}; needs a probability strictly between 0 and 1")
