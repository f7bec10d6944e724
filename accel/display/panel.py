"""The live progress display's lines. Imports rich; loaded with the first snapshot that is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console, Group
from rich.text import Text

from accel.display.snapshot import ProgressSnapshot
from accel.display.text import CURVE_POINTS, count, curve, duration, format_return, lag_number, printable

_LABEL_WIDTH = 9
_BAR_WIDTH = 24


class PipeConsole(Console):
    """A console whose closed pipe is an error for its caller, not the end of the process."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError again."""
        raise BrokenPipeError


def progress_panel(title: str, snapshot: ProgressSnapshot, returns: Sequence[float], console: Console) -> Group:
    """The live display's lines, each cut to the console's width.

    Args:
        title: what is trained.
        snapshot: how the run stands.
        returns: the course of the mean return, oldest first.
        console: tells width and encoding.
    """
    width, plain = console.width, not console.encoding.lower().startswith("utf")
    lines = [
        _headline(title, snapshot, width),
        _return_line(snapshot, returns, width, plain),
        _steps_line(snapshot, width, plain),
        _lag_line(snapshot),
        _shares_line("learner", snapshot.learner_shares, width),
        _shares_line("actors", snapshot.actor_shares, width),
    ]
    for line in lines:
        if plain:
            line.plain = printable(line.plain, "ascii")
        line.no_wrap = True
        line.overflow = "crop" if plain else "ellipsis"
    return Group(*lines)


def _headline(title: str, snapshot: ProgressSnapshot, width: int) -> Text:
    actors = f"{snapshot.actors_alive} of {snapshot.actors} actors"
    left = Text.assemble(
        (title, "bold"), f"  {snapshot.scheme}  ", (actors, "" if snapshot.actors_alive == snapshot.actors else "red")
    )
    at_most = "" if snapshot.return_target is None else "at most "
    right = f"{duration(snapshot.elapsed_s)} elapsed, {at_most}{duration(snapshot.remaining_s)} left"
    gap = width - left.cell_len - len(right)
    if gap >= 2:
        return left.append(" " * gap).append(right, "dim")
    return left.append(f"  {duration(snapshot.elapsed_s)}", "dim")


def _return_line(snapshot: ProgressSnapshot, returns: Sequence[float], width: int, plain: bool) -> Text:
    line = _label("return")
    if snapshot.return_mean is None:
        return line.append("no episode finished yet", "dim")
    line.append(format_return(snapshot.return_mean), "bold green")
    if snapshot.return_target is not None:
        line.append(f" of {format_return(snapshot.return_target)}")
    episodes = f"  {snapshot.episodes:,} episodes"
    if not plain:
        line.append("  ").append(curve(returns, min(CURVE_POINTS, width - line.cell_len - len(episodes))), "green")
    return line.append(episodes, "dim")


def _steps_line(snapshot: ProgressSnapshot, width: int, plain: bool) -> Text:
    line = _label("steps").append(count(snapshot.env_steps), "bold").append(f" of {count(snapshot.total_env_steps)}")
    rate = f"  {count(snapshot.env_steps_per_s)} steps/s"
    bar_width = min(_BAR_WIDTH, width - line.cell_len - len(rate) - 2)
    if bar_width >= 8:
        share = min(max(snapshot.env_steps / max(snapshot.total_env_steps, 1), 0.0), 1.0)
        filled = int(share * bar_width)
        full, empty = ("=", "-") if plain else ("━", "─")
        line.append("  ").append(full * filled, "cyan").append(empty * (bar_width - filled), "dim")
    return line.append(rate, "bold cyan")


def _lag_line(snapshot: ProgressSnapshot) -> Text:
    line = _label("lag")
    if snapshot.lag_mean is None:
        line.append("no unroll yet", "dim")
    else:
        line.append(f"min {lag_number(snapshot.lag_min)}, ")
        line.append(f"mean {lag_number(snapshot.lag_mean)}", "bold")
        line.append(f", max {lag_number(snapshot.lag_max)} versions")
    line.append(f"  version {snapshot.policy_version:,}", "dim")
    if snapshot.dropped_unrolls:
        line.append(f"  {snapshot.dropped_unrolls:,} unrolls dropped", "yellow")
    return line


def _shares_line(label: str, shares: Mapping[str, float], width: int) -> Text:
    """Phases in their own order; where they do not all fit, the smallest are left out."""
    shown = list(shares)
    while shown and _LABEL_WIDTH + len("  ".join(f"{name} {shares[name]:.0%}" for name in shown)) > width:
        shown.remove(min(shown, key=lambda name: shares[name]))
    line = _label(label)
    for i, name in enumerate(shown):
        share = f"{shares[name]:.0%}"
        line.append("  " if i else "").append(f"{name} ", "dim").append(share, "bold" if shares[name] >= 0.2 else "")
    return line


def _label(text: str) -> Text:
    return Text(f"{text:<{_LABEL_WIDTH}}", "dim" if text else "")
