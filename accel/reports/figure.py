"""A figure as values: panels of curves, points and bars, and the CSV of everything in them. Nothing is drawn here."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

Ends = Sequence[tuple[float, float]]
Cells = tuple[object, ...]
COLUMNS = ("panel", "series", "name", "x", "y", "x_low", "x_high", "y_low", "y_high")


@dataclass(frozen=True, eq=False)
class Line:
    """A curve.

    Attributes:
        label: its name in the legend; one that several lines share is there once.
        x, y: [n] points.
        low, high: [n] ends of its band; None: no band.
        colour: index of its colour and dash; None: grey.
        single: thin lines in the same colour, (x, y) each, such as single seeds.
        steps: whether y holds until the next x, with a dot at each change.
    """

    label: str
    x: ArrayLike
    y: ArrayLike
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    colour: int | None = 0
    single: Sequence[tuple[ArrayLike, ArrayLike]] = ()
    steps: bool = False

    def rows(self) -> Iterator[Cells]:
        """Cells after ``panel``: the curve and its band, then the single lines."""
        ends = (_floats(self.low), _floats(self.high))
        for x, y, low, high in zip_longest(_floats(self.x), _floats(self.y), *ends):
            yield self.label, "", x, y, None, None, low, high
        for i, (xs, ys) in enumerate(self.single, 1):
            yield from ((self.label, f"single {i}", x, y) for x, y in zip(_floats(xs), _floats(ys), strict=True))


@dataclass(frozen=True, eq=False)
class Points:
    """Points with error bars.

    Attributes:
        label: in the legend.
        x, y: [n].
        x_ends, y_ends: (low, high) of each error bar, NaN where there is none; empty: none at all.
        names: a label beside each; empty: none.
        colour: index; None: grey.
        marker: ``o``, or ``*`` for a reference.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    x_ends: Ends = ()
    y_ends: Ends = ()
    names: Sequence[str] = ()
    colour: int | None = 0
    marker: Literal["o", "*"] = "o"

    def rows(self) -> Iterator[Cells]:
        """Cells after ``panel``: a point each."""
        for x, y, name, *ends in zip_longest(self.x, self.y, self.names, self.x_ends, self.y_ends):
            yield self.label, name, x, y, *(end for pair in ends for end in pair or (None, None))


@dataclass(frozen=True, eq=False)
class Bars:
    """Horizontal bars from the top, one a label; ``parts`` by name in the legend, stacked, one width per label."""

    labels: Sequence[str]
    parts: Mapping[str, Sequence[float]]

    def rows(self) -> Iterator[Cells]:
        """Cells after ``panel``: a row for each part of each bar."""
        for part, widths in self.parts.items():
            yield from ((part, label, width) for label, width in zip(self.labels, widths, strict=True))


@dataclass(frozen=True)
class Reference:
    """A dotted line at a value of an axis, such as a threshold or an alarm level."""

    value: float
    label: str
    axis: Literal["x", "y"] = "y"

    def rows(self) -> Iterator[Cells]:
        """Cells after ``panel``: its value."""
        yield self.label, "", *((self.value, None) if self.axis == "x" else (None, self.value))


@dataclass(frozen=True)
class Axis:
    """An axis.

    Attributes:
        title: with its unit.
        scale: ``steps`` are whole numbers, 10k and 2M rather than 10000 and 2e6.
        limits: ends of the axis; None where the values decide.
        ticks: texts by position, in place of numbers.
    """

    title: str = ""
    scale: Literal["linear", "log", "steps"] = "linear"
    limits: tuple[float | None, float | None] = (None, None)
    ticks: Mapping[float, str] = field(default_factory=dict)


Mark = Line | Points | Bars | Reference


@dataclass(frozen=True, eq=False)
class Panel:
    """One pair of axes.

    Attributes:
        marks: in the order of drawing.
        inches: its height without titles; None: by its bars, or the same for all.
    """

    marks: Sequence[Mark]
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    title: str = ""
    inches: float | None = None


@dataclass(frozen=True, eq=False)
class Figure:
    """A figure.

    Attributes:
        name: of its files, without suffix.
        title, caption: above and below it on a page.
        panels: row by row. Those of a single column share their x axis.
        columns: of panels at most.
        heading: a text in the picture, above all panels.
    """

    name: str
    title: str
    panels: Sequence[Panel]
    caption: str = ""
    columns: int = 1
    heading: str = ""

    def csv(self) -> str:
        """Every value that is drawn, a row each, with ``COLUMNS``; a cell is empty where a mark has no such value."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        for number, panel in enumerate(self.panels, 1):
            title = panel.title or panel.y.title or panel.x.title or str(number)
            for mark in panel.marks:
                for cells in mark.rows():
                    padded = (*cells, *(None,) * (len(COLUMNS) - 1 - len(cells)))
                    writer.writerow(["" if _is_missing(cell) else cell for cell in (title, *padded)])
        return text.getvalue()


def _is_missing(cell: object) -> bool:
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def _floats(values: ArrayLike | None) -> list[float]:
    return [] if values is None else [float(value) for value in np.asarray(values, np.float64)]
