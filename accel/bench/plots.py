"""Plots of benchmark rows, drawn to a PNG file without a display."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from accel.bench.rows import Row, number
from accel.errors import MissingExtraError
from accel.system.extras import install_command, missing_distributions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#4477aa", "#ee8866", "#bbbbbb", "#44bb99")
_SPREAD, _LIMIT = "#222222", "#aa3377"
_PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
_FURTHEST_SPREAD = 1.5
_PANEL_INCHES, _BAR_INCHES, _LETTERS_PER_INCH, _COLUMNS = 4.8, 0.26, 13, 3


@dataclass(frozen=True)
class Panel:
    """Horizontal stacked bars, one per label.

    Attributes:
        parts: by legend, one value per label.
        spread: (low, high) of each whole bar.
        limit: legend and position of a vertical line.
        notes: an annotation after each bar.
    """

    title: str
    labels: Sequence[str]
    parts: Mapping[str, Sequence[float]]
    spread: Sequence[tuple[float, float]] = ()
    limit: tuple[str, float] | None = None
    notes: Sequence[str] = ()


def require_matplotlib() -> None:
    """Raises MissingExtraError when plots cannot be drawn here."""
    if missing_distributions("report"):
        raise MissingExtraError(f"plots need matplotlib: {install_command('report')}")


def policy_panels(rows: Sequence[Row]) -> list[Panel]:
    """One panel per network and batch."""
    panels = []
    for title, cells in _cells(rows, ("network", "batch"), "{}, batch {}"):
        fp32 = [number(row, "us") for row in cells if (row["runtime"], row["scheme"]) == ("onnxruntime", "fp32")]
        limit = ("onnxruntime fp32", fp32[0]) if fp32 else None
        labels = [_label(row) for row in cells]
        panels.append(
            Panel(title, labels, {"µs per call": _values(cells, "us")}, _spread(cells, "us"), limit, _ratios(cells))
        )
    return panels


def actor_panels(rows: Sequence[Row]) -> list[Panel]:
    """One panel per environment, network and number of environments."""
    panels = []
    for title, cells in _cells(rows, ("env", "network", "envs"), "{}, {}, envs per actor: {}"):
        parts = {name: _values(cells, f"{name}_us") for name in ("env", "policy", "overhead")}
        limit = ("environment alone", number(cells[0], "env_only_us"))
        labels = [_label(row) for row in cells]
        panels.append(Panel(title, labels, parts, _spread(cells, "us_per_env_step"), limit, _ratios(cells)))
    return panels


def inference_panels(rows: Sequence[Row]) -> list[Panel]:
    """One panel per environment, network and number of environments."""
    panels = []
    for title, cells in _cells(rows, ("env", "network", "envs"), "{}, {}, envs per actor: {}"):
        name = "env_steps_per_s"
        labels = [f"{row['inference']} {row['scheme']}" for row in cells]
        notes = [f"{number(row, 'speedup_local'):.2f}×" for row in cells]
        panels.append(Panel(title, labels, {"steps/s": _values(cells, name)}, _spread(cells, name), notes=notes))
    return panels


def refresh_panels(rows: Sequence[Row]) -> list[Panel]:
    """One panel per network."""
    panels = []
    for title, cells in _cells(rows, ("network",), "{}"):
        parts = {name: _values(cells, f"{name}_ms") for name in ("requantise", "serialise", "load")}
        panels.append(Panel(title, [str(row["scheme"]) for row in cells], parts))
    return panels


def bits_panels(rows: Sequence[Row]) -> list[Panel]:
    """One panel per network and rounding."""
    panels = []
    for title, cells in _cells(rows, ("network", "rounded"), "{}, {}, simulated"):
        notes = ["" if row["return"] is None else f"return {number(row, 'return'):.4g}" for row in cells]
        panels.append(Panel(title, [f"{row['bits']} bits" for row in cells], {"KL": _values(cells, "kl")}, notes=notes))
    return panels


def learner_panels(rows: Sequence[Row]) -> list[Panel]:
    """One panel per network."""
    panels = []
    for title, cells in _cells(rows, ("network", "T", "B"), "{}, T = {}, B = {}"):
        parts = {name: _values(cells, f"{name}_us") for name in ("batch", "forward", "correct", "backward")}
        labels = [str(row["precision"]).replace("none", "single precision") for row in cells]
        labels = [f"{x}, graphs" if row["graphs"] == "on" else x for x, row in zip(labels, cells, strict=True)]
        labels = [x if row["learner"] == "accel" else str(row["learner"]) for x, row in zip(labels, cells, strict=True)]
        panels.append(Panel(title, labels, parts, _spread(cells, "us_per_env_step")))
    return panels


PANELS: Mapping[str, Callable[[Sequence[Row]], list[Panel]]] = MappingProxyType(
    {
        "policy": policy_panels,
        "actor": actor_panels,
        "inference": inference_panels,
        "refresh": refresh_panels,
        "bits": bits_panels,
        "learner": learner_panels,
    }
)


def draw(panels: Sequence[Panel], path: Path, *, title: str, unit: str) -> None:
    """Write one PNG.

    Args:
        panels: in reading order.
        path: the file; replaced if it exists.
        title: of the whole plot.
        unit: of every axis.
    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    tallest = max(len(panel.labels) for panel in panels)
    size = (_PANEL_INCHES * columns, lines * (_BAR_INCHES * tallest + 0.9) + 1.2)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    wrapped = [part for line in title.splitlines() for part in textwrap.wrap(line, int(_LETTERS_PER_INCH * size[0]))]
    figure.suptitle("\n".join(wrapped), fontsize=9)
    axes: list[Axes] = list(figure.subplots(lines, columns, squeeze=False).flat)
    for panel, place in zip(panels, axes, strict=False):
        draw_panel(panel, place, unit)
    for place in axes[len(panels) :]:
        place.set_visible(False)
    legend = dict(item for place in axes for item in zip(*reversed(place.get_legend_handles_labels()), strict=True))
    if len(legend) > 1:
        figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=len(legend), fontsize=8)
    figure.savefig(path, dpi=130, format="png")


def draw_panel(panel: Panel, axes: Axes, unit: str) -> None:
    """Stacked bars of a panel's parts, with intervals and notes."""
    places = list(range(len(panel.labels)))
    totals = [0.0] * len(places)
    for (name, values), colour in zip(panel.parts.items(), _COLOURS, strict=False):
        axes.barh(places, values, left=totals, color=colour, label=name, height=0.72)
        totals = [total + value for total, value in zip(totals, values, strict=True)]
    highs = _draw_spread(panel.spread, axes, _FURTHEST_SPREAD * max(totals)) or totals
    if panel.limit is not None:
        axes.axvline(panel.limit[1], color=_LIMIT, linestyle="--", linewidth=1.2, label=panel.limit[0])
    ends = [max(total, high) for total, high in zip(totals, highs, strict=True)]
    for place, end, note in zip(places, ends, panel.notes, strict=False):
        axes.annotate(note, (end, place), (7, 0), textcoords="offset points", va="center", fontsize=7, bbox=_PAPER)
    axes.set_yticks(places, panel.labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0.0, max(ends) * (1.3 if panel.notes else 1.08))
    axes.set_title(panel.title, fontsize=9)
    axes.set_xlabel(unit, fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_spread(spread: Sequence[tuple[float, float]], axes: Axes, furthest: float) -> list[float]:
    """Draw each bar's spread up to ``furthest``, so that a few slow samples do not flatten the bars, with an arrowhead
    where it is cut; returns the ends of the lines."""
    places, ends = range(len(spread)), [min(high, furthest) for _, high in spread]
    axes.hlines(places, [min(low, furthest) for low, _ in spread], ends, color=_SPREAD, linewidth=1.2)
    cut = [place for place in places if spread[place][1] > furthest]
    axes.plot([ends[place] for place in cut], cut, color=_SPREAD, marker=5, markersize=4, linestyle="none")
    return ends


def _cells(rows: Sequence[Row], columns: Sequence[str], title: str) -> list[tuple[str, list[Row]]]:
    """Rows grouped by the title that their columns make, in order of appearance."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(title.format(*(row[column] for column in columns)), []).append(row)
    return list(groups.items())


def _label(row: Row) -> str:
    runtime = str(row["runtime"])
    scheme = str(row["scheme"])
    return {"onnxruntime": scheme, "native": f"{scheme}, native"}.get(runtime, runtime)


def _values(rows: Sequence[Row], name: str) -> list[float]:
    return [number(row, name) for row in rows]


def _spread(rows: Sequence[Row], name: str) -> list[tuple[float, float]]:
    return [(number(row, f"{name}_low"), number(row, f"{name}_high")) for row in rows]


def _ratios(rows: Sequence[Row]) -> list[str]:
    """Speed-up over torch eager, where that was measured."""
    return ["" if row["speedup_torch"] is None else f"{number(row, 'speedup_torch'):.2f}×" for row in rows]
