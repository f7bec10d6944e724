"""Curves of several seeds on one grid: interquartile mean and bootstrap band."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from monitor.report.runs import Group, Run
from monitor.report.series import Floats
from monitor.statistics import interquartile_mean

GRID_POINTS = 200
RESAMPLES = 1000
Axis = Callable[[Run], Floats]


@dataclass(frozen=True, eq=False)
class Curve:
    """A group's metric along an axis.

    Attributes:
        x: [g] grid, seconds or environment steps.
        centre: [g] interquartile mean over seeds.
        low, high: [g] ends of its percentile bootstrap interval; equal to ``centre`` for a single seed.
        seeds: each seed's own ([m], [m]) points.
    """

    x: Floats
    centre: Floats
    low: Floats
    high: Floats
    seeds: tuple[tuple[Floats, Floats], ...]


def seconds(run: Run) -> Floats:
    """[n] the run's training clock."""
    return run.elapsed_s


def steps(run: Run) -> Floats:
    """[n] the run's environment steps."""
    return run.env_steps


def column(name: str) -> Axis:
    """The metric of that name."""
    return lambda run: run.series.column(name)


def aggregate(
    group: Group, axis: Axis, metric: Axis, *, confidence: float = 0.95, generator: np.random.Generator
) -> Curve | None:
    """One group's curve; None when no run has the metric.

    Starts where every seed has a value. A seed that has ended keeps its last value until the last one ends.
    """
    points = [known for run in group.runs if len((known := _known(axis(run), metric(run)))[0])]
    if not points:
        return None
    start, end = max(float(x[0]) for x, _ in points), max(float(x[-1]) for x, _ in points)
    grid = np.linspace(start, max(end, start), GRID_POINTS if end > start else 1)
    table = np.stack([np.interp(grid, x, y) for x, y in points])
    centre = interquartile_mean(table.T)
    low, high = _band(table, confidence, generator) if len(points) > 1 else (centre, centre)
    return Curve(grid, centre, low, high, tuple(thin(x, y) for x, y in points))


def thin(x: Floats, y: Floats, points: int = 400) -> tuple[Floats, Floats]:
    """At most ``points`` of a curve's points, first and last among them."""
    if len(x) <= points:
        return x, y
    chosen = np.unique(np.linspace(0, len(x) - 1, points).round().astype(np.int64))
    return x[chosen], y[chosen]


def _known(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    known = np.isfinite(x) & np.isfinite(y)
    return x[known], y[known]


def _band(table: Floats, confidence: float, generator: np.random.Generator) -> tuple[Floats, Floats]:
    """[2][g] percentile bootstrap over the seeds of [n, g]."""
    draws = generator.integers(len(table), size=(RESAMPLES, len(table)))
    estimates = np.stack([interquartile_mean(table[rows].T) for rows in draws])
    low, high = np.quantile(estimates, ((1 - confidence) / 2, (1 + confidence) / 2), axis=0)
    return low, high


def curve_range(curves: Sequence[Curve | None]) -> float:
    """Largest minus smallest centre over all curves; NaN when there is none."""
    values = np.concatenate([curve.centre for curve in curves if curve is not None] or [np.array([math.nan])])
    return float(np.max(values) - np.min(values))
