"""The one place that draws: a ``Figure`` as SVG, PNG and PDF in one style."""

from __future__ import annotations

import io
import logging
import math
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator

from accel.monitor.plain_text import without_controls
from accel.reports.figure import Axis, Bars, Figure, Line, Panel, Points, Reference
from accel.reports.series import Floats
from accel.system.atomic import write_atomically

PNG_DPI = 200
WIDTH_INCHES, PANEL_INCHES, ROW_INCHES = 5.0, 2.3, 1.5
"""Width of a panel, and its height where it is alone and where it is one of a column."""
BAR_INCHES, LINE_INCHES = 0.3, 0.16
LABEL_LETTERS, LINE_LETTERS = 24, 58
"""Characters in a line of the names beside bars, and of a legend."""

_STYLE = Path(__file__).with_name("templates") / "figure.mplstyle"
TEXT, MUTED, PAPER = "#1c2430", "#5b6676", "#ffffff"
SERIES = ("#1f5fa8", "#c2500c", "#1f7a4d", "#7a3fa1", "#a8324b", "#4a5a6b", "#8a6d00", "#007a8a")
DASHES = ("-", (0, (5, 1.6)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)))


def draw(figure: Figure) -> Canvas:
    """The figure as matplotlib has it."""
    columns = min(figure.columns, len(figure.panels))
    rows = math.ceil(len(figure.panels) / columns)
    heights = [_inches(panel, len(figure.panels)) for panel in figure.panels]
    heights = [max(heights[row * columns : (row + 1) * columns]) for row in range(rows)]
    size = (WIDTH_INCHES * columns, sum(heights) + 0.5)
    canvas = Canvas(figsize=size, dpi=PNG_DPI, layout="constrained")
    grid = canvas.subplots(rows, columns, squeeze=False, sharex=columns == 1, height_ratios=heights).flatten()
    for panel, axes in zip(figure.panels, grid, strict=False):
        _draw_panel(panel, axes, shown=columns > 1 or panel is figure.panels[-1])
    for axes in grid[len(figure.panels) :]:
        axes.set_visible(False)
    if figure.heading:
        letters = int(14 * size[0])
        lines = [part for line in figure.heading.splitlines() for part in textwrap.wrap(line, letters)]
        canvas.suptitle("\n".join(lines), fontsize=9.5)
    _legend_below(canvas, columns)
    return canvas


def render(figure: Figure) -> dict[str, bytes]:
    """The content of its files by suffix, ``svg``, ``png``, ``pdf`` and ``csv``; the same bytes each time."""
    found = {"csv": without_controls(figure.csv()).encode()}
    with _style(figure.name):
        canvas = draw(figure)
        if (layout := canvas.get_layout_engine()) is not None:
            layout.execute(canvas)
            canvas.set_layout_engine(None)  # With one, each file would be drawn twice, and laid out anew.
        metadata = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}, "pdf": {"CreationDate": None}}
        for suffix, facts in metadata.items():
            file = io.BytesIO()
            canvas.savefig(file, format=suffix, metadata=facts)
            found[suffix] = file.getvalue()
    found["svg"] = without_controls(found["svg"].decode()).encode()
    return found


def save_all(figure: Figure, directory: Path) -> None:
    """Write ``figure.name`` in every format into a directory."""
    for suffix, content in render(figure).items():
        write_atomically(directory / f"{figure.name}.{suffix}", content)


def wrapped(label: str, width: int) -> str:
    """A label in lines of at most ``width`` characters, broken between words where it can be."""
    return "\n".join(textwrap.wrap(label, width, break_on_hyphens=False)) or label


@contextmanager
def _style(salt: str) -> Iterator[None]:
    """Draw in one style; ``salt`` makes identifiers in an SVG the same each time."""
    with mpl.rc_context({"svg.hashsalt": salt}, _STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")
        logging.getLogger("fontTools").setLevel(logging.WARNING)  # what becomes of each glyph is nobody's concern
        yield


def _inches(panel: Panel, panels: int) -> float:
    labels = [wrapped(label, LABEL_LETTERS) for mark in panel.marks if isinstance(mark, Bars) for label in mark.labels]
    titles = 0.25 * bool(panel.title) + 0.2 * bool(panel.x.title)
    if panel.inches is not None:
        return panel.inches + titles
    if labels:
        return BAR_INCHES * len(labels) + 0.14 * sum(label.count("\n") for label in labels) + 0.3 + titles
    return (PANEL_INCHES if panels == 1 else ROW_INCHES) + titles


def _draw_panel(panel: Panel, axes: Axes, *, shown: bool) -> None:
    """Args: shown: whether its x axis has a title, which panels that share one have once."""
    for mark in panel.marks:
        if isinstance(mark, Line):
            _draw_line(mark, axes)
        elif isinstance(mark, Points):
            _draw_points(mark, axes, thick=bool(panel.y.ticks))
        elif isinstance(mark, Bars):
            _draw_bars(mark, axes)
    _finish_axis(panel.x, axes, "x")
    _finish_axis(panel.y, axes, "y")
    for mark in panel.marks:
        if isinstance(mark, Reference):
            _draw_reference(mark, axes)
    axes.set_title(wrapped(panel.title, LINE_LETTERS), loc="left")
    axes.set_xlabel(wrapped(panel.x.title, LINE_LETTERS) if shown else "")
    axes.set_ylabel(panel.y.title)


def _draw_line(line: Line, axes: Axes) -> None:
    """The line with its band; a single point is a dot with its interval."""
    x, y = np.asarray(line.x, np.float64), np.asarray(line.y, np.float64)
    colour, dash = _colour(line.colour), "-" if line.colour is None or line.steps else DASHES[line.colour % len(DASHES)]
    for single_x, single_y in line.single:
        axes.plot(single_x, single_y, color=colour, alpha=0.3, linewidth=0.7, marker=_dot(single_y), markersize=3)
    if line.low is not None and line.high is not None:
        if len(x) > 1:
            axes.fill_between(x, line.low, line.high, color=colour, alpha=0.18, linewidth=0)
        else:
            axes.vlines(x, line.low, line.high, color=colour, alpha=0.4)
    if line.steps:
        axes.step(x, y, where="post", color=colour, linewidth=1.6, label=line.label)
        axes.plot(x[1:-1], y[1:-1], ".", color=colour, markersize=5)
    else:
        width = 1.0 if line.colour is None else 1.9
        axes.plot(x, y, color=colour, linestyle=dash, linewidth=width, marker=_dot(y), markersize=5, label=line.label)


def _dot(y: object) -> str | None:
    """A dot for a single value, which no line shows."""
    return "o" if np.isfinite(np.asarray(y, np.float64)).sum() == 1 else None


def _draw_points(points: Points, axes: Axes, *, thick: bool) -> None:
    """Points, their error bars and names: beside the points, or where rows have names too (``thick``) in the margin."""
    colour, width = _colour(points.colour), 2.2 if thick else 1.2
    size = 130.0 if points.marker == "*" else 14.0 if points.colour is None else 34.0
    axes.scatter(points.x, points.y, s=size, marker=points.marker, color=colour, label=points.label, zorder=3, lw=0)
    if points.x_ends:
        axes.hlines(points.y, *zip(*points.x_ends, strict=True), color=colour, linewidth=width, zorder=2.5)
    if points.y_ends:
        axes.vlines(points.x, *zip(*points.y_ends, strict=True), color=colour, linewidth=width, zorder=2.5)
    middle = (min(points.x) + max(points.x)) / 2 if points.x else 0.0
    for x, y, name in zip(points.x, points.y, points.names, strict=False):
        if thick:
            margin = ("axes fraction", "data")
            axes.annotate(name, (1.03, y), xycoords=margin, va="center", fontsize=8.5, color=TEXT)
        else:
            place, side = ((6, 4), "left") if x <= middle else ((-6, 4), "right")
            axes.annotate(name, (x, y), place, textcoords="offset points", ha=side, fontsize=7.5, color=TEXT)


def _draw_bars(bars: Bars, axes: Axes) -> None:
    places = np.arange(len(bars.labels), dtype=np.float64)
    starts, several = np.zeros(len(places)), len(bars.parts) > 1
    longest = max(map(sum, zip(*bars.parts.values(), strict=True)), default=0.0)
    for i, (part, widths) in enumerate(bars.parts.items()):
        axes.barh(places, widths, 0.66, starts, color=_colour(i), label=part if several else None)
        _write_in_bars(axes, widths, starts, 0.09 * longest)
        starts = starts + np.asarray(widths)
    axes.set_yticks(places, [wrapped(label, LABEL_LETTERS) for label in bars.labels])
    axes.set_ylim(len(places) - 0.5, -0.5)
    axes.set_xlim(0.0, 1.04 * longest or 1.0)
    axes.grid(axis="y", visible=False)


def _write_in_bars(axes: Axes, widths: Sequence[float], starts: Floats, least: float) -> None:
    """Each part's width in it where there is room."""
    for place, (width, start) in enumerate(zip(widths, starts, strict=True)):
        if width > least:
            text = f"{width:.3g}" if width < 1000 else f"{width:,.0f}"
            axes.text(start + width / 2, place, text, ha="center", va="center", fontsize=8.5, color=PAPER)


def _draw_reference(reference: Reference, axes: Axes) -> None:
    """A dotted line: across with its label above the end, upright with it in the legend."""
    if reference.axis == "x":
        axes.axvline(reference.value, color=TEXT, linewidth=1.2, linestyle=":", label=reference.label)
        return
    axes.axhline(reference.value, color=MUTED, linewidth=1.2, linestyle=":")
    place, spot = (0.99, reference.value), ("axes fraction", "data")
    axes.annotate(reference.label, place, xycoords=spot, ha="right", va="bottom", fontsize=8, color=MUTED)


def _finish_axis(axis: Axis, axes: Axes, which: str) -> None:
    target = axes.xaxis if which == "x" else axes.yaxis
    if axis.scale == "log":
        axes.set(**{f"{which}scale": "log"})
        target.set_minor_locator(NullLocator())
    if axis.limits != (None, None):
        axes.set(**{f"{which}lim": axis.limits})
    if axis.scale == "log":
        low, high = target.get_view_interval()
        fine = (1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 8.0)
        subs = fine if high < 5 * low else (1.0, 2.0, 5.0) if high < 100 * low else (1.0,)
        target.set_major_locator(LogLocator(subs=subs, numticks=6))
        target.set_major_formatter(lambda value, _: f"{value:g}")
    elif axis.scale == "steps":
        target.set_major_locator(MaxNLocator(nbins="auto", integer=True, steps=[1, 2, 2.5, 5, 10]))
        target.set_major_formatter(EngFormatter(sep=""))
    if axis.ticks:
        target.set_ticks(list(axis.ticks), [wrapped(text, LABEL_LETTERS) for text in axis.ticks.values()], fontsize=8.5)


def _legend_below(canvas: Canvas, columns: int) -> None:
    """One legend for all panels, under them, where it hides nothing; long names take several lines and add height."""
    found: dict[str, Artist] = {}
    for axes in canvas.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(wrapped(label, LINE_LETTERS), handle)
    if not found:
        return
    across = max(1, min(len(found), int(columns * LINE_LETTERS / (max(map(len, found)) + 5))))
    rows = math.ceil(sum(label.count("\n") + 1 for label in found) / across)
    width, height = canvas.get_size_inches()
    canvas.set_size_inches(width, height + LINE_INCHES * rows + 0.1)
    canvas.legend(found.values(), found, loc="outside lower center", ncols=across)


def _colour(index: int | None) -> str:
    return MUTED if index is None else SERIES[index % len(SERIES)]
