"""Curves of several seeds on one grid: interquartile mean and bootstrap band."""

from __future__ import annotations

import math
from collections.abc import Callable
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

    Starts where half of the seeds have a value, and is of those that have one at each point. A seed that has ended
    keeps its last value until the last one ends.
    """
    points = [known for run in group.runs if len((known := _known(axis(run), metric(run)))[0])]
    if not points:
        return None
    starts = sorted(float(x[0]) for x, _ in points)
    start, end = starts[(len(starts) - 1) // 2], max(float(x[-1]) for x, _ in points)
    grid = np.linspace(start, end, GRID_POINTS if end > start else 1)
    table = np.stack([np.interp(grid, x, y, left=math.nan) for x, y in points])
    present = np.isfinite(table).sum(axis=0)
    parts = []
    for count in np.unique(present):  # Seeds join from left to right, so each part has a fixed set of them.
        columns = table[:, present == count]
        rows = columns[np.isfinite(columns).all(axis=1)]
        centre = interquartile_mean(rows.T)
        parts.append((centre, *(_band(rows, confidence, generator) if len(rows) > 1 else (centre, centre))))
    centre, low, high = (np.concatenate(values) for values in zip(*parts, strict=True))
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
