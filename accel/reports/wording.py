"""The report's sentences, and how it writes numbers; the page and the Markdown print the same."""

from __future__ import annotations

import math
from statistics import median

from accel.monitor.bottleneck import TimeShares
from accel.monitor.plain_text import percent
from accel.monitor.statistics import Interval
from accel.reports.analysis import Analysis, Comparison, GroupResult
from accel.reports.comparison import MIN_SEEDS, Speedup, SpeedupBound, too_few_seeds
from accel.reports.runs import Group

_SCIENTIFIC = 1e12
_RANK = {"gain": 2, "no_loss": 2, "too_few_seeds": 1}


def headline(analysis: Analysis) -> str:
    """The report in one sentence: the best comparison, or the returns that were reached."""
    if analysis.comparisons and analysis.baseline is not None:
        best = max(analysis.comparisons, key=_merit)
        return f"{_capitalised(_sentence(best, analysis), best, analysis)} ({analysis.environment})"
    highest = max(analysis.results, key=lambda r: -math.inf if r.final_return is None else r.final_return.estimate)
    outcome = _outcome(highest, analysis.target)
    if len(analysis.results) == 1:
        return f"{analysis.environment}: {outcome}"
    return f"{analysis.environment}, {len(analysis.results)} configurations; the highest return: {outcome}"


def outcomes_beside(analysis: Analysis) -> tuple[tuple[str, str], ...]:
    """At most two sentences for each of several configurations that are not compared: its return, what limits it."""
    if analysis.baseline is not None or len(analysis.results) < 2:
        return ()
    return tuple((result.group.label, _outcome_sentences(result, analysis.target)) for result in analysis.results)


def verdicts(analysis: Analysis) -> tuple[tuple[str, str, str, tuple[str, ...]], ...]:
    """For each comparison: outcome, configuration, at most two sentences, and why it should not have been compared."""
    return tuple(
        (
            c.verdict.outcome,
            c.group.label,
            " ".join(f"{_capitalised(text, c, analysis)}." for text in _sentences(c, analysis)),
            c.marks,
        )
        for c in analysis.comparisons
    )


def method(analysis: Analysis) -> tuple[str, ...]:
    """How the numbers were obtained, beyond what stands beneath the tables."""
    found = [
        "Returns are those of training episodes, played by the compressed, sampling policy of the actors: the mean of "
        "the last stop_window episodes of each run.",
    ]
    if math.isfinite(analysis.threshold):
        found.append(f"The threshold is a mean return of {analysis.threshold:.4g}: {analysis.threshold_source}.")
    if analysis.baseline is not None:
        found += [
            f"With fewer than {MIN_SEEDS} seeds on a side nothing is compared. Where seeds failed to reach the "
            "threshold, a bound counts them at the budget they spent.",
            _margin(analysis),
            *([_correction(analysis)] if len(analysis.comparisons) > 1 else []),
            "Other runtimes beat torch eager without any compression: compare with fp32 on the same runtime as well.",
        ]
    return tuple(found)


def interval(value: Interval, digits: int = 4) -> str:
    """``4.2 [3.9, 4.5]``, or the estimate alone where there is no interval."""
    if not math.isfinite(value.low):
        return f"{value.estimate:.{digits}g}"
    return f"{value.estimate:.{digits}g} [{value.low:.{digits}g}, {value.high:.{digits}g}]"


def times(value: Speedup) -> str:
    """``1.62× [1.5, 1.7]``, or ``1.62×`` with too few seeds for an interval."""
    ratio = value.ratio
    return f"{ratio.estimate:.3g}×{f' [{ratio.low:.3g}, {ratio.high:.3g}]' if value.has_interval else ''}"


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
    """``int8 is 1.62× as fast as fp32 to a return of 475, without loss of return``."""
    parts = [_speed(comparison, analysis)]
    if comparison.verdict.outcome == "too_few_seeds":
        if comparison.main is None or comparison.main.has_interval:
            parts.append(comparison.verdict.text)
    else:
        parts.append(
            {
                "no_loss": "without loss of return",
                "gain": "at a higher return",
                "loss": "but with a lower return",
                "undecided": "but a loss of return is not excluded",
                "untested": "returns not compared",
            }[comparison.verdict.outcome]
        )
    parts.append(_failures(comparison, analysis))
    return ", ".join(part for part in parts if part)


def _sentences(comparison: Comparison, analysis: Analysis) -> list[str]:
    """Speed, then return, without their full stops; one sentence where there are too few seeds."""
    bound = next(iter(comparison.bounds.values()), None) if math.isfinite(analysis.target) else None
    speed = [_speed(comparison, analysis), "" if bound is None else _bound(bound, comparison, analysis)]
    failures = _failures(comparison, analysis)
    if comparison.verdict.outcome == "too_few_seeds" and (comparison.main and not comparison.main.has_interval):
        return ["; ".join(part for part in (*speed, failures) if part)]
    return ["; ".join(part for part in speed if part), ", ".join(p for p in (comparison.verdict.text, failures) if p)]


def _capitalised(sentence: str, comparison: Comparison, analysis: Analysis) -> str:
    """With a capital letter, unless a configuration's name comes first."""
    named = sentence.startswith((comparison.group.label, analysis.groups[0].label))
    return sentence if named else f"{sentence[:1].upper()}{sentence[1:]}"


def _speed(comparison: Comparison, analysis: Analysis) -> str:
    value, label, baseline = comparison.main, comparison.group.label, analysis.groups[0].label
    if value is None:
        return f"{label} against {baseline}: no speed to compare"
    what, said = {
        "time_to_threshold_s": (
            f"speed to a return of {analysis.target:.4g}",
            f"is {times(value)} as fast as {baseline} to a return of {analysis.target:.4g}",
        ),
        "env_steps_per_s": ("steps per second", f"trains at {times(value)} the steps per second of {baseline}"),
        "training_s": ("speed of training", f"trains {times(value)} as fast as {baseline}"),
        "actor_us_per_step": ("speed of acting", f"acts {times(value)} as fast as {baseline}"),
    }[value.quantity]
    if value.finding == "too_few_seeds":
        few = too_few_seeds(len(value.group), len(value.baseline))
        return f"{label} against {baseline}: {times(value)} in {what}, {few}"
    if value.finding == "undecided":
        return f"no difference in {what} between {label} and {baseline} is shown: {times(value)}"
    return f"{label} {said}{_factors(comparison)}"


def _factors(comparison: Comparison) -> str:
    """`` (2× by the number of steps, 1.1× by steps per second)``: the factors of a speedup to the threshold."""
    main, steps = comparison.main, comparison.speedups.get("steps_to_threshold")
    if main is None or steps is None or main.quantity != "time_to_threshold_s":
        return ""
    rate = main.ratio.estimate / steps.ratio.estimate
    return f" ({steps.ratio.estimate:.3g}× by the number of steps, {rate:.3g}× by steps per second)"


def _bound(bound: SpeedupBound, comparison: Comparison, analysis: Analysis) -> str:
    what = {"time_to_threshold_s": "", "steps_to_threshold": " in steps"}[bound.quantity]
    seeds = "1 failed seed at its" if bound.failed == 1 else f"{bound.failed} failed seeds at their"
    return (
        f"{comparison.group.label} is {bound.side} {bound.ratio:.3g}× as fast as {analysis.groups[0].label}{what} to a "
        f"return of {analysis.target:.4g}, counting {seeds} budget"
    )


def _failures(comparison: Comparison, analysis: Analysis) -> str:
    """``int8 reached 475 in 4 of 5 runs, fp32 in 5 of 5``; empty where every run reached the target."""
    if not math.isfinite(analysis.target):
        return ""
    sides = [(group, _result(group, analysis).reached) for group in (comparison.group, analysis.groups[0])]
    if all(reached == len(group.runs) for group, reached in sides):
        return ""
    (group, ours), (baseline, theirs) = sides
    return (
        f"{group.label} reached {analysis.target:.4g} in {ours} of {len(group.runs)} runs, "
        f"{baseline.label} in {theirs} of {len(baseline.runs)}"
    )


def _result(group: Group, analysis: Analysis) -> GroupResult:
    return next(result for result in analysis.results if result.group is group)


def _margin(analysis: Analysis) -> str:
    if math.isnan(analysis.margin):
        return f"Returns were not compared: {analysis.margin_source}."
    return (
        f"No loss of return means that the lower bound of the difference lies above −{analysis.margin:.4g}, "
        f"{analysis.margin_source}: a one-sided Welch test at {percent(analysis.choices.alpha)}, unless all runs "
        "stopped at one target."
    )


def _correction(analysis: Analysis) -> str:
    return (
        f"{len(analysis.comparisons)} configurations are compared with one baseline, so every interval is widened by "
        "Bonferroni's correction, and confidence and level hold for all of them together."
    )


def _limit(shares: TimeShares) -> str:
    limit = {
        "learner": "the learner is the bottleneck",
        "policy": "the actors' policy is the bottleneck",
        "environment": "the environment is the bottleneck",
        "balanced": "actors and learner wait about equally",
    }[shares.limit]
    return (
        f"{limit} (actors wait {shares.actor_wait:.0%} of their time, the learner "
        f"{shares.learner_wait:.0%}; of the actors' busy time the environment takes {shares.environment:.0%}, the "
        f"policy {shares.policy:.0%})"
    )


def _outcome(result: GroupResult, target: float) -> str:
    """``int8 reached 475 in 5 of 5 runs, after 1.2 s of training (median)``."""
    label, seeds = result.group.label, len(result.group.runs)
    if result.final_return is None:
        return f"{label} has no finished episode"
    final = f"{label} ends at a return of {interval(result.final_return)}"
    if not result.reached or math.isnan(target):
        return final
    runs = "its run" if seeds == 1 else f"{result.reached} of {seeds} runs"
    when = number(median(result.by_quantity["time_to_threshold_s"]))
    return f"{final}; {runs} reached {target:.4g}, after {when} s of training{' (median)' if seeds > 1 else ''}"


def _outcome_sentences(result: GroupResult, target: float) -> str:
    texts = [_outcome(result, target).removeprefix(f"{result.group.label} ")]
    texts += [] if result.time_shares is None else [_limit(result.time_shares)]
    return " ".join(f"{text[:1].upper()}{text[1:]}." for text in texts)


def _merit(comparison: Comparison) -> tuple[bool, int, float, float]:
    """Sort key of a comparison: comparable, return, lower bound of the speedup, estimate."""
    main = comparison.main
    estimate = 0.0 if main is None else main.ratio.estimate
    low = main.ratio.low if main is not None and main.has_interval else 0.0
    return not comparison.marks, _RANK.get(comparison.verdict.outcome, 0), low, estimate
