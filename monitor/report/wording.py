"""What a report says in words, and how it writes numbers; the page and the Markdown say the same."""

from __future__ import annotations

import math
from statistics import median

from monitor.report.analysis import Analysis, Comparison, GroupResult
from monitor.report.comparison import Speedup
from monitor.statistics import Interval

_SCIENTIFIC = 1e12


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
    """Four digits; thousands apart from 10 000 on, ``1.23e+12`` from 10¹² on; ``∞``; ``–`` for NaN."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if abs(value) >= _SCIENTIFIC:
        return f"{value:.3g}"
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
