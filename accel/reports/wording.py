"""The report's sentences, and how it writes numbers; the page and the Markdown print the same."""

from __future__ import annotations

import math
from statistics import median

from accel.monitor.plain_text import percent
from accel.reports.analysis import Analysis, Comparison, GroupResult
from accel.reports.comparison import MIN_SEEDS, RETURN_CLAIMS

_SCIENTIFIC = 1e12
_RANK = {"gain": 2, "no_loss": 2, "too_few_seeds": 1}


def headline(analysis: Analysis) -> str:
    """The report in one sentence: the best comparison, or the returns that were reached."""
    if analysis.comparisons:
        best = max(analysis.comparisons, key=_merit)
        claim = RETURN_CLAIMS[best.verdict.outcome]
        return f"{best.group.label}: {speed(best, analysis)}; {claim} ({analysis.environment})"
    highest = max(analysis.results, key=lambda r: -math.inf if r.final_return is None else r.final_return.estimate)
    outcome = f"{highest.group.label}, {_outcome(highest, analysis.target)}"
    if len(analysis.results) == 1:
        return f"{analysis.environment}: {outcome}"
    return f"{analysis.environment}, {len(analysis.results)} configurations; the highest return: {outcome}"


def verdict(comparison: Comparison, analysis: Analysis) -> str:
    """A sentence: speed, then return, then the seeds that reached the target where some did not."""
    parts = [speed(comparison, analysis), comparison.verdict.text]
    if math.isfinite(analysis.target):
        sides = [r for r in analysis.results if r.group in (comparison.group, analysis.baseline)]
        if any(side.reached < len(side.group.runs) for side in sides):
            reached = (f"{r.group.label} in {r.reached} of {len(r.group.runs)} runs" for r in sides)
            parts.append(f"{analysis.target:.4g} was reached by {', '.join(reached)}")
    return f"{'; '.join(parts)}."


def speed(comparison: Comparison, analysis: Analysis) -> str:
    """``1.62× [1.5, 1.7] the speed of fp32 to a return of 475``, and what it is made of or lacks."""
    value, baseline = comparison.main, analysis.groups[0].label
    if value is None:
        return f"no speed to compare with {baseline}"
    to = f" to a return of {analysis.target:.4g}"
    what = {
        "time_to_threshold_s": f"the speed of {baseline}{to}",
        "env_steps_per_s": f"the steps per second of {baseline}",
        "training_s": f"the training speed of {baseline}",
        "actor_us_per_step": f"the acting speed of {baseline}",
    }[value.quantity]
    note = ""
    if value.bound:
        note = f", failed seeds counted at their budget: {value.missing}"
    elif value.has_interval and not value.is_shown:
        note = ", which shows no difference"
    elif value.quantity == "time_to_threshold_s" and (steps := comparison.speedups.get("steps_to_threshold")):
        rate = value.ratio.estimate / steps.ratio.estimate
        note = f" ({steps.ratio.estimate:.3g}× by the number of steps, {rate:.3g}× by steps per second)"
    return f"{value.text} {what}{note}"


def method(analysis: Analysis) -> tuple[str, ...]:
    """How the numbers were obtained, beyond what stands beneath the tables."""
    found = [
        "Returns are those of training episodes, played by the compressed, sampling policy of the actors: the mean of "
        "the last stop_window episodes of each run.",
    ]
    if analysis.threshold.exists:
        found.append(f"The threshold is a mean return of {analysis.threshold.value:.4g}: {analysis.threshold.source}.")
    if analysis.baseline is not None:
        found.append(
            f"With fewer than {MIN_SEEDS} seeds on a side nothing is compared. Where seeds failed to reach the "
            "threshold, a bound counts them at the budget they spent."
        )
        margin = analysis.margin
        found.append(
            f"No loss of return means that the lower bound of the difference lies above −{margin.value:.4g}, "
            f"{margin.source}: a one-sided Welch test at {percent(analysis.choices.alpha)}, unless all runs stopped at "
            "one target."
            if margin.exists
            else f"Returns were not compared: {margin.source}."
        )
        if len(analysis.comparisons) > 1:
            found.append(
                f"{len(analysis.comparisons)} configurations are compared with one baseline, so every interval is "
                "widened by Bonferroni's correction: confidence and level hold for all of them together."
            )
        found.append("Other runtimes beat torch eager without compression: compare with fp32 on the same runtime too.")
    return tuple(found)


def number(value: float) -> str:
    """Four digits; thousands apart from 10 000 on, ``1.23e+12`` from 10¹² on; ``∞``; ``–`` for NaN."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if abs(value) >= _SCIENTIFIC:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _outcome(result: GroupResult, target: float) -> str:
    """``final return 480; reached 475 in 5 of 5 runs, after 1.2 s of training (median)``."""
    if result.final_return is None:
        return "no finished episode"
    final = f"final return {result.final_return}"
    if not result.reached or math.isnan(target):
        return final
    when = number(median(result.by_quantity["time_to_threshold_s"]))
    runs = f"{result.reached} of {len(result.group.runs)} runs"
    return f"{final}; reached {target:.4g} in {runs}, after {when} s of training (median)"


def _merit(comparison: Comparison) -> tuple[bool, int, float, float]:
    """Sort key of a comparison: comparable, return, lower bound of the speedup, estimate."""
    main = comparison.main
    estimate = 0.0 if main is None else main.ratio.estimate
    low = main.ratio.low if main is not None and main.has_interval else 0.0
    return not comparison.marks, _RANK.get(comparison.verdict.outcome, 0), low, estimate
