"""The panels of the live display. Imports rich, so it is loaded with the first drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console, Group
from rich.text import Text

from accel.display.status import EvaluationStatus, PlayingStatus, TrainingStatus, playing_counts
from accel.display.text import CURVE_POINTS, count, curve, duration, format_return, lag_number, printable

_LABEL_WIDTH = 9
_BAR_WIDTH = 24


class PipeConsole(Console):
    """A console whose closed pipe is an error for its caller, not the end of the process."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError again."""
        raise BrokenPipeError


def training_panel(title: str, status: TrainingStatus, returns: Sequence[float], console: Console) -> Group:
    """Six lines about training, seven with evaluations, each cut to the console's width.

    Args:
        title: what is trained.
        status: how far it is.
        returns: the course of the mean return, oldest first.
        console: tells width and encoding.
    """
    width, plain = console.width, _is_plain(console)
    evaluated = [] if status.evaluation is None else [_evaluation_line(status.evaluation)]
    lines = [
        _headline(title, status, width),
        _return_line(status, returns, width, plain),
        *evaluated,
        _steps_line(status, width, plain),
        _lag_line(status),
        _shares_line("learner", status.learner_shares, width),
        _shares_line("actors", status.actor_shares, width),
        *([_rates_line(status, width)] if status.actor_rates else []),
    ]
    return _cut(lines, plain)


def playing_panel(stage: str, status: PlayingStatus | None, elapsed_s: float, console: Console) -> Group:
    """One line about a stage: its name and, once it has a status, a bar over episodes, counts and elapsed time."""
    plain = _is_plain(console)
    line = Text(stage)
    if status is not None:
        if status.total_episodes > 1:
            line.append("  ")
            _append_bar(line, status.episodes / status.total_episodes, _BAR_WIDTH, plain)
        line.append("  ").append(", ".join(playing_counts(status)), "bold").append(f"  {duration(elapsed_s)}", "dim")
    return _cut([line], plain)


def _is_plain(console: Console) -> bool:
    return not console.encoding.lower().startswith("utf")


def _cut(lines: Sequence[Text], plain: bool) -> Group:
    for line in lines:
        if plain:
            line.plain = printable(line.plain, "ascii")
        line.no_wrap = True
        line.overflow = "crop" if plain else "ellipsis"
    return Group(*lines)


def _append_bar(line: Text, share: float, width: int, plain: bool) -> None:
    filled = int(min(max(share, 0.0), 1.0) * width)
    full, empty = ("=", "-") if plain else ("━", "─")
    line.append(full * filled, "cyan").append(empty * (width - filled), "dim")


def _headline(title: str, status: TrainingStatus, width: int) -> Text:
    actors = f"{status.actors_alive} of {status.actors} actors"
    left = Text.assemble(
        (title, "bold"), f"  {status.scheme}  ", (actors, "" if status.actors_alive == status.actors else "red")
    )
    at_most = "" if status.return_target is None else "at most "
    right = f"{duration(status.elapsed_s)} elapsed, {at_most}{duration(status.remaining_s)} left"
    gap = width - left.cell_len - len(right)
    if gap >= 2:
        return left.append(" " * gap).append(right, "dim")
    return left.append(f"  {duration(status.elapsed_s)}", "dim")


def _return_line(status: TrainingStatus, returns: Sequence[float], width: int, plain: bool) -> Text:
    line = _label("return")
    if status.return_mean is None:
        return line.append("no episode finished yet", "dim")
    line.append(format_return(status.return_mean), "bold green")
    if status.return_target is not None:
        line.append(f" of {format_return(status.return_target)}")
    episodes = f"  {status.episodes:,} episodes"
    if not plain:
        line.append("  ").append(curve(returns, min(CURVE_POINTS, width - line.cell_len - len(episodes))), "green")
    return line.append(episodes, "dim")


def _evaluation_line(evaluation: EvaluationStatus) -> Text:
    line = _label("greedy").append(format_return(evaluation.mean), "bold green")
    return line.append(f" at {count(evaluation.env_steps)} steps, best {format_return(evaluation.best)}")


def _steps_line(status: TrainingStatus, width: int, plain: bool) -> Text:
    line = _label("steps").append(count(status.env_steps), "bold").append(f" of {count(status.total_env_steps)}")
    rate = f"  {count(status.env_steps_per_s)} steps/s"
    bar_width = min(_BAR_WIDTH, width - line.cell_len - len(rate) - 2)
    if bar_width >= 8:
        _append_bar(line.append("  "), status.env_steps / max(status.total_env_steps, 1), bar_width, plain)
    return line.append(rate, "bold cyan")


def _lag_line(status: TrainingStatus) -> Text:
    line = _label("lag")
    if status.lag_mean is None:
        line.append("no unroll yet", "dim")
    else:
        line.append(f"min {lag_number(status.lag_min)}, ")
        line.append(f"mean {lag_number(status.lag_mean)}", "bold")
        line.append(f", max {lag_number(status.lag_max)} versions")
    line.append(f"  version {status.policy_version:,}", "dim")
    if status.dropped_unrolls:
        line.append(f"  {status.dropped_unrolls:,} unrolls dropped", "yellow")
    if status.straggler is not None:
        line.append(f"  {status.straggler}", "yellow")
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


def _rates_line(status: TrainingStatus, width: int) -> Text:
    """Steps per second by actor, the slowest first, as many as fit."""
    line = _label("slowest")
    for place, (actor, rate) in enumerate(status.actor_rates.items()):
        shown = f"{actor}: {count(rate)}/s"
        if place and line.cell_len + 2 + len(shown) > width:
            break
        line.append("  " if place else "").append(shown, "yellow" if status.straggler and not place else "")
    return line


def _label(text: str) -> Text:
    return Text(f"{text:<{_LABEL_WIDTH}}", "dim" if text else "")
