"""A sweep's figures as PNG: the front, and which parameters decide."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import combinations

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from accel.sweep.front import Row
from accel.sweep.quantities import Quantity, Values

_DPI = 140
_GREY, _BLUE, _ORANGE, _GREEN = "#b8bcc4", "#1f5fa8", "#d9730d", "#2a8f57"
_COLOURS = (_BLUE, _ORANGE, _GREEN, "#8a4fb0", "#7a7f87")
_MAXIMAL_PARAMETERS = 20
_LOGARITHMIC_RATIO = 30.0


def draw_front(
    rows: Sequence[Row], front: Sequence[Row], objectives: Sequence[Quantity], references: Values, title: str
) -> bytes:
    """Every pair of objectives, one panel each; with a single objective its history over trials. PNG bytes."""
    pairs = list(combinations(objectives, 2))
    figure = Figure(figsize=(5.2 * max(len(pairs), 1), 4.6), dpi=_DPI, layout="constrained")
    panels = figure.subplots(1, max(len(pairs), 1), squeeze=False)[0]
    if pairs:
        for panel, (second, first) in zip(panels, pairs, strict=True):
            _pair(panel, rows, front, first, second, references)
    else:
        _history(panels[0], rows, front, objectives[0], references)
    figure.suptitle(title, fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return _png(figure)


def draw_importances(shares: Mapping[str, Mapping[str, float]], title: str) -> bytes:
    """Parameters by their greatest share, a bar for each objective. PNG bytes."""
    greatest: dict[str, float] = {}
    for values in shares.values():
        for name, share in values.items():
            greatest[name] = max(greatest.get(name, 0.0), share)
    names = sorted(greatest, key=lambda name: greatest[name])[-_MAXIMAL_PARAMETERS:]
    figure = Figure(figsize=(7.5, 1.6 + 0.34 * max(len(names), 3)), dpi=_DPI, layout="constrained")
    panel = figure.subplots()
    if not names:
        panel.text(0.5, 0.5, "too few different trials to tell", ha="center", va="center", color="#555555")
        panel.set_axis_off()
    height = 0.8 / max(len(shares), 1)
    for index, (objective, values) in enumerate(shares.items()):
        places = [place + 0.4 - (index + 0.5) * height for place in range(len(names))]
        widths = [values.get(name, 0.0) for name in names]
        panel.barh(places, widths, height, label=objective, color=_COLOURS[index % len(_COLOURS)])
    if names:
        panel.set_yticks(range(len(names)), names, fontsize=8)
        panel.set_xlabel("share of what decides the best tenth of the trials (PED-ANOVA)", fontsize=8)
        panel.set_xlim(left=0)
        panel.legend(fontsize=8, frameon=False, loc="lower right")
        _plain(panel)
    figure.suptitle(title, fontsize=10)
    return _png(figure)


def _pair(panel: Axes, rows: Sequence[Row], front: Sequence[Row], x: Quantity, y: Quantity, references: Values) -> None:
    best = {row.number for row in front}
    others = [row for row in rows if row.number not in best]
    panel.scatter(*_points(others, x, y), s=14, color=_GREY, label="other trials", linewidths=0)
    panel.scatter(*_points(front, x, y), s=34, color=_BLUE, label="best trade-offs", zorder=3)
    if x.name in references and y.name in references:
        panel.scatter(
            [references[x.name]], [references[y.name]], s=110, marker="*", color=_ORANGE, label="fp32", zorder=4
        )
    for values, set_scale in zip(_points([*rows, *front], x, y), (panel.set_xscale, panel.set_yscale), strict=True):
        if values and min(values) > 0 and max(values) / min(values) > _LOGARITHMIC_RATIO:
            set_scale("log")
    panel.set_xlabel(_axis(x), fontsize=9)
    panel.set_ylabel(_axis(y), fontsize=9)
    _plain(panel)


def _history(panel: Axes, rows: Sequence[Row], front: Sequence[Row], objective: Quantity, references: Values) -> None:
    best = {row.number for row in front}
    others = [row for row in rows if row.number not in best]
    for group, colour, size, label in ((others, _GREY, 14, "other trials"), (front, _BLUE, 34, "best")):
        numbers = [row.number for row in group]
        panel.scatter(
            numbers, [row.values[objective.name] for row in group], s=size, color=colour, label=label, zorder=3
        )
    if objective.name in references:
        panel.axhline(references[objective.name], color=_ORANGE, linewidth=1, label="fp32")
    panel.set_xlabel("trial", fontsize=9)
    panel.set_ylabel(_axis(objective), fontsize=9)
    _plain(panel)


def _points(rows: Sequence[Row], x: Quantity, y: Quantity) -> tuple[list[float], list[float]]:
    return [row.values[x.name] for row in rows], [row.values[y.name] for row in rows]


def _axis(quantity: Quantity) -> str:
    return f"{quantity.title}, {'more' if quantity.direction == 'maximise' else 'less'} is better"


def _plain(panel: Axes) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=8)
    panel.grid(alpha=0.25, linewidth=0.6)


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(file, format="png")
    return file.getvalue()
