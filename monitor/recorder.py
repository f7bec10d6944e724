"""A run's metrics: ``metrics.jsonl``, one JSON object a line, and TensorBoard events.

Reading is strict in ``read_metrics`` and tolerant line by line in ``parse_metrics_line``.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from accel.monitor.errors import RecorderError
from accel.monitor.event_file import EventFile
from accel.monitor.line_file import LineFile, read_lines

Metric = float | int | bool | str | None | np.generic
Record = dict[str, float | int | bool | str | None]

METRICS_FILE = "metrics.jsonl"
STEP_KEY = "env_steps"
TIME_KEY = "wall_time_s"
logger = logging.getLogger(__name__)
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Recorder:
    """Appends metrics of a run to its directory.

    Every record reaches ``metrics.jsonl`` as one whole line in one write, so a kill loses none of it. TensorBoard
    events are buffered until ``tensorboard_interval_s`` has passed, ``max_pending`` records wait, or ``close``, so that
    a short run does not import TensorBoard while it trains. Where either cannot be written, a warning says so once and
    the run goes on: without TensorBoard from then on, and without the lines that did not fit.
    """

    def __init__(
        self,
        directory: Path,
        *,
        resume_env_steps: int | None = None,
        tensorboard: bool = True,
        tensorboard_interval_s: float = 10.0,
        max_pending: int = 1024,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the files for appending.

        Args:
            directory: an existing run directory.
            resume_env_steps: the checkpoint's step count when a run is resumed: later records are removed, because
                their steps will be repeated.
            tensorboard: whether to write event files as well.
            tensorboard_interval_s: seconds between writes of events.
            max_pending: most records that are buffered.
            clock: Unix time in seconds.
        Raises:
            RecorderError: the directory cannot be written, or its metrics file is not one of ours.
        """
        self._path = directory / METRICS_FILE
        self._file = LineFile(self._path)
        self._directory = directory
        self._clock = clock
        self._tensorboard = tensorboard
        self._interval_s = tensorboard_interval_s
        self._max_pending = max_pending
        self._purge_step = None if resume_env_steps is None else resume_env_steps + 1
        self._pending: list[tuple[float, int, dict[str, float]]] = []
        self._events: EventFile | None = None
        self._flushed_s = clock()
        self._closed = False
        try:
            with self._path.open("ab+") as file:
                _truncate(self._path, file.fileno(), resume_env_steps)
        except OSError as error:
            raise RecorderError(f"cannot write {self._path}: {error.strerror}; choose a writable directory") from error

    def record(self, env_steps: int, metrics: Mapping[str, Metric]) -> None:
        """Append one record.

        Args:
            env_steps: how far the run is; not less than in the record before.
            metrics: by name, ``name/scheme`` where of one scheme. NaN and infinities become the strings ``"nan"``,
                ``"inf"`` and ``"-inf"`` in the JSON, which has no such numbers; ``read_metrics`` turns them back.
        Raises:
            RecorderError: the recorder is closed, a value is no scalar or a name is reserved.
        """
        if self._closed:
            raise RecorderError(f"{self._path} is closed; nothing can be recorded")
        now_s = self._clock()
        line: Record = {STEP_KEY: int(env_steps), TIME_KEY: round(now_s, 3)}
        scalars: dict[str, float] = {}
        for name, metric in metrics.items():
            if name in (STEP_KEY, TIME_KEY):
                raise RecorderError(f"{name!r} is set by the recorder itself; name the metric otherwise")
            value = metric.item() if isinstance(metric, np.generic) else metric
            if isinstance(value, int | float):
                scalars[name] = float(value)
                line[name] = value if isinstance(value, int) or math.isfinite(value) else str(value)
            elif value is None or isinstance(value, str):
                line[name] = value
            else:
                raise RecorderError(f"metric {name!r} is a {type(value).__name__}; needs a number, string or None")
        self._file.append((json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n").encode())
        if self._tensorboard:
            self._pending.append((now_s, int(env_steps), scalars))
            if now_s - self._flushed_s >= self._interval_s or len(self._pending) >= self._max_pending:
                self.flush()

    def flush(self) -> None:
        """Write the buffered TensorBoard events now."""
        self._flushed_s = self._clock()
        if not self._pending:
            return
        try:
            if self._events is None:
                self._events = EventFile(self._directory, purge_step=self._purge_step)
            for wall_time_s, step, scalars in self._pending:
                self._events.add_scalars(wall_time_s, step, scalars)
            self._events.flush()
        except (OSError, ImportError) as error:
            logger.warning("TensorBoard events are no longer written: %s", error)
            self._tensorboard = False
            if self._events is not None:
                self._events.close()
                self._events = None
        self._pending.clear()

    def close(self) -> None:
        """Write what is buffered and close the files; closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        self.flush()
        if self._events is not None:
            self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RunClock:
    """Seconds of training over all parts of a run, as ``elapsed_s`` of a resumed part counts from zero again.

    Args:
        starts_s: Unix times at which processes started to work on the run. One that resumes it may write its first
            record after more seconds than the part before it had counted.
    Attributes:
        earlier_s: of the parts before the present one.
    """

    def __init__(self, starts_s: Sequence[float]) -> None:
        self.earlier_s = 0.0
        self._starts_s, self._part_s, self._written_s = starts_s, 0.0, -math.inf

    def seconds(self, elapsed_s: float, written_s: float | None) -> float:
        """Of the next record, which counts ``elapsed_s`` and was written at a Unix time."""
        before_s = self._written_s
        if written_s is not None:
            self._written_s = written_s
        if elapsed_s < self._part_s or any(before_s < start_s <= self._written_s for start_s in self._starts_s):
            self.earlier_s += self._part_s
        self._part_s = elapsed_s
        return self.earlier_s + elapsed_s


def read_metrics(path: Path) -> Iterator[Record]:
    """The records of a ``metrics.jsonl``, oldest first, one in memory at a time; a half-written last line is left out.

    A string that names a non-finite number is returned as that number. ``report/series.py`` reads what may be
    damaged.

    Raises: RecorderError: the file is missing or a whole line is not a record.
    """
    try:
        for number, line in enumerate(read_lines(path), 1):
            if line.endswith(b"\n"):
                record = _parse(path, number, line)
                yield {k: _NON_FINITE.get(v, v) if isinstance(v, str) else v for k, v in record.items()}
    except OSError as error:
        raise RecorderError(f"cannot read {path}: {error.strerror}") from error


def _truncate(path: Path, descriptor: int, resume_env_steps: int | None) -> None:
    """Cut off a half-written last line, and on resume the records after ``resume_env_steps``, a line at a time.

    A damaged line inside, which a crash of the machine may leave, is no reason not to resume.
    """
    size, keep, damaged = os.fstat(descriptor).st_size, 0, 0
    if not size:
        return
    for number, line in enumerate(read_lines(path), 1):
        if not line.endswith(b"\n"):
            break
        if resume_env_steps is not None:
            record = _parse(path, number, line) if number == 1 else parse_metrics_line(line)
            damaged += record is None
            steps = None if record is None else record[STEP_KEY]
            if isinstance(steps, int) and steps > resume_env_steps:
                break
        keep += len(line)
    if damaged:
        logger.warning("%s has %d damaged lines, which are skipped", path, damaged)
    if keep < size:
        os.ftruncate(descriptor, keep)


def _parse(path: Path, number: int, line: bytes) -> Record:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RecorderError(f"{path}, line {number} is not JSON; move the file away to continue") from error
    if not isinstance(record, dict) or STEP_KEY not in record:
        raise RecorderError(f"{path}, line {number} has no {STEP_KEY!r}: not a metrics file; move it away to continue")
    return record


def parse_metrics_line(line: bytes) -> dict[str, object] | None:
    """The record of one line of ``metrics.jsonl``; None for a damaged one.

    A record is a JSON object with a finite number of environment steps, on a line that ends with a line break: a last
    line without one is incomplete, or still being written. Check ``is_blank`` first: blank lines are neither.
    """
    if not line.endswith(b"\n"):
        return None
    try:
        value = json.loads(line)
        steps = value[STEP_KEY] if isinstance(value, dict) else None
        whole = isinstance(steps, int | float) and not isinstance(steps, bool) and math.isfinite(steps)
    except (ValueError, RecursionError, KeyError, OverflowError):
        return None
    return value if whole else None


def is_blank(line: bytes) -> bool:
    """Whether a line holds nothing at all."""
    return not line.strip()
