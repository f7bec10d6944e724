"""The panels of the live display. Imports rich, so it is loaded with the first drawing."""

from __future__ import annotations

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from accel.display.status import PlayingStatus, TrainingStatus
from accel.display.text import duration

_BAR_WIDTH = 24


class PipeConsole(Console):
    """A console whose closed pipe is an error for its caller, not the end of the process."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError again."""
        raise BrokenPipeError


def training_panel(title: str, status: TrainingStatus, console: Console) -> Group:
    """A headline and a line for each part of the status, cut to the console's width."""
    at_most = "" if status.return_target is None else "at most "
    left = f"{duration(status.number('elapsed_s'))} elapsed, {at_most}{duration(status.remaining_s)} left"
    scheme = f"  {status.scheme}  version {status.number('updates'):,}  "
    headline = Text.assemble((title, "bold"), scheme, (left, "dim"), no_wrap=True, overflow="crop")
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True, overflow="crop")
    rows.add_column(no_wrap=True, overflow="crop")
    for label, text in status.parts().items():
        rows.add_row(label, Text(f"{text}  {_bar(status.share_done, console)}" if label == "steps" else text))
    for warning in status.warnings():
        rows.add_row("", Text(warning, "yellow"))
    return Group(headline, rows)


def playing_panel(stage: str, status: PlayingStatus | None, elapsed_s: float, console: Console) -> Text:
    """One line about a stage: its name and, once it has a status, a bar over episodes, counts and elapsed time."""
    parts = [stage]
    if status is not None:
        parts += [] if status.share_done is None else [_bar(status.share_done, console)]
        parts += [", ".join(status.counts()), duration(elapsed_s)]
    return Text("  ".join(parts), no_wrap=True, overflow="crop")


def _bar(share: float, console: Console) -> str:
    filled = int(min(max(share, 0.0), 1.0) * _BAR_WIDTH)
    full, empty = ("=", "-") if console.options.ascii_only else ("━", "─")
    return full * filled + empty * (_BAR_WIDTH - filled)
