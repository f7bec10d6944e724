"""Shows how training, playing or exporting progresses: live on a terminal, line by line elsewhere, or not at all."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from accel.display.text import CURVE_POINTS, count, duration, format_return, lag_number, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

_FIRST_LINE_INTERVAL_S = 1.0
_LAST_LINE_INTERVAL_S = 30.0
_LIVE_INTERVAL_S = 0.5


@dataclass(frozen=True)
class TrainingStatus:
    """How far training is.

    Attributes:
        elapsed_s: seconds of training so far.
        env_steps: valid steps consumed by the learner. total_env_steps: how many it will be at most.
        env_steps_per_s: their rate since the last status.
        episodes: finished training episodes. return_mean: mean return of the last ones, None before the first.
        return_target: the mean return at which the run stops, if it does.
        lag_min, lag_mean, lag_max: policy lag in versions since the last status, None without an unroll.
        learner_shares: each phase's share of the learner's time since the last status, in [0, 1], in order.
        actor_shares: the same over all actors.
        scheme: compression scheme of the actors' policy. policy_version: the newest.
        actors_alive: of ``actors``. dropped_unrolls: too old to learn from, so far.
    """

    elapsed_s: float
    env_steps: int
    total_env_steps: int
    env_steps_per_s: float
    episodes: int
    return_mean: float | None
    return_target: float | None
    lag_min: float | None
    lag_mean: float | None
    lag_max: float | None
    learner_shares: Mapping[str, float]
    actor_shares: Mapping[str, float]
    scheme: str
    policy_version: int
    actors_alive: int
    actors: int
    dropped_unrolls: int = 0

    @classmethod
    def from_record(
        cls, record: Mapping[str, object], *, total_env_steps: int, return_target: float | None, actors: int
    ) -> Self:
        """The status in a flat metrics record of the trainer; shares are named ``learner_PHASE_share``.

        Raises: KeyError for a record without ``elapsed_s``, ``env_steps``, ``env_steps_per_s``, ``episodes``,
        ``updates``, ``scheme`` or ``actors_alive``; TypeError for one that is no number.
        """
        return cls(
            elapsed_s=_number(record["elapsed_s"]),
            env_steps=int(_number(record["env_steps"])),
            total_env_steps=total_env_steps,
            env_steps_per_s=_number(record["env_steps_per_s"]),
            episodes=int(_number(record["episodes"])),
            return_mean=_optional(record.get("return_mean")),
            return_target=return_target,
            lag_min=_optional(record.get("lag_min")),
            lag_mean=_optional(record.get("lag_mean")),
            lag_max=_optional(record.get("lag_max")),
            learner_shares=_shares(record, "learner_"),
            actor_shares=_shares(record, "actor_"),
            scheme=str(record["scheme"]),
            policy_version=int(_number(record["updates"])),
            actors_alive=int(_number(record["actors_alive"])),
            actors=actors,
            dropped_unrolls=int(_number(record.get("dropped_unrolls", 0))),
        )

    @property
    def remaining_s(self) -> float | None:
        """Seconds until ``total_env_steps`` at the present rate; None while nothing moves."""
        left = max(self.total_env_steps - self.env_steps, 0)
        return left / self.env_steps_per_s if self.env_steps_per_s > 0 else None


@dataclass(frozen=True)
class PlayingStatus:
    """How far playing is.

    Attributes:
        episodes: finished ones, of ``total_episodes``; a total of 0 or 1 is not worth counting.
        steps: of all environments together.
    """

    episodes: int
    total_episodes: int
    steps: int


Status = TrainingStatus | PlayingStatus


class Progress(Protocol):
    """Displays one stage of work after another. An output that cannot be written is given up; the work continues."""

    def begin(self, stage: str) -> None:
        """A stage begins, such as ``compressing as int8``; the one before is over."""

    def advance(self, status: Status) -> None:
        """Display the stage's status if it is time to; cheap otherwise, so call it as often as it changes."""

    def note(self, message: str) -> None:
        """Display a message permanently, above a live display."""

    def close(self) -> None:
        """Display the last status and leave the terminal in order; closing twice is fine."""


class SilentProgress:
    """Displays nothing."""

    def begin(self, stage: str) -> None:
        """Nothing."""

    def advance(self, status: Status) -> None:
        """Nothing."""

    def note(self, message: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def open_progress(
    stream: TextIO, *, columns: int | None = None, clock: Callable[[], float] = time.monotonic
) -> Progress:
    """The display that suits an output: live on a terminal, else lines.

        with closing(open_progress(sys.stderr)) as progress:
            evaluate(run, progress=progress)

    Args:
        stream: standard output or standard error.
        columns: width of the terminal behind ``stream`` where the stream itself is a pipe, as under mpirun; None
            when there is no terminal behind it.
        clock: seconds, monotonic.
    """
    if (stream.isatty() or columns is not None) and os.environ.get("TERM", "") != "dumb":
        return LiveProgress(stream, columns=None if stream.isatty() else columns, clock=clock)
    return LineProgress(stream, clock=clock)


class ProgressLogHandler(logging.Handler):
    """Displays log records as notes, so that they do not break a live display."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        """Display one record."""
        self._progress.note(self.format(record))


class LineProgress:
    """A line for each stage, one after 1, 2, 4, 8, 16 more seconds and every 30 s from then on, and one at the end."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Args: as ``open_progress``."""
        self._stream, self._clock = stream, clock
        self._stage = ""
        self._began_s, self._next_s, self._interval_s = clock(), -math.inf, _FIRST_LINE_INTERVAL_S
        self._last: Status | None = None
        self._broken = False

    def begin(self, stage: str) -> None:
        """Write the stage's name."""
        self._stage, self._last = stage, None
        self._began_s, self._interval_s = self._clock(), _FIRST_LINE_INTERVAL_S
        self._next_s = self._began_s + self._interval_s
        self._write(stage)

    def advance(self, status: Status) -> None:
        """Write a line if the interval is over."""
        self._last = status
        now_s = self._clock()
        if now_s >= self._next_s:
            self._interval_s = min(2 * self._interval_s, _LAST_LINE_INTERVAL_S)
            self._next_s = now_s + self._interval_s
            self._write_last()

    def note(self, message: str) -> None:
        """Write the message."""
        self._write(message)

    def close(self) -> None:
        """Write the last status if it was not written yet."""
        self._write_last()

    def _write_last(self) -> None:
        if self._last is not None:
            self._write(status_line(self._stage, self._last, self._clock() - self._began_s))
            self._last = None

    def _write(self, line: str) -> None:
        if not (self._broken or self._stream.closed):
            try:
                self._stream.write(f"{printable(line, self._stream.encoding)}\n")
                self._stream.flush()
            except OSError:
                self._broken = True


class LiveProgress:
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
        """Args: as ``open_progress``; columns: None asks the terminal; interval_s: least seconds between drawings."""
        self._stream, self._columns = stream, columns
        self._interval_s, self._clock = interval_s, clock
        self._stage = ""
        self._began_s, self._next_s = clock(), -math.inf
        self._last: Status | None = None
        self._returns: list[float] = []
        self._console: Console | None = None
        self._live: Live | None = None
        self._broken = False

    def begin(self, stage: str) -> None:
        """Draw the stage's name in place of the stage before."""
        self._guarded(self._end_stage)
        self._stage, self._last, self._returns = stage, None, []
        self._began_s, self._next_s = self._clock(), -math.inf
        self._guarded(self._draw)

    def advance(self, status: Status) -> None:
        """Draw if the interval is over."""
        self._last = status
        now_s = self._clock()
        if now_s >= self._next_s:
            self._next_s = now_s + self._interval_s
            if isinstance(status, TrainingStatus):
                self._remember(status.return_mean)
            self._guarded(self._draw)

    def note(self, message: str) -> None:
        """Write the message above the panel."""
        self._guarded(lambda: self._print(message))

    def close(self) -> None:
        """End the stage, show the cursor and go to the next line."""
        self._guarded(self._end_stage)

    def _end_stage(self) -> None:
        if isinstance(self._last, TrainingStatus):
            self._draw()
        live, self._live, self._last = self._live, None, None
        if live is not None:
            live.stop()

    def _print(self, message: str) -> None:
        console = self._open()
        console.print(printable(message, console.encoding), markup=False, highlight=False, soft_wrap=True)

    def _remember(self, return_mean: float | None) -> None:
        """Keep the course of the return in bounded memory: at twice the points that are drawn, every other one goes."""
        if return_mean is not None and math.isfinite(return_mean):
            self._returns.append(return_mean)
            if len(self._returns) > 2 * CURVE_POINTS:
                self._returns = self._returns[1::2]

    def _draw(self) -> None:
        from rich.live import Live

        from accel.display.panel import playing_panel, training_panel

        console = self._open()
        if isinstance(self._last, TrainingStatus):
            panel = training_panel(self._stage, self._last, self._returns, console)
        else:
            panel = playing_panel(self._stage, self._last, self._clock() - self._began_s, console)
        if self._live is None:
            self._live = Live(
                console=console,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start()
        self._live.transient = not isinstance(self._last, TrainingStatus)
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


def status_line(stage: str, status: Status, elapsed_s: float) -> str:
    """One plain line with everything.

    Args:
        stage: what is going on.
        status: how far it is.
        elapsed_s: seconds since the stage began; training counts its own.
    """
    if isinstance(status, PlayingStatus):
        return " | ".join([stage, duration(elapsed_s), *playing_counts(status)])
    mean = "no episode finished yet"
    if status.return_mean is not None:
        mean = f"return {format_return(status.return_mean)} ({status.episodes:,} episodes)"
    lags = (status.lag_min, status.lag_mean, status.lag_max)
    parts = [
        stage,
        duration(status.elapsed_s),
        f"{count(status.env_steps)}/{count(status.total_env_steps)} steps",
        f"{count(status.env_steps_per_s)} steps/s",
        mean,
        f"lag {'-' if status.lag_mean is None else '/'.join(map(lag_number, lags))}",
        f"learner {' '.join(_largest(status.learner_shares, 4))}",
        f"actors {' '.join(_largest(status.actor_shares, 4))}",
        status.scheme,
    ]
    if status.actors_alive < status.actors:
        parts.append(f"{status.actors_alive} of {status.actors} actors alive")
    if status.dropped_unrolls:
        parts.append(f"{status.dropped_unrolls:,} unrolls dropped")
    return " | ".join(parts)


def playing_counts(status: PlayingStatus) -> list[str]:
    """Episodes, where there are several, and steps."""
    steps = f"{status.steps:,} steps"
    many = status.total_episodes > 1
    return [f"{status.episodes} of {status.total_episodes} episodes", steps] if many else [steps]


def _largest(shares: Mapping[str, float], number: int) -> list[str]:
    names = sorted((name for name in shares if shares[name] >= 0.005), key=lambda name: -shares[name])
    return [f"{name} {shares[name]:.0%}" for name in names[:number]]


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return value


def _optional(value: object) -> float | None:
    return None if value is None else _number(value)


def _shares(record: Mapping[str, object], prefix: str) -> dict[str, float]:
    suffix = "_share"
    return {
        name.removeprefix(prefix).removesuffix(suffix): _number(value)
        for name, value in record.items()
        if name.startswith(prefix) and name.endswith(suffix)
    }
