"""A sweep's plots as PNG: the Pareto front and parameter importances."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import combinations

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from accel.sweep.importance import Importance
from accel.sweep.objectives import Metric, Values
from accel.sweep.pareto import Candidate

_DPI = 140
_GREY, _BLUE, _ORANGE, _GREEN = "#b8bcc4", "#1f5fa8", "#d9730d", "#2a8f57"
_COLOURS = (_BLUE, _ORANGE, _GREEN, "#8a4fb0", "#7a7f87")
_TEXT = "#555555"
_MAXIMAL_PARAMETERS = 20
# Metrics to minimise whose values differ by more than this factor have a logarithmic axis.
_LOGARITHMIC_RATIO = 10.0


@dataclass(frozen=True)
class FrontFigure:
    """A plot of the Pareto front.

    Attributes:
        rows: all candidates. front: the Pareto front among them.
        objectives: one panel per pair of them.
        references: fp32's values. bounds: of constraints, by metric.
        title: of the plot.
    """

    rows: Sequence[Candidate]
    front: Sequence[Candidate]
    objectives: Sequence[Metric]
    references: Values
    bounds: Values
    title: str

    def draw(self) -> bytes:
        """PNG bytes."""
        return _png(self.figure())

    def figure(self) -> Figure:
        """One panel per pair of objectives; for a single objective, its history over trials."""
        pairs = list(combinations(self.objectives, 2))
        figure = Figure(figsize=(5.2 * max(len(pairs), 1), 4.6), dpi=_DPI, layout="constrained")
        panels = figure.subplots(1, max(len(pairs), 1), squeeze=False)[0]
        if pairs:
            for panel, (second, first) in zip(panels, pairs, strict=True):
                self._pair(panel, first, second)
        else:
            self._history(panels[0], self.objectives[0])
        figure.suptitle(self.title, fontsize=10)
        handles, labels = panels[0].get_legend_handles_labels()
        found = dict(zip(labels, handles, strict=True))
        figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=5, fontsize=8, frameon=False)
        return figure

    def _pair(self, panel: Axes, x: Metric, y: Metric) -> None:
        panel.scatter(*_points(self._others, x, y), s=14, color=_GREY, label="other trials", linewidths=0)
        panel.scatter(*_points(self.front, x, y), s=34, color=_BLUE, label="Pareto front", zorder=3)
        if x.name in self.references and y.name in self.references:
            place = ([self.references[x.name]], [self.references[y.name]])
            panel.scatter(*place, s=110, marker="*", color=_ORANGE, label="fp32", zorder=4)
        for metric, axis, line in ((x, panel.xaxis, panel.axvline), (y, panel.yaxis, panel.axhline)):
            values = [row.values[metric.name] for row in (*self.rows, *self.front)]
            if metric.direction == "minimise" and values and 0 < min(values) < max(values) / _LOGARITHMIC_RATIO:
                _logarithmic(panel, axis)
            known = [*values, *([self.references[metric.name]] if metric.name in self.references else [])]
            if known and min(known) == max(known):
                _all_equal(panel, axis, known[0], self.bounds.get(metric.name))
            if metric.name in self.bounds:
                line(self.bounds[metric.name], color=_ORANGE, linewidth=1, linestyle="--", label="constraint")
        panel.set_xlabel(_axis(x), fontsize=9)
        panel.set_ylabel(_axis(y), fontsize=9)
        _plain(panel)

    def _history(self, panel: Axes, objective: Metric) -> None:
        groups = ((self._others, _GREY, 14, "other trials"), (self.front, _BLUE, 34, "best"))
        for group, colour, size, label in groups:
            numbers = [row.number for row in group]
            values = [row.values[objective.name] for row in group]
            panel.scatter(numbers, values, s=size, color=colour, label=label, zorder=3)
        if objective.name in self.references:
            panel.axhline(self.references[objective.name], color=_ORANGE, linewidth=1, label="fp32")
        panel.set_xlabel("trial", fontsize=9)
        panel.set_ylabel(_axis(objective), fontsize=9)
        _plain(panel)

    @property
    def _others(self) -> list[Candidate]:
        best = {row.number for row in self.front}
        return [row for row in self.rows if row.number not in best]


def draw_importances(found: Mapping[str, Importance], title: str) -> bytes:
    """Parameters by their greatest share, with a bar per objective, and the remarks on objectives without shares."""
    ranked = {objective: importance.shares for objective, importance in found.items() if importance.remark is None}
    greatest: dict[str, float] = {}
    for shares in ranked.values():
        for name, share in shares.items():
            greatest[name] = max(greatest.get(name, 0.0), share)
    names = sorted(greatest, key=lambda name: greatest[name])[-_MAXIMAL_PARAMETERS:]
    figure = Figure(figsize=(7.5, 2.2 + 0.34 * max(len(names), 3)), dpi=_DPI, layout="constrained")
    panel = figure.subplots()
    height = 0.8 / max(len(ranked), 1)
    for index, (objective, shares) in enumerate(ranked.items()):
        places = [place + 0.4 - (index + 0.5) * height for place in range(len(names))]
        label = f"{objective} ({found[objective].trials} trials)"
        widths = [shares.get(name, 0.0) for name in names]
        panel.barh(places, widths, height, label=label, color=_COLOURS[index % len(_COLOURS)])
    remarks = "\n".join(f"{name}: {item.remark}" for name, item in found.items() if item.remark is not None)
    if names:
        panel.set_yticks(range(len(names)), names, fontsize=8)
        panel.set_xlabel("importance (PED-ANOVA)", fontsize=8)
        panel.set_xlim(0, 1)
        panel.legend(fontsize=8, frameon=False, loc="lower right")
        _plain(panel)
        figure.text(0.01, -0.01, remarks, fontsize=8, color=_TEXT, va="top")
    else:
        panel.text(0.5, 0.5, remarks, ha="center", va="center", fontsize=9, color=_TEXT)
        panel.set_axis_off()
    figure.suptitle(f"Parameter importance in {title}", fontsize=10)
    return _png(figure)


def draw_population(
    rows: Mapping[str, Sequence[Sequence[float | None]]], lineage: Sequence[int], logarithmic: Set[str], title: str
) -> bytes:
    """A population's returns and parameters over its generations, with the line of its best member.

    Args:
        rows: by quantity, generation and member; None where there is no value.
        lineage: by generation, the member that the best one goes back to.
        logarithmic: quantities with a logarithmic axis.
        title: of the plot.
    """
    figure = Figure(figsize=(3.6 * min(len(rows), 3), 3.0 * math.ceil(len(rows) / 3)), dpi=_DPI, layout="constrained")
    panels = figure.subplots(math.ceil(len(rows) / 3), min(len(rows), 3), squeeze=False).flatten()
    for panel, (name, generations) in zip(panels, rows.items(), strict=False):
        for member in zip(*generations, strict=True):
            values = [math.nan if value is None else value for value in member]
            panel.plot(range(len(values)), values, color=_GREY, linewidth=1, marker="o", markersize=2.5)
        best = [generation[member] for generation, member in zip(generations, lineage, strict=True)]
        drawn = [math.nan if value is None else value for value in best]
        panel.plot(range(len(drawn)), drawn, color=_BLUE, linewidth=2, marker="o", markersize=4)
        if name in logarithmic:
            _logarithmic(panel, panel.yaxis)
        panel.set_title(name, fontsize=9)
        panel.set_xlabel("generation", fontsize=9)
        _plain(panel)
    for panel in panels[len(rows) :]:
        panel.set_axis_off()
    figure.suptitle(f"{title}: members grey, the best one's line blue", fontsize=10)
    return _png(figure)


def _all_equal(panel: Axes, axis: Axis, value: float, bound: float | None) -> None:
    """Label an axis of equal values, and let it range from zero to somewhat beyond them."""
    ends = [0.0, 1.2 * value if value else 1.0] + ([] if bound is None else [1.2 * bound])
    set_limits = panel.set_xlim if axis is panel.xaxis else panel.set_ylim
    set_limits(min(ends), max(ends))
    across, up = (0.98, 0.04) if axis is panel.xaxis else (0.98, 0.96)
    vertical = "bottom" if axis is panel.xaxis else "top"
    text = f"all equal: {value:g}"
    panel.text(across, up, text, transform=panel.transAxes, fontsize=8, color=_TEXT, ha="right", va=vertical)


def _logarithmic(panel: Axes, axis: Axis) -> None:
    set_scale = panel.set_xscale if axis is panel.xaxis else panel.set_yscale
    set_scale("log")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _points(rows: Sequence[Candidate], x: Metric, y: Metric) -> tuple[list[float], list[float]]:
    return [row.values[x.name] for row in rows], [row.values[y.name] for row in rows]


def _axis(metric: Metric) -> str:
    return f"{metric.title}, {'more' if metric.direction == 'maximise' else 'less'} is better"


def _plain(panel: Axes) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=8)
    panel.grid(alpha=0.25, linewidth=0.6)


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(file, format="png", bbox_inches="tight", pad_inches=0.1)
    return file.getvalue()
