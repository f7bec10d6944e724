"""Curves of several seeds on one grid: mean and pointwise Student's t band."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from accel.monitor.statistics import student_t_quantile
from accel.reports.runs import Group
from accel.reports.series import Floats

GRID_POINTS = 200
LEAST_SEEDS = 3
"""With fewer a mean has no interval: Student's t for two values is nine standard deviations wide on either side."""


@dataclass(frozen=True, eq=False)
class Curve:
    """A group's metric along an axis.

    Attributes:
        x: [g] grid, seconds or environment steps.
        centre: [g] mean over seeds.
        low, high: [g] ends of its Student's t interval; equal to ``centre`` below ``LEAST_SEEDS``.
        seeds: each seed's own ([m], [m]) points.
    """

    x: Floats
    centre: Floats
    low: Floats
    high: Floats
    seeds: tuple[tuple[Floats, Floats], ...]


def aggregate(group: Group, axis: str, metric: str, *, confidence: float = 0.95) -> Curve | None:
    """One group's curve of a metric along another, such as ``env_steps``; None when no run has the metric.

    Starts where half of the seeds have a value, and is of those that have one at each point. A seed that has ended
    keeps its last value until the last one ends.
    """
    points = [known for run in group.runs if len((known := _known(run.column(axis), run.column(metric)))[0])]
    if not points:
        return None
    starts = sorted(float(x[0]) for x, _ in points)
    start, end = starts[(len(starts) - 1) // 2], max(float(x[-1]) for x, _ in points)
    grid = np.linspace(start, end, GRID_POINTS if end > start else 1)
    table = np.stack([np.interp(grid, x, y, left=math.nan) for x, y in points])
    present = np.isfinite(table).sum(axis=0)
    centre = np.nanmean(table, axis=0)
    deviation = np.sqrt(np.nansum((table - centre) ** 2, axis=0) / np.maximum(present - 1, 1))
    half = deviation * [_t_factor(count, confidence) for count in present.tolist()]
    return Curve(grid, centre, centre - half, centre + half, tuple(thin(x, y) for x, y in points))


def thin(x: Floats, y: Floats, points: int = 400) -> tuple[Floats, Floats]:
    """At most ``points`` of a curve's points, first and last among them."""
    if len(x) <= points:
        return x, y
    chosen = np.unique(np.linspace(0, len(x) - 1, points).round().astype(np.int64))
    return x[chosen], y[chosen]


def _known(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    known = np.isfinite(x) & np.isfinite(y)
    return x[known], y[known]


def _t_factor(count: int, confidence: float) -> float:
    """Half of Student's t interval of the mean of so many values, in standard deviations."""
    return student_t_quantile((1 + confidence) / 2, count - 1) / math.sqrt(count) if count >= LEAST_SEEDS else 0.0
