"""Scores of many runs put together as rliable does: interquartile mean, stratified bootstrap, performance profile.

Source: Agarwal et al. 2021, arXiv 2108.13264. Their definitions, in numpy: a task is an environment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from accel.monitor.statistics import Interval
from accel.reports.series import Floats

REPEATS = 2000
"""Resamples of a bootstrap: enough for the second digit of an interval's ends."""


def interquartile_mean(tasks: Sequence[ArrayLike]) -> float:
    """Mean of all tasks' scores that are left when a quarter of them is cut off at either end, rounded down."""
    ordered = np.sort(np.concatenate([np.asarray(task, np.float64) for task in tasks]))
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def stratified_bootstrap(
    strata: Sequence[ArrayLike],
    statistic: Callable[[Sequence[Floats]], float] = interquartile_mean,
    *,
    confidence: float = 0.95,
    repeats: int = REPEATS,
) -> Interval:
    """A statistic with its percentile interval: every stratum's scores are drawn again from that stratum's.

    Args:
        strata: the scores of each task's runs, which may differ in their number; of a comparison both sides' tasks.
        statistic: of the drawn strata, in their order.
    """
    scores = [np.asarray(stratum, np.float64) for stratum in strata]
    draw = np.random.default_rng(0).integers
    samples = [statistic([side[draw(len(side), size=len(side))] for side in scores]) for _ in range(repeats)]
    low, high = np.quantile(samples, ((1 - confidence) / 2, (1 + confidence) / 2))
    return Interval(statistic(scores), float(low), float(high), confidence, sum(map(len, scores)))


def performance_profile(tasks: Sequence[ArrayLike], thresholds: ArrayLike) -> Floats:
    """[t]: the share of runs that score above each of [t] thresholds, the mean over tasks."""
    above = np.asarray(thresholds, np.float64)
    shares = [(np.asarray(task, np.float64)[:, None] > above).mean(axis=0) for task in tasks]
    return np.asarray(np.mean(shares, axis=0))
