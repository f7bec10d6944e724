"""A run's metrics: ``metrics.jsonl``, one JSON object a line, and TensorBoard events."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

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
EVENTS_INTERVAL_S, MAX_PENDING = 10.0, 1024
"""Seconds between writes of TensorBoard events, and records that wait for one at most."""


class Recorder:
    """Appends metrics of a run to its directory.

    Every record reaches ``metrics.jsonl`` as one whole line in one write, so a kill loses none of it. TensorBoard
    events are buffered until ``EVENTS_INTERVAL_S`` have passed, ``MAX_PENDING`` records wait, or ``close``, so that a
    short run does not import TensorBoard while it trains. Where either cannot be written, a warning says so once and
    the run goes on: without TensorBoard from then on, and without the lines that did not fit.
    """

    def __init__(
        self, directory: Path, *, resume_env_steps: int | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        """Open the files for appending.

        Args:
            directory: an existing run directory.
            resume_env_steps: the checkpoint's step count when a run is resumed: later records are removed, because
                their steps will be repeated.
            clock: Unix time in seconds.
        Raises:
            RecorderError: the directory cannot be written, or its metrics file is not one of ours.
        """
        self._path = directory / METRICS_FILE
        self._file = LineFile(self._path)
        self._clock = clock
        self._tensorboard = True
        self._purge_step = None if resume_env_steps is None else resume_env_steps + 1
        self._pending: list[tuple[float, int, dict[str, float]]] = []
        self._events: EventFile | None = None
        self._flushed_s = clock()
        try:
            with self._path.open("ab+"):
                self._cut_off(resume_env_steps)
        except OSError as error:
            raise RecorderError(f"cannot write {self._path}: {error.strerror}; choose a writable directory") from error

    def record(self, env_steps: int, metrics: Mapping[str, Metric]) -> None:
        """Append one record.

        Args:
            env_steps: how far the run is; not less than in the record before.
            metrics: by name, ``name/scheme`` where of one scheme. NaN and infinities become the strings ``"nan"``,
                ``"inf"`` and ``"-inf"`` in the JSON, which has no such numbers.
        Raises:
            RecorderError: a value is no scalar, or a name is reserved.
        """
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
            if now_s - self._flushed_s >= EVENTS_INTERVAL_S or len(self._pending) >= MAX_PENDING:
                self.flush()

    def flush(self) -> None:
        """Write the buffered TensorBoard events now."""
        self._flushed_s = self._clock()
        if not self._pending:
            return
        try:
            if self._events is None:
                self._events = EventFile(self._path.parent, purge_step=self._purge_step)
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
        self.flush()
        if self._events is not None:
            self._events.close()

    def _cut_off(self, resume_env_steps: int | None) -> None:
        """Cut off a half-written last line, and on resume the records after ``resume_env_steps``.

        A damaged line inside, which a crash of the machine may leave, is no reason not to resume.
        """
        damaged = 0

        def is_kept(line: bytes) -> bool:
            nonlocal damaged
            record = parse_metrics_line(line)
            damaged += record is None
            return record is None or cast("float", record[STEP_KEY]) <= steps

        steps = math.inf
        if resume_env_steps is not None:
            steps, first = resume_env_steps, next(read_lines(self._path), b"")
            if first.endswith(b"\n") and parse_metrics_line(first) is None:
                raise RecorderError(f"{self._path}, line 1 is no record of metrics; move the file away to continue")
        self._file.keep_while(is_kept)
        if damaged and resume_env_steps is not None:
            logger.warning("%s has %d damaged lines, which are skipped", self._path, damaged)


def parse_metrics_line(line: bytes) -> dict[str, object] | None:
    """The record of one line of ``metrics.jsonl``; None for a damaged one.

    A record is a JSON object with a finite number of environment steps, on a line that ends with a line break: a last
    line without one is incomplete, or still being written. A blank line counts as damaged.
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
