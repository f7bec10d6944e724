"""A run's ``metrics.jsonl`` as columns: thinned to bounded memory, damaged lines skipped and counted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accel.errors import ReportError
from accel.monitor.line_file import read_lines
from accel.monitor.recorder import TIME_KEY, parse_metrics_line

Floats = NDArray[np.float64]
Record = dict[str, float]

MAX_POINTS = 4096
MAX_COLUMNS = 512
ELAPSED = "elapsed_s"
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True, eq=False)
class Series:
    """What a run recorded, oldest first.

    Attributes:
        columns: [n] float64 by metric name; NaN where a record lacks the metric. ``elapsed_s`` goes on growing across
            resumes, unlike in the file.
        records: how many whole records the file holds; n is about twice ``MAX_POINTS`` at most.
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

    Of a long run neighbouring records become one, with the last value of each metric, so that between ``max_points``
    and twice as many remain.

    Args:
        starts_s: Unix times at which processes started to work on the run. One that resumes it may write its first
            record after more seconds than the part before it had counted.
    Raises:
        ReportError: the file cannot be read.
    """
    found = Counter[str]()

    def records() -> Iterator[Record]:
        for line in read_lines(path):
            if line.strip():
                value = parse_metrics_line(line)
                found["damaged" if value is None else "whole"] += 1
                if value is not None:
                    yield dict(_numbers(value))

    try:
        stride = max(sum(1 for _ in read_lines(path)) // max_points, 1)
        points, neighbours = list[Record](), Record()
        for number, record in enumerate(_continued(records(), starts_s)):
            neighbours |= record
            if number % stride == 0:
                points.append(neighbours)
                neighbours = {}
    except OSError as error:
        raise ReportError(f"cannot read {path}: {error.strerror}") from error
    points += [neighbours] if neighbours else []
    names = list(dict.fromkeys(name for point in points for name in point))[:MAX_COLUMNS]
    columns = {name: np.array([point.get(name, math.nan) for point in points]) for name in names}
    return Series(columns, found["whole"], found["damaged"])


def _continued(records: Iterator[Record], starts_s: Sequence[float]) -> Iterator[Record]:
    """With ``elapsed_s`` over all parts of a run, as that of a resumed part counts from zero again."""
    earlier_s, part_s, written_s = 0.0, 0.0, -math.inf
    for record in records:
        elapsed_s = record.get(ELAPSED, math.nan)
        if math.isfinite(elapsed_s):
            before_s, written_s = written_s, record.get(TIME_KEY, written_s)
            if elapsed_s < part_s or any(before_s < start_s <= written_s for start_s in starts_s):
                earlier_s += part_s
            part_s = elapsed_s
            record[ELAPSED] = earlier_s + elapsed_s
        yield record


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
