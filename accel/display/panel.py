"""The panels of the live display. Imports rich, so it is loaded with the first drawing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from accel.display.status import PlayingStatus, TrainingStatus
from accel.display.text import CURVE_POINTS, curve, duration, printable

_BAR_WIDTH = 24


class PipeConsole(Console):
    """A console whose closed pipe is an error for its caller, not the end of the process."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError again."""
        raise BrokenPipeError


def training_panel(title: str, status: TrainingStatus, returns: Sequence[float], console: Console) -> Group:
    """A headline and a line for each part of the status, cut to the console's width.

    Args:
        title: what is trained. returns: the course of the mean return, oldest first. console: tells its encoding.
    """
    plain = _is_plain(console)
    at_most = "" if status.return_target is None else "at most "
    left = f"{duration(status.elapsed_s)} elapsed, {at_most}{duration(status.remaining_s)} left"
    headline = Text.assemble((title, "bold"), f"  {status.scheme}  version {status.updates:,}  ", (left, "dim"))
    drawn = {"steps": _bar(status.share_done, plain), "return": "" if plain else curve(returns, CURVE_POINTS)}
    rows = Table.grid(padding=(0, 2))
    overflow: Literal["crop", "ellipsis"] = "crop" if plain else "ellipsis"
    rows.add_column(style="dim", no_wrap=True, overflow=overflow)
    rows.add_column(no_wrap=True, overflow=overflow)
    for label, text in status.parts().items():
        rows.add_row(label, _shown(f"{text}  {drawn[label]}" if drawn.get(label) else text, plain))
    for warning in status.warnings():
        rows.add_row("", Text(warning, "yellow"))
    return Group(_cut(headline, plain), rows)


def playing_panel(stage: str, status: PlayingStatus | None, elapsed_s: float, console: Console) -> Text:
    """One line about a stage: its name and, once it has a status, a bar over episodes, counts and elapsed time."""
    plain = _is_plain(console)
    parts = [stage]
    if status is not None:
        parts += [] if status.share_done is None else [_bar(status.share_done, plain)]
        parts += [", ".join(status.counts()), duration(elapsed_s)]
    return _cut(Text("  ".join(parts)), plain)


def _is_plain(console: Console) -> bool:
    return not console.encoding.lower().startswith("utf")


def _shown(text: str, plain: bool) -> Text:
    return Text(printable(text, "ascii") if plain else text)


def _cut(line: Text, plain: bool) -> Text:
    if plain:
        line.plain = printable(line.plain, "ascii")
    line.no_wrap, line.overflow = True, "crop" if plain else "ellipsis"
    return line


def _bar(share: float, plain: bool) -> str:
    filled = int(min(max(share, 0.0), 1.0) * _BAR_WIDTH)
    full, empty = ("=", "-") if plain else ("━", "─")
    return full * filled + empty * (_BAR_WIDTH - filled)
