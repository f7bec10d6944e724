"""``accel.watch``: follows a run from outside by its ``metrics.jsonl``, until the run has ended."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from accel.display.progress import Progress, open_progress
from accel.display.status import EvaluationStatus, TrainingStatus, status_line
from accel.display.text import duration, replace_unknown
from accel.errors import CheckpointError
from accel.monitor.line_file import open_lines
from accel.monitor.plain_text import one_line, without_controls
from accel.monitor.recorder import parse_metrics_line
from accel.runs.directory import RunDirectory
from accel.runs.summary import Summary
from accel.supervision.processes import is_running

FIRST_READ_BYTES = 1 << 20
"""Only the newest record is shown, so of a long file only the end is read."""
SILENCE_S = 60.0
_READ_S = 0.2
Record = dict[str, object]


@dataclass
class MetricsTail:
    """Reads the complete lines appended to a metrics file, which need not exist yet, since the last read."""

    path: Path
    _offset: int | None = field(default=None, init=False)
    _inode: int = field(default=0, init=False)

    def read(self) -> list[Record]:
        """New records, oldest first; starts over when the file was truncated (a resumed run) or replaced."""
        try:
            with open_lines(self.path) as file:
                status = os.fstat(file.fileno())
                if self._offset is None or status.st_ino != self._inode or status.st_size < self._offset:
                    self._offset, self._inode = max(status.st_size - FIRST_READ_BYTES, 0), status.st_ino
                    file.seek(self._offset)
                    self._offset += len(file.readline()) if self._offset else 0
                file.seek(self._offset)
                content = file.read()
        except OSError:
            return []
        whole = content.rfind(b"\n") + 1
        self._offset += whole
        records = map(parse_metrics_line, content[:whole].splitlines(keepends=True))
        return [record for record in records if record is not None]


def watch(
    path: Path,
    *,
    once: bool = False,
    stream: TextIO | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Show a run until it ends, from any process or host that sees its directory.

        accel.watch(Path("results/quickstart-1"))

    Args:
        path: the run directory.
        once: print the run's current status in one line and return.
        stream: standard output by default; a live display on a terminal, lines elsewhere.
        stopped: polled between reads; True ends watching.
    Returns:
        0 when the run has ended in order or, with ``once``, has a record; 1 otherwise, also for a run that has died.
    Raises:
        RunDirectoryError: the path is no run directory.
    """
    out = sys.stdout if stream is None else stream
    replace_unknown(out)
    watcher = _Watcher(path, out)
    return watcher.show_once() if once else watcher.follow(stopped)


class _Watcher:
    def __init__(self, path: Path, stream: TextIO) -> None:
        self._path = path
        self._stream = stream
        self._tail = MetricsTail(path / "metrics.jsonl")
        self._run = RunDirectory.open(path, read_only=True)
        self._config = self._run.read_config()
        self._silent_since, self._warned = time.monotonic(), False
        self._evaluation: EvaluationStatus | None = None

    def show_once(self) -> int:
        status = self._look()
        if status is None:
            self._say(f"{self._path}: no record yet")
            return 1
        self._say(status_line(self._title(), status))
        self._say(self._outcome() if self._ended() else self._death() or "running, or ended without a summary")
        return 0

    def follow(self, stopped: Callable[[], bool]) -> int:
        progress = open_progress(self._stream)
        progress.begin(self._title())
        died = ""
        try:
            while True:
                # Checked before reading, so that records written up to the summary are shown.
                ended = self._ended()
                if (status := self._look()) is not None:
                    progress.advance(status)
                died = "" if ended or status is not None else self._death()
                if ended or died or stopped():
                    break
                self._warn_of_silence(status is not None, progress)
                time.sleep(_READ_S)
        finally:
            progress.close()
        if ended or died:
            self._say(died or self._outcome())
        return 0 if ended else 1

    def _look(self) -> TrainingStatus | None:
        """The newest status since the last read, if there is one."""
        records = self._tail.read()
        for record in records:
            self._evaluation = EvaluationStatus.from_record(record) or self._evaluation
        target = self._config.get("stop_at_return")
        for record in reversed(records):
            try:
                return TrainingStatus(
                    {one_line(name): one_line(v) if isinstance(v, str) else v for name, v in record.items()},
                    total_env_steps=int(str(self._config.get("total_env_steps", 0))),
                    return_target=float(target) if isinstance(target, int | float) else None,
                    actors=max(int(str(self._config.get("actors", 1))), 1),
                    evaluated=self._evaluation,
                )
            except (KeyError, TypeError, ValueError, OverflowError):
                continue  # A record of other metrics: the one before it says more.
        return None

    def _ended(self) -> bool:
        """A summary is written in one piece at the very end, and removed when a run is resumed."""
        return (self._path / "summary.json").is_file()

    def _outcome(self) -> str:
        try:
            return Summary.read(self._path).text()
        except CheckpointError as error:
            return f"ended, but {error}"

    def _title(self) -> str:
        return one_line(str(self._config.get("env", self._path.name)))

    def _death(self) -> str:
        """A message if the run's process is gone without a summary; empty while it lives or runs on another host.

        A summary may be the last that it wrote, so it is looked for after the process.
        """
        starts = self._run.read_starts()
        pid = starts[-1].pid if starts else 0  # also where a damaged record tells nothing
        if not pid or starts[-1].host != socket.gethostname() or is_running(pid) or self._ended():
            return ""
        return (
            f"{self._path} has died: its process {pid} is gone and left no summary; continue it:\n"
            f"  accel train --resume {shlex.quote(str(self._path))}"
        )

    def _warn_of_silence(self, moved: bool, progress: Progress) -> None:
        """Whether a process on another host lives cannot be seen from here."""
        now = time.monotonic()
        if moved:
            self._silent_since, self._warned = now, False
        elif not self._warned and now - self._silent_since >= SILENCE_S:
            self._warned = True
            silence = duration(now - self._silent_since)
            progress.note(f"no record for {silence}: the run may have died; Ctrl-C ends watching")

    def _say(self, text: str) -> None:
        try:
            print(without_controls(text), file=self._stream, flush=True)
        except OSError:
            pass
