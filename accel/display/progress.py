"""Shows how training, playing or exporting progresses: live on a terminal, line by line elsewhere, or not at all."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from accel.display.status import Status, TrainingStatus, status_line
from accel.display.text import replace_unknown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

_FIRST_LINE_INTERVAL_S = 1.0
_LAST_LINE_INTERVAL_S = 30.0
_LIVE_INTERVAL_S = 0.5


class Progress:
    """Displays one stage of work after another; this one displays nothing.

    An output that cannot be written is given up; the work continues.
    """

    def begin(self, stage: str) -> None:
        """A stage begins, such as ``compressing as int8``; the one before is over."""

    def advance(self, status: Status) -> None:
        """Display the stage's status if it is time to; cheap otherwise, so call it as often as it changes."""

    def note(self, message: str) -> None:
        """Display a message permanently, above a live display."""

    def close(self) -> None:
        """Display the last status and leave the terminal in order; closing twice is fine."""


def open_progress(stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> Progress:
    """The display that suits an output: live on a terminal, else lines.

        with closing(open_progress(sys.stderr)) as progress:
            evaluate(run, progress=progress)

    Args:
        stream: standard output or standard error.
        clock: seconds, monotonic.
    """
    if stream.isatty() and os.environ.get("TERM", "") != "dumb":
        return LiveProgress(stream, clock=clock)
    return LineProgress(stream, clock=clock)


class ProgressLogHandler(logging.Handler):
    """Displays log records as notes, so that they do not break a live display."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        """Display one record."""
        self._progress.note(self.format(record))


class _StreamProgress(Progress):
    """What displays on a stream have in common."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        replace_unknown(stream)
        self._stream, self._clock = stream, clock
        self._stage = ""
        self._last: Status | None = None
        self._began_s, self._next_s = clock(), -math.inf
        self._is_broken = False

    def _write(self, write: Callable[[], object]) -> None:
        """Give an output up that cannot be written."""
        if not (self._is_broken or self._stream.closed):
            try:
                write()
            except OSError:
                self._is_broken = True


class LineProgress(_StreamProgress):
    """A line for each stage, one after 1, 2, 4, 8, 16 more seconds and every 30 s from then on, and one at the end."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Args: as ``open_progress``."""
        super().__init__(stream, clock)
        self._interval_s = _FIRST_LINE_INTERVAL_S

    def begin(self, stage: str) -> None:
        """Write the stage's name."""
        self._stage, self._last = stage, None
        self._began_s, self._interval_s = self._clock(), _FIRST_LINE_INTERVAL_S
        self._next_s = self._began_s + self._interval_s
        self.note(stage)

    def advance(self, status: Status) -> None:
        """Write a line if the interval is over."""
        self._last = status
        now_s = self._clock()
        if now_s >= self._next_s:
            self._interval_s = min(2 * self._interval_s, _LAST_LINE_INTERVAL_S)
            self._next_s = now_s + self._interval_s
            self.close()

    def note(self, message: str) -> None:
        """Write the message."""
        self._write(lambda: (self._stream.write(f"{message}\n"), self._stream.flush()))

    def close(self) -> None:
        """Write the last status if it was not written yet."""
        if self._last is not None:
            self.note(status_line(self._stage, self._last, self._clock() - self._began_s))
            self._last = None


class LiveProgress(_StreamProgress):
    """A panel that is redrawn in place. Training's last panel stays; a playing stage's line is erased at its end.

    rich is imported with the first drawing.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        columns: int | None = None,
        interval_s: float = _LIVE_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: as ``open_progress``.

        columns: width of the terminal behind ``stream`` where that is a pipe, as under mpirun; None: it is one itself.
        interval_s: least seconds between drawings.
        """
        super().__init__(stream, clock)
        self._columns, self._interval_s = columns, interval_s
        self._console: Console | None = None
        self._live: Live | None = None

    def begin(self, stage: str) -> None:
        """Draw the stage's name in place of the stage before."""
        self.close()
        self._stage = stage
        self._began_s, self._next_s = self._clock(), -math.inf
        self._write(self._draw)

    def advance(self, status: Status) -> None:
        """Draw if the interval is over."""
        self._last = status
        now_s = self._clock()
        if now_s >= self._next_s:
            self._next_s = now_s + self._interval_s
            self._write(self._draw)

    def note(self, message: str) -> None:
        """Write the message above the panel."""
        self._write(lambda: self._open().print(message, markup=False, highlight=False, soft_wrap=True))

    def close(self) -> None:
        """End the stage, show the cursor and go to the next line."""
        self._write(self._end_stage)

    def _end_stage(self) -> None:
        if isinstance(self._last, TrainingStatus):
            self._draw()
        live, self._live, self._last = self._live, None, None
        if live is not None:
            live.stop()

    def _draw(self) -> None:
        from rich.live import Live

        from accel.display.panel import playing_panel, training_panel

        console = self._open()
        if self._live is None:
            self._live = Live(
                console=console,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start()
        status, self._live.transient = self._last, not isinstance(self._last, TrainingStatus)
        if isinstance(status, TrainingStatus):
            self._live.update(training_panel(self._stage, status, console), refresh=True)
        else:
            self._live.update(playing_panel(self._stage, status, self._clock() - self._began_s, console), refresh=True)

    def _open(self) -> Console:
        if self._console is None:
            from accel.display.panel import PipeConsole

            self._console = PipeConsole(
                file=self._stream, force_terminal=True, force_jupyter=False, width=self._columns, legacy_windows=False
            )
        return self._console
