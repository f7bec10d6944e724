"""A run's ``metrics.jsonl`` as columns: thinned to bounded memory, damaged lines skipped and counted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accel.errors import ReportError
from accel.monitor.line_file import read_lines
from accel.monitor.recorder import STEP_KEY, TIME_KEY, RunClock, is_blank, parse_metrics_line

Floats = NDArray[np.float64]
Record = dict[str, float]

MAX_POINTS = 4096
MAX_COLUMNS = 512
ELAPSED = "elapsed_s"
_MONOTONE = frozenset({STEP_KEY, ELAPSED, TIME_KEY, "updates", "episodes", "dropped_unrolls"})
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
    """Read a metrics file of any size.

    Neighbouring records are averaged (counters: the last; ``*_min`` and ``*_max``: the extreme) so that between
    ``max_points`` and twice as many remain of a long run. The last record stays as it is.

    Args:
        starts_s: see ``RunClock``.
    Raises:
        ReportError: the file cannot be read.
    """
    clock, found = RunClock(starts_s), Counter[str]()

    def records() -> Iterator[Record]:
        for line in read_lines(path):
            if is_blank(line):
                continue
            value = parse_metrics_line(line)
            found["damaged" if value is None else "whole"] += 1
            if value is not None:
                record = dict(_numbers(value))
                if math.isfinite(record.get(ELAPSED, math.nan)):
                    record[ELAPSED] = clock.seconds(record[ELAPSED], record.get(TIME_KEY))
                yield record

    try:
        stride = max(sum(1 for _ in read_lines(path)) // max_points, 1)
        points = list(_thinned(records(), stride))
    except OSError as error:
        raise ReportError(f"cannot read {path}: {error.strerror}") from error
    names = list(dict.fromkeys(name for point in points for name in point))[:MAX_COLUMNS]
    columns = {name: np.array([point.get(name, math.nan) for point in points]) for name in names}
    if ELAPSED not in columns and TIME_KEY in columns:  # seconds since the first record replace the trainer's clock
        with np.errstate(invalid="ignore"):  # no record of ours has an infinite time
            columns[ELAPSED] = columns[TIME_KEY] - columns[TIME_KEY][0]
    return Series(columns, found["whole"], found["damaged"])


def _thinned(records: Iterable[Record], stride: int) -> Iterator[Record]:
    """One record for each ``stride`` neighbours, and the last as it is, so that where a run ended is exact."""
    neighbours: list[Record] = []
    last: Record | None = None
    for record in records:
        if last is not None:
            neighbours.append(last)
        if len(neighbours) == stride:
            yield _merged(neighbours)
            neighbours = []
        last = record
    if neighbours:
        yield _merged(neighbours)
    if last is not None:
        yield last


def _merged(records: Sequence[Record]) -> Record:
    if len(records) == 1:
        return records[0]
    names = dict.fromkeys(name for record in records for name in record)
    return {name: _reduced(name, [record[name] for record in records if name in record]) for name in names}


def _reduced(name: str, values: Sequence[float]) -> float:
    """One number for those of neighbours; NaN only where all are."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return math.nan
    if name in _MONOTONE or name.endswith("_max"):
        return max(known)
    return min(known) if name.endswith("_min") else sum(known) / len(known)


def _numbers(record: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if name.startswith("actor_steps_per_s/"):
            continue  # of single actors, for who watches: no figure shows them, and they are many
        if isinstance(value, str):
            value = _NON_FINITE.get(value)
        if isinstance(value, int | float):
            try:
                yield name, float(value)
            except OverflowError:
                yield name, math.copysign(math.inf, value)
