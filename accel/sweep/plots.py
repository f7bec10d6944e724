"""A sweep's figures: the Pareto front, and a population over its generations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from itertools import combinations

import numpy as np

from accel.monitor.statistics import Interval
from accel.reports.figure import Axis, Figure, Line, Panel, Points, Reference
from accel.sweep.objectives import Metric, Values
from accel.sweep.pareto import Candidate

MAX_NAME = 24
"""Characters of a candidate's name beside its point."""
LOGARITHMIC_RATIO = 10.0
"""Metrics to minimise whose values differ by more than this factor have a logarithmic axis."""


def pareto_figure(
    rows: Sequence[Candidate],
    front: Sequence[Candidate],
    objectives: Sequence[Metric],
    *,
    references: Values,
    bounds: Values,
    returns: Mapping[int, Interval],
    title: str,
) -> Figure:
    """One panel per pair of objectives; for a single objective, its history over trials.

    Args:
        rows: all candidates. front: the Pareto front among them.
        references: fp32's values. bounds: of constraints, by metric.
        returns: intervals of the mean return, by trial.
    """
    best = {row.number for row in front}
    groups = {
        "other trials": [row for row in rows if row.number not in best],
        "Pareto front" if len(objectives) > 1 else "best": list(front),
    }
    trial = Metric("trial", "minimise", "", "")
    pairs = [(x, y) for y, x in combinations(objectives, 2)] or [(trial, objectives[0])]
    panels = []
    for x, y in pairs:
        marks: list[Points | Reference] = []
        for i, (label, members) in enumerate(groups.items()):
            names = [] if i == 0 else [_name(row) for row in members]
            across, up = ([_value(row, metric) for row in members] for metric in (x, y))
            x_ends, y_ends = (_ends(members, metric, returns) for metric in (x, y))
            marks.append(Points(label, across, up, x_ends, y_ends, names, 0 if i else None))
        if {x.name, y.name} <= references.keys():
            marks.append(Points("fp32", [references[x.name]], [references[y.name]], colour=1, marker="*"))
        elif x is trial and y.name in references:
            marks.append(Reference(references[y.name], "fp32"))
        for metric, axis in ((x, "x"), (y, "y")):
            if metric.name in bounds:
                marks.append(Reference(bounds[metric.name], "constraint", "x" if axis == "x" else "y"))
        x_axis, y_axis = (_axis(metric, [*rows, *front]) for metric in (x, y))
        panels.append(Panel(marks, x_axis, y_axis, inches=3.4))
    caption = "Every measured trial. Bars: 95 % Student's t interval of the mean return, quartiles of a latency."
    return Figure("pareto", f"Pareto front of {title}", panels, caption, columns=3, heading=title)


def population_figure(
    rows: Mapping[str, Sequence[Sequence[float | None]]], lineage: Sequence[int], logarithmic: Set[str], title: str
) -> Figure:
    """A population's returns and parameters over its generations, with the line of its best member.

    Args:
        rows: by quantity, generation and member; None where there is no value.
        lineage: by generation, the member that the best one goes back to.
        logarithmic: quantities with a logarithmic axis.
    """
    panels = []
    for name, generations in rows.items():
        table = np.array(generations, np.float64)  # [generation, member]; None becomes NaN
        over = np.arange(len(table))
        marks = [Line("other members", over, values, colour=None) for values in table.T]
        marks.append(Line("the best member's line", over, table[over, list(lineage)]))
        y = Axis(scale="log" if name in logarithmic else "linear")
        panels.append(Panel(marks, Axis("generation", "steps"), y, name, inches=2.2))
    return Figure("population", title, panels, columns=3, heading=title)


def _name(row: Candidate) -> str:
    text = f"{row.number}: {row.label}"
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 1]}…"


def _value(row: Candidate, metric: Metric) -> float:
    return row.values.get(metric.name, float(row.number))


def _ends(rows: Sequence[Candidate], metric: Metric, returns: Mapping[int, Interval]) -> list[tuple[float, float]]:
    """Error bars of a metric: its interval, or the quartiles that were measured; none where no row has either."""
    quartiles = [(row.values.get(f"{metric.name}_q1"), row.values.get(f"{metric.name}_q3")) for row in rows]
    known: list[tuple[float, float]] = []
    for row, (low, high) in zip(rows, quartiles, strict=True):
        if metric.name == "return" and row.number in returns:
            low, high = returns[row.number].low, returns[row.number].high
        known.append((math.nan if low is None else low, math.nan if high is None else high))
    return known if np.isfinite(known).any() else []


def _axis(metric: Metric, rows: Sequence[Candidate]) -> Axis:
    if metric.name == "trial":
        return Axis("trial", "steps")
    title = f"{metric.title}, {'more' if metric.direction == 'maximise' else 'less'} is better"
    values = [row.values[metric.name] for row in rows]
    wide = metric.direction == "minimise" and values and 0 < min(values) < max(values) / LOGARITHMIC_RATIO
    return Axis(title, "log" if wide else "linear")
