"""What a report says in words and tables; the page and the Markdown print the same."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from monitor.report.analysis import Analysis, Comparison, GroupResult
from monitor.report.comparison import QUANTITIES, Speedup
from monitor.report.runs import Run
from monitor.statistics import Interval

MAX_DECISIONS = 200


@dataclass(frozen=True)
class Table:
    """A table: caption, column titles, rows of texts; the first column names its row."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def headline(analysis: Analysis) -> str:
    """The report in one sentence: the best comparison, or what the runs reached."""
    if analysis.comparisons and analysis.baseline is not None:
        best = max(analysis.comparisons, key=_merit)
        return f"{_sentence(best, analysis)} ({analysis.environment})"
    return f"{analysis.environment}: {'; '.join(_outcome(result, analysis.threshold) for result in analysis.results)}"


def verdicts(analysis: Analysis) -> tuple[tuple[str, str, str, tuple[str, ...]], ...]:
    """For each comparison: outcome, what is compared, the sentences, and why it should not have been compared."""
    return tuple(
        (
            c.verdict.outcome,
            c.group.label,
            f"{_speed(c, analysis)}. {c.verdict.text[:1].upper()}{c.verdict.text[1:]}.",
            c.marks,
        )
        for c in analysis.comparisons
    )


def method(analysis: Analysis) -> tuple[str, ...]:
    """How the numbers came about."""
    choices = analysis.choices
    found = [
        "Returns are those of training episodes, played by the compressed, sampling policy of the actors: the mean of "
        "the last stop_window episodes of each run. The final return is the mean over the last tenth of "
        "a run's steps, or the target it stopped at.",
    ]
    if math.isfinite(analysis.threshold):
        found.append(f"The threshold is a mean return of {analysis.threshold:.4g}: {analysis.threshold_source}.")
    if analysis.baseline is not None:
        found += [
            f"Speedups are ratios of geometric means over seeds with Welch's {choices.confidence:.0%} interval on the "
            "logarithms.",
            f"Same return means not worse than the baseline by {analysis.margin:.4g}, {choices.margin:.0%} of its "
            f"curve's range: a one-sided Welch test at {choices.alpha:.0%}, unless all runs stopped at one target. "
            "Fewer than five seeds a side are too few for a claim about return.",
            "A graph runtime alone is faster than torch eager: compare with fp32 on the same runtime as well.",
        ]
    return tuple(found)


def results_table(analysis: Analysis) -> Table:
    """One row a group: what it reached and how fast; medians over seeds."""
    titles = ("configuration", "seeds", "final return (IQM)", "threshold reached")
    names = [name for name in QUANTITIES if any(result.by_quantity[name] for result in analysis.results)]
    rows = tuple(
        (
            result.group.label,
            str(len(result.group.runs)),
            "–" if result.final_return is None else interval(result.final_return),
            f"{result.reached} of {len(result.group.runs)}" if math.isfinite(analysis.threshold) else "–",
            *(_spread(result.by_quantity[name]) for name in names),
        )
        for result in analysis.results
    )
    columns = tuple(f"{QUANTITIES[name].title}, {QUANTITIES[name].unit}" for name in names)
    return Table("Medians over seeds, with the least and the greatest.", titles + columns, rows)


def speedup_table(analysis: Analysis) -> Table | None:
    """One row for each quantity and comparison; None when nothing is compared."""
    if analysis.baseline is None:
        return None
    rows = []
    for name, quantity in QUANTITIES.items():
        for comparison in analysis.comparisons:
            value = comparison.speedups.get(name)
            if value is not None:
                sides = (len(value.baseline), len(value.group))
                note = f"{value.missing} without a value" if value.missing else ""
                rows.append(
                    (
                        quantity.title,
                        comparison.group.label,
                        times(value),
                        _saved(value),
                        f"{sides[1]} / {sides[0]}",
                        note,
                    )
                )
    columns = ("quantity", "configuration", "times better", "time saved", "seeds / baseline's", "left out")
    return Table(f"Against {analysis.baseline.label}.", columns, tuple(rows))


def runs_table(analysis: Analysis) -> Table:
    """One row a run."""
    rows = []
    for group in analysis.groups:
        for run in group.runs:
            crossing = run.crossing(analysis.threshold) if math.isfinite(analysis.threshold) else None
            ending = "not ended" if run.summary is None else str(run.summary.get("reason", "ended"))
            rows.append(
                (
                    run.name,
                    group.label,
                    str(run.seed),
                    number(run.final_return),
                    number(run.steps),
                    number(run.training_s),
                    "–" if crossing is None else number(crossing[0]),
                    ending,
                )
            )
    columns = ("run", "configuration", "seed", "final return", "env steps", "training, s", "to threshold, s", "ended")
    return Table("Every run.", columns, tuple(rows))


def options_table(analysis: Analysis) -> Table:
    """Options by configuration: those that differ first, then the rest."""
    configs = [group.config for group in analysis.groups]
    keys = sorted({key for config in configs for key in config} - {"seed", "name", "results_dir"})
    keys.sort(key=lambda key: len({repr(config.get(key)) for config in configs}) == 1)
    rows = tuple((key, *(plain(config.get(key)) for config in configs)) for key in keys)
    return Table("Options; those that differ come first.", ("option", *(g.label for g in analysis.groups)), rows)


def decisions_table(analysis: Analysis) -> Table | None:
    """The last decisions with their reasons; None when nothing was decided."""
    made = [(run, decision) for group in analysis.groups for run in group.runs for decision in run.decisions]
    if not made:
        return None
    rows = tuple(
        (
            run.name,
            number(d.env_steps),
            "all" if d.actor is None else str(d.actor),
            d.before or "–",
            d.after,
            d.kind,
            d.reason,
        )
        for run, d in made[-MAX_DECISIONS:]
    )
    hidden = f" The first {len(made) - MAX_DECISIONS} are left out here." if len(made) > MAX_DECISIONS else ""
    columns = ("run", "env steps", "actor", "from", "to", "kind", "reason")
    return Table(f"Decisions of the monitor.{hidden}", columns, rows)


def machines_table(analysis: Analysis) -> Table:
    """Where the runs were made, one row for each distinct machine, version and commit."""
    seen: dict[tuple[str, ...], list[str]] = {}
    for group in analysis.groups:
        for run in group.runs:
            seen.setdefault(_machine_row(run), []).append(run.name)
    rows = tuple((f"{len(names)} runs" if len(names) > 1 else names[0], *row) for row, names in seen.items())
    return Table("Machines.", ("runs", "processor", "cores", "memory", "GPUs", "versions", "commit"), rows)


def commands(analysis: Analysis) -> tuple[str, ...]:
    """The command behind every run, as far as it is known."""
    found = []
    for group in analysis.groups:
        for run in group.runs:
            command = run.machine.get("command")
            if isinstance(command, list | tuple) and command:
                found.append(shlex.join(map(str, command)))
            elif isinstance(command, str) and command:
                found.append(command)
    return tuple(dict.fromkeys(found))


def interval(value: Interval, digits: int = 4) -> str:
    """``4.2 [3.9, 4.5]``, or the estimate alone where there is no interval."""
    if not math.isfinite(value.low):
        return f"{value.estimate:.{digits}g}"
    return f"{value.estimate:.{digits}g} [{value.low:.{digits}g}, {value.high:.{digits}g}]"


def times(value: Speedup) -> str:
    """``1.62× [1.5, 1.7]``."""
    ratio = value.ratio
    return f"{ratio.estimate:.3g}×" + (f" [{ratio.low:.3g}, {ratio.high:.3g}]" if value.has_interval else "")


def number(value: float) -> str:
    """Four digits, thousands apart, ``–`` for NaN."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def plain(value: object) -> str:
    """A config value as text."""
    return "–" if value is None else ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _sentence(comparison: Comparison, analysis: Analysis) -> str:
    """``int8 is 1.62× as fast as fp32 to a return of 475, at the same return``."""
    said = {
        "same": "at the same return",
        "higher": "at a higher return",
        "lower": "but its return is lower",
        "undecided": "but whether its return is the same is undecided",
        "untested": "the return was not tested",
    }
    return f"{_speed(comparison, analysis)}, {said[comparison.verdict.outcome]}"


def _speed(comparison: Comparison, analysis: Analysis) -> str:
    value, baseline = comparison.main, "" if analysis.baseline is None else analysis.baseline.label
    if value is None:
        return f"{comparison.group.label} against {baseline}: no speed to compare"
    what = {
        "time_to_threshold_s": f"is {times(value)} as fast as {baseline} to a return of {analysis.threshold:.4g}",
        "env_steps_per_s": f"trains at {times(value)} the steps per second of {baseline}",
        "training_s": f"trains {times(value)} as fast as {baseline}",
        "actor_us_per_step": f"acts {times(value)} as fast as {baseline}",
    }[value.quantity]
    return f"{comparison.group.label} {what}"


def _outcome(result: GroupResult, threshold: float) -> str:
    """``int8 reached 475 in 5 of 5 runs, after 1.2 s of training (median)``."""
    label, seeds = result.group.label, len(result.group.runs)
    if result.final_return is None:
        return f"{label} has no finished episode"
    final = f"{label} ends at a return of {interval(result.final_return)}"
    if not result.reached:
        return final
    runs = "its run" if seeds == 1 else f"{result.reached} of {seeds} runs"
    when = number(median(result.by_quantity["time_to_threshold_s"]))
    return f"{final}; {runs} reached {threshold:.4g}, after {when} s of training{' (median)' if seeds > 1 else ''}"


def _merit(comparison: Comparison) -> tuple[bool, bool, float]:
    good = comparison.verdict.outcome in {"same", "higher"}
    main = comparison.main
    return not comparison.marks, good, 0.0 if main is None else main.ratio.estimate


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    if len(values) == 1:
        return number(values[0])
    return f"{number(median(values))} ({number(min(values))} to {number(max(values))})"


def _saved(value: Speedup) -> str:
    return f"{value.time_saved:+.1%}".replace("+", "") if value.time_saved >= 0 else f"{-value.time_saved:.1%} more"


def _machine_row(run: Run) -> tuple[str, ...]:
    machine = run.machine
    memory = machine.get("memory_bytes")
    gpus = machine.get("gpus")
    names = [str(gpu.get("name")) for gpu in gpus if isinstance(gpu, Mapping)] if isinstance(gpus, list) else []
    versions = machine.get("versions")
    wanted = ("python", "torch", "onnxruntime", "numpy", "gymnasium")
    shown = [f"{n} {versions[n]}" for n in wanted if versions.get(n)] if isinstance(versions, Mapping) else []
    commit = str(machine.get("commit") or "unknown")[:12] + (" with changes" if machine.get("dirty") else "")
    return (
        str(machine.get("cpu", "unknown")),
        str(machine.get("usable_cores", "–")),
        f"{memory / 2**30:.0f} GiB" if isinstance(memory, int | float) else "–",
        ", ".join(names) or "none",
        ", ".join(shown) or "–",
        commit,
    )
