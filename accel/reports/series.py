"""A run's ``metrics.jsonl`` as columns: streamed, thinned to bounded memory, damaged lines skipped and counted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accel.errors import ReportError
from accel.monitor.line_file import read_lines
from accel.monitor.recorder import STEP_KEY, TIME_KEY, RunClock, is_blank, parse_metrics_line

Floats = NDArray[np.float64]

MAX_POINTS = 4096
MAX_COLUMNS = 512
ELAPSED = "elapsed_s"
_CHUNK_RECORDS = 4096
_MONOTONE = frozenset({STEP_KEY, ELAPSED, TIME_KEY, "updates", "episodes", "dropped_unrolls"})
_PEAKS = frozenset({"withheld", "inconclusive_checks", "publish_kl", "qat_differences", "qat_greatest_difference"})
"""Of these, by scheme, a report gives the greatest."""
_STATES = frozenset({"publish_kl"})
"""Of these the last is reported too, whichever record holds it."""
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True, eq=False)
class Series:
    """What a run recorded, oldest first.

    Attributes:
        columns: [n] float64 by metric name; NaN where a record lacks the metric. ``elapsed_s`` goes on growing across
            resumes, unlike in the file.
        records: how many whole records the file holds; n is at most twice ``MAX_POINTS``, means of neighbours beyond.
        damaged: lines that are no record, and were skipped; blank ones are not counted.
    """

    columns: Mapping[str, Floats] = field(default_factory=dict)
    records: int = 0
    damaged: int = 0

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def column(self, name: str) -> Floats:
        """[n]; all NaN for a metric that was never recorded."""
        found = self.columns.get(name)
        return np.full(len(self), math.nan) if found is None else found


def read_series(path: Path, max_points: int = MAX_POINTS, starts_s: Sequence[float] = ()) -> Series:
    """Read a metrics file of any size in one pass.

    Neighbouring records are averaged (counters: the last; ``*_min``, ``*_max`` and what checks before publication
    found: the extreme) so that between ``max_points`` and twice as many remain of a long run. The last record stays as
    it is; a ``publish_kl`` that it lacks is the last that was recorded before.

    Args:
        starts_s: see ``RunClock``.
    Raises:
        ReportError: the file cannot be read.
    """
    thinner = _Thinner(max_points)
    records = damaged = 0
    clock = RunClock(starts_s)
    try:
        for line in read_lines(path):
            if is_blank(line):
                continue
            value = parse_metrics_line(line)
            if value is None:
                damaged += 1
                continue
            record = dict(_numbers(value))
            records += 1
            if math.isfinite(record.get(ELAPSED, math.nan)):
                record[ELAPSED] = clock.seconds(record[ELAPSED], record.get(TIME_KEY))
            thinner.add(record)
    except OSError as error:
        raise ReportError(f"cannot read {path}: {error.strerror}") from error
    return Series(_with_clock(thinner.columns()), records, damaged)


class _Thinner:
    """Collects records and keeps averages of ``stride`` neighbours, the stride doubling as the run grows."""

    def __init__(self, max_points: int) -> None:
        self._max_points = max_points
        self._stride = 1
        self._chunk: list[dict[str, float]] = []
        self._last: dict[str, float] = {}
        self._states: dict[str, float] = {}
        self._points: dict[str, Floats] = {}
        self._count = 0

    def add(self, record: dict[str, float]) -> None:
        self._chunk.append(record)
        self._last = record
        self._states |= {name: value for name, value in record.items() if _kind(name) in _STATES}
        if len(self._chunk) >= max(_CHUNK_RECORDS, self._stride):
            self._fold()

    def columns(self) -> dict[str, Floats]:
        """The points; the last record is one of its own, so that where a run ended is exact."""
        if self._stride > 1:
            self._chunk = self._chunk[:-1]
            self._fold()
            self._chunk, self._stride = [self._states | self._last], 1
        self._fold()
        return self._points

    def _fold(self) -> None:
        """Reduce the waiting records to points, then halve the points until few enough remain."""
        if not self._chunk:
            return
        names = list(dict.fromkeys([*self._points, *(name for record in self._chunk for name in record)]))[:MAX_COLUMNS]
        groups = math.ceil(len(self._chunk) / self._stride)
        for name in names:
            fresh = np.array([record.get(name, math.nan) for record in self._chunk])
            old = self._points.get(name)
            old = np.full(self._count, math.nan) if old is None else old
            self._points[name] = np.concatenate([old, _reduce(name, fresh, self._stride)])
        self._count += groups
        self._chunk = []
        while self._count > 2 * self._max_points:
            self._points = {name: _reduce(name, values, 2) for name, values in self._points.items()}
            self._count = math.ceil(self._count / 2)
            self._stride *= 2


def _reduce(name: str, values: Floats, factor: int) -> Floats:
    """[n] -> [⌈n / factor⌉]: one number for each group of neighbours, NaN only where all of them are."""
    if factor == 1:
        return values
    padded = np.concatenate([values, np.full(-len(values) % factor, math.nan)]).reshape(-1, factor)
    if name in _MONOTONE or name.endswith("_max") or _kind(name) in _PEAKS:
        return np.asarray(np.fmax.reduce(padded, axis=1))
    if name.endswith("_min"):
        return np.asarray(np.fmin.reduce(padded, axis=1))
    there = ~np.isnan(padded)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(there, padded, 0.0).sum(axis=1) / there.sum(axis=1))


def _kind(name: str) -> str:
    """A metric's name without the scheme."""
    return name.partition("/")[0]


def _with_clock(columns: dict[str, Floats]) -> dict[str, Floats]:
    """Without the trainer's own clock, seconds since the first record take its place."""
    if ELAPSED not in columns and "wall_time_s" in columns:
        columns[ELAPSED] = columns["wall_time_s"] - columns["wall_time_s"][0]
    return columns


def _numbers(record: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if name.startswith("actor_steps_per_s/"):
            continue  # of single actors, for who watches: no figure shows them, and they are many
        if isinstance(value, float):
            yield name, value
        elif isinstance(value, int):
            yield name, _as_float(value)
        elif isinstance(value, str) and value in _NON_FINITE:
            yield name, _NON_FINITE[value]


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)
