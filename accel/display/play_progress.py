"""What a user sees while a policy plays or is exported: a rich display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

from accel.display.text import duration, printable

if TYPE_CHECKING:
    from rich.progress import Progress

_FIRST_LINE_INTERVAL_S = 1.0
_LAST_LINE_INTERVAL_S = 30.0
_LIVE_INTERVAL_S = 0.25


class PlayProgress(Protocol):
    """Shows what is going on. Output that cannot be written is given up: the work goes on."""

    def begin(self, what: str, episodes: int = 0) -> None:
        """Something begins, with so many episodes; 0 for what has none."""

    def advance(self, episodes: int, steps: int) -> None:
        """So many episodes have ended, after so many steps of all environments together; cheap, called every step."""


class NoPlayProgress:
    """Shows nothing."""

    def begin(self, what: str, episodes: int = 0) -> None:
        """Nothing."""

    def advance(self, episodes: int, steps: int) -> None:
        """Nothing."""


class LinePlayProgress:
    """A line for everything that begins, and one after 1, 2, 4, 8, 16 more seconds and every 30 from there on."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """Args: stream: standard error; clock: seconds, monotonic."""
        self._stream, self._clock = stream, clock
        self._what, self._episodes = "", 0
        self._began_s = self._next_s = self._interval_s = 0.0

    def begin(self, what: str, episodes: int = 0) -> None:
        """Write that it begins."""
        self._what, self._episodes = what, episodes
        self._began_s, self._interval_s = self._clock(), _FIRST_LINE_INTERVAL_S
        self._next_s = self._began_s + self._interval_s
        self._write(what)

    def advance(self, episodes: int, steps: int) -> None:
        """Write a line if the interval is over."""
        now_s = self._clock()
        if now_s < self._next_s:
            return
        self._interval_s = min(2 * self._interval_s, _LAST_LINE_INTERVAL_S)
        self._next_s = now_s + self._interval_s
        self._write(f"{self._what}: {_figures(episodes, self._episodes, steps)}, {duration(now_s - self._began_s)}")

    def _write(self, line: str) -> None:
        try:
            self._stream.write(f"{printable(line, self._stream.encoding)}\n")
            self._stream.flush()
        except (OSError, ValueError):  # closed
            self._interval_s = _LAST_LINE_INTERVAL_S


class LivePlayProgress:
    """One line that is drawn over and over, and goes when all is done."""

    def __init__(self, stream: TextIO) -> None:
        """Args: stream: standard error, a terminal."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress: Progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeElapsedColumn(),
            console=Console(file=stream),
            transient=True,
            refresh_per_second=1 / _LIVE_INTERVAL_S,
        )
        self._episodes, self._next_s = 0, 0.0
        self._progress.start()

    def begin(self, what: str, episodes: int = 0) -> None:
        """Draw it in the place of what went before."""
        self._episodes = episodes
        for task in self._progress.task_ids:
            self._progress.remove_task(task)
        self._progress.add_task(what, total=episodes or None, figures="")

    def advance(self, episodes: int, steps: int) -> None:
        """Note it for the next drawing."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _LIVE_INTERVAL_S
        for task in self._progress.task_ids:
            self._progress.update(task, completed=episodes, figures=_figures(episodes, self._episodes, steps))

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._progress.stop()


def _figures(episodes: int, of: int, steps: int) -> str:
    """How far it is; what has one episode or none counts its steps alone."""
    return f"{episodes} of {of} episodes, {steps:,} steps" if of > 1 else f"{steps:,} steps"


@contextmanager
def showing(stream: TextIO) -> Iterator[PlayProgress]:
    """The display that suits a stream, until the block ends.

    with showing(sys.stderr) as progress:
        evaluate(run, progress=progress)
    """
    if not stream.isatty() or os.environ.get("TERM", "") == "dumb":
        yield LinePlayProgress(stream)
        return
    live = LivePlayProgress(stream)
    try:
        yield live
    finally:
        live.close()
