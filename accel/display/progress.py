"""What a user watches while a run trains: one live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TextIO

from accel.display.snapshot import ProgressSnapshot
from accel.display.text import CURVE_POINTS, printable, progress_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

_FIRST_LINE_INTERVAL_S = 1.0
_LAST_LINE_INTERVAL_S = 30.0
_LIVE_INTERVAL_S = 0.5


class Progress(Protocol):
    """Shows a run. Output that cannot be written, to a closed pipe for example, is given up: the run goes on."""

    def update(self, snapshot: ProgressSnapshot) -> None:
        """Show ``snapshot`` if it is time to; cheap when it is not."""

    def note(self, message: str) -> None:
        """Show a message for good, above a live display."""

    def close(self) -> None:
        """Show the last snapshot and leave the terminal in order; closing twice is fine."""


class NoProgress:
    """Shows nothing."""

    def update(self, snapshot: ProgressSnapshot) -> None:
        """Nothing."""

    def note(self, message: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def open_progress(
    title: str,
    stream: TextIO | None = None,
    *,
    columns: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """The display that suits where the output goes.

    Args:
        title: what is trained.
        stream: standard output by default.
        columns: width of the terminal behind ``stream`` where the stream itself is a pipe, as under mpirun; None
            when there is no terminal behind it.
        clock: seconds, monotonic.
    """
    stream = sys.stdout if stream is None else stream
    if (stream.isatty() or columns is not None) and os.environ.get("TERM", "") != "dumb":
        return LiveProgress(title, stream, columns=None if stream.isatty() else columns, clock=clock)
    return LineProgress(title, stream, clock=clock)


class ProgressLogHandler(logging.Handler):
    """Shows log records as notes, so that they do not tear a live display apart."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        """Show one record."""
        self._progress.note(self.format(record))


class LineProgress:
    """A line now and then: after 1, 2, 4, 8, 16 seconds and every 30 seconds from there on, and at the end."""

    def __init__(self, title: str, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """Args: as ``open_progress``."""
        self._title = title
        self._stream = stream
        self._clock = clock
        self._interval_s = _FIRST_LINE_INTERVAL_S
        self._next_s = -math.inf
        self._last: ProgressSnapshot | None = None
        self._shown: ProgressSnapshot | None = None
        self._broken = False

    def update(self, snapshot: ProgressSnapshot) -> None:
        """Write a line if the interval is over."""
        self._last = snapshot
        now_s = self._clock()
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._interval_s
        self._interval_s = min(2 * self._interval_s, _LAST_LINE_INTERVAL_S)
        self._show()

    def note(self, message: str) -> None:
        """Write the message."""
        self._write(message)

    def close(self) -> None:
        """Write the last snapshot if it was not written yet."""
        self._show()

    def _show(self) -> None:
        if self._last is not None and self._last is not self._shown:
            self._shown = self._last
            self._write(progress_line(self._title, self._last))

    def _write(self, line: str) -> None:
        if not (self._broken or self._stream.closed):
            try:
                self._stream.write(f"{printable(line, self._stream.encoding)}\n")
                self._stream.flush()
            except OSError:
                self._broken = True


class LiveProgress:
    """Six lines that are drawn over and over; rich is imported with the first snapshot."""

    def __init__(
        self,
        title: str,
        stream: TextIO,
        *,
        columns: int | None = None,
        interval_s: float = _LIVE_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: as ``open_progress``; columns: None asks the terminal; interval_s: least seconds between drawings."""
        self._title = title
        self._stream = stream
        self._columns = columns
        self._interval_s = interval_s
        self._clock = clock
        self._next_s = -math.inf
        self._returns: list[float] = []
        self._last: ProgressSnapshot | None = None
        self._console: Console | None = None
        self._live: Live | None = None
        self._broken = False

    def update(self, snapshot: ProgressSnapshot) -> None:
        """Draw if the interval is over."""
        self._last = snapshot
        now_s = self._clock()
        if now_s >= self._next_s:
            self._next_s = now_s + self._interval_s
            self._remember(snapshot)
            self._guarded(self._draw)

    def note(self, message: str) -> None:
        """Write the message above the display."""
        self._guarded(lambda: self._print(message))

    def close(self) -> None:
        """Draw the last snapshot, show the cursor and go to the next line."""
        if self._last is not None:
            self._guarded(self._draw)
        live, self._live, self._last = self._live, None, None
        if live is not None:
            self._guarded(live.stop)

    def _print(self, message: str) -> None:
        console = self._open()
        console.print(printable(message, console.encoding), markup=False, highlight=False, soft_wrap=True)

    def _remember(self, snapshot: ProgressSnapshot) -> None:
        """Keep the course of the return in bounded memory: at twice the points that are drawn, every other one goes."""
        if snapshot.return_mean is not None and math.isfinite(snapshot.return_mean):
            self._returns.append(snapshot.return_mean)
            if len(self._returns) > 2 * CURVE_POINTS:
                self._returns = self._returns[1::2]

    def _draw(self) -> None:
        from rich.live import Live

        from accel.display.panel import progress_panel

        console = self._open()
        if self._last is None:
            return
        panel = progress_panel(self._title, self._last, self._returns, console)
        if self._live is None:
            self._live = Live(
                console=console,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start()
        self._live.update(panel, refresh=True)

    def _open(self) -> Console:
        if self._console is None:
            from accel.display.panel import PipeConsole

            self._console = PipeConsole(
                file=self._stream, force_terminal=True, force_jupyter=False, width=self._columns, legacy_windows=False
            )
        return self._console

    def _guarded(self, write: Callable[[], object]) -> None:
        if not (self._broken or self._stream.closed):
            try:
                write()
            except OSError:
                self._broken = True
