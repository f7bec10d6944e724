"""What a report says in words, and how it writes numbers; the page and the Markdown say the same."""

from __future__ import annotations

import math
from statistics import median

from monitor.report.analysis import Analysis, Comparison, GroupResult
from monitor.report.bottleneck import ENVIRONMENT_SHARE, WAIT_GAP, Bound
from monitor.report.comparison import FEW_SEEDS, LEAST_SEEDS, Speedup, SpeedupBound
from monitor.report.runs import Group
from monitor.statistics import Interval

_SCIENTIFIC = 1e12
_MOSTLY = 0.75
"""Share of a gain's logarithm above which one of its two causes is named alone."""
_GOOD = {"higher": 2, "same": 2, "few": 1}


def headline(analysis: Analysis) -> str:
    """The report in one sentence: the best comparison, or what the runs reached."""
    if analysis.comparisons and analysis.baseline is not None:
        best = max(analysis.comparisons, key=_merit)
        return f"{_capitalised(_sentence(best, analysis), best, analysis)} ({analysis.environment})"
    return f"{analysis.environment}: {'; '.join(_outcome(result, analysis.threshold) for result in analysis.results)}"


def verdicts(analysis: Analysis) -> tuple[tuple[str, str, str, tuple[str, ...]], ...]:
    """For each comparison: outcome, what is compared, the sentences, and why it should not have been compared."""
    return tuple(
        (
            c.verdict.outcome,
            c.group.label,
            " ".join(f"{_capitalised(text, c, analysis)}." for text in _told(c, analysis)),
            c.marks,
        )
        for c in analysis.comparisons
    )


def bounds(analysis: Analysis) -> tuple[str, ...]:
    """What bounds each configuration, a sentence each; empty where no run's times are known."""
    return tuple(_bounded(result.group, result.bound) for result in analysis.results if result.bound is not None)


def method(analysis: Analysis) -> tuple[str, ...]:
    """How the numbers came about."""
    choices = analysis.choices
    found = [
        "Returns are those of training episodes, played by the compressed, sampling policy of the actors: the mean of "
        "the last stop_window episodes of each run. The final return is the mean over the last tenth of "
        "a run's steps, or the target it stopped at.",
        f"A configuration is bound by the learner where actors wait for a share of their time that is greater by "
        f"{WAIT_GAP:.0%} or more than the learner's share, by its actors where that is the other way round (by the "
        f"environment where that takes {ENVIRONMENT_SHARE:.0%} or more of the time in which actors do not wait, else "
        "by the policy), and balanced otherwise; medians over seeds.",
    ]
    if math.isfinite(analysis.threshold):
        found.append(f"The threshold is a mean return of {analysis.threshold:.4g}: {analysis.threshold_source}.")
    if analysis.baseline is not None:
        found += [
            f"Speedups are ratios of geometric means over seeds with Welch's {choices.confidence:.0%} interval on the "
            f"logarithms. Where 1 lies in it, no difference is shown; with fewer than {LEAST_SEEDS} seeds on a side "
            "there is none (–). Where seeds failed, there is no speedup to the threshold: a bound counts them at what "
            "they spent.",
            _margin(analysis),
            "A graph runtime alone is faster than torch eager: compare with fp32 on the same runtime as well.",
        ]
    return tuple(found)


def interval(value: Interval, digits: int = 4) -> str:
    """``4.2 [3.9, 4.5]``, or the estimate alone where there is no interval."""
    if not math.isfinite(value.low):
        return f"{value.estimate:.{digits}g}"
    return f"{value.estimate:.{digits}g} [{value.low:.{digits}g}, {value.high:.{digits}g}]"


def times(value: Speedup) -> str:
    """``1.62× [1.5, 1.7]``, or ``1.62× [–]`` with too few seeds for an interval."""
    ratio = value.ratio
    return f"{ratio.estimate:.3g}× [{f'{ratio.low:.3g}, {ratio.high:.3g}' if value.has_interval else '–'}]"


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
        "few": "with too few seeds for a claim about the return",
        "undecided": "but whether its return is the same is undecided",
        "untested": "the return was not tested",
    }
    parts = [_speed(comparison, analysis), _cause(comparison), said[comparison.verdict.outcome]]
    failed = _has_failures(comparison.group, analysis) or _has_failures(analysis.groups[0], analysis)
    if failed and _has_target(analysis):
        parts.append(_reached(comparison.group, analysis))
    return ", ".join(part for part in parts if part)


def _told(comparison: Comparison, analysis: Analysis) -> list[str]:
    """The sentences of a verdict, without their full stops."""
    sentences = [
        ", ".join(part for part in (_speed(comparison, analysis), _cause(comparison)) if part),
        _parts(comparison),
        *(_bound(bound, comparison, analysis) for bound in comparison.bounds.values()),
        comparison.verdict.text,
    ]
    if math.isfinite(analysis.threshold):
        sentences.append(f"{_reached(comparison.group, analysis)}, {_reached(analysis.groups[0], analysis)}")
    return [sentence for sentence in sentences if sentence]


def _capitalised(sentence: str, comparison: Comparison, analysis: Analysis) -> str:
    """With a capital, unless a configuration's name comes first."""
    named = sentence.startswith((comparison.group.label, analysis.groups[0].label))
    return sentence if named else f"{sentence[:1].upper()}{sentence[1:]}"


def _speed(comparison: Comparison, analysis: Analysis) -> str:
    value, baseline = comparison.main, analysis.groups[0].label
    if value is None:
        return f"{comparison.group.label} against {baseline}: no speed to compare"
    what, said = {
        "time_to_threshold_s": (
            f"speed to a return of {analysis.threshold:.4g}",
            f"is {times(value)} as fast as {baseline} to a return of {analysis.threshold:.4g}",
        ),
        "env_steps_per_s": ("steps per second", f"trains at {times(value)} the steps per second of {baseline}"),
        "training_s": ("speed of training", f"trains {times(value)} as fast as {baseline}"),
        "actor_us_per_step": ("speed of acting", f"acts {times(value)} as fast as {baseline}"),
    }[value.quantity]
    if value.shown == "unknown":
        return f"{comparison.group.label} against {baseline}: {times(value)} in {what}, too few seeds for an interval"
    if value.shown == "nothing":
        span = f"{value.ratio.low:.3g}× to {value.ratio.high:.3g}×"
        return f"no difference in {what} shown between {comparison.group.label} and {baseline} ({span})"
    return f"{comparison.group.label} {said}"


def _cause(comparison: Comparison) -> str:
    """Whether a gain in time that is shown comes from fewer steps or from more steps per second."""
    main, steps = comparison.main, comparison.speedups.get("steps_to_threshold")
    if main is None or steps is None or main.quantity != "time_to_threshold_s" or main.shown not in {"better", "worse"}:
        return ""
    fewer, more = ("fewer", "more") if main.shown == "better" else ("more", "fewer")
    share = math.log(steps.ratio.estimate) / math.log(main.ratio.estimate)
    if share >= _MOSTLY:
        return f"through {fewer} steps rather than {more} steps per second"
    if share <= 1 - _MOSTLY:
        return f"through {more} steps per second rather than {fewer} steps"
    return f"through {fewer} steps and {more} steps per second"


def _parts(comparison: Comparison) -> str:
    """The factors of a ratio of times: steps to the threshold, and steps per second on the way."""
    main, steps = comparison.main, comparison.speedups.get("steps_to_threshold")
    if main is None or steps is None or main.quantity != "time_to_threshold_s":
        return ""
    rate = main.ratio.estimate / steps.ratio.estimate
    whole = "that" if main.shown in {"better", "worse"} else f"the estimate of {main.ratio.estimate:.3g}×"
    return f"{whole} is {times(steps)} by the number of steps, times {rate:.3g}× by steps per second"


def _bound(bound: SpeedupBound, comparison: Comparison, analysis: Analysis) -> str:
    what = {"time_to_threshold_s": "by time", "steps_to_threshold": "by steps"}[bound.quantity]
    seeds = "1 failed seed at its" if bound.failed == 1 else f"{bound.failed} failed seeds at their"
    return (
        f"to a return of {analysis.threshold:.4g}, {comparison.group.label} is {bound.side} {bound.ratio:.3g}× as fast "
        f"as {analysis.groups[0].label} {what}, counting {seeds} budget"
    )


def _reached(group: Group, analysis: Analysis) -> str:
    result = next(result for result in analysis.results if result.group is group)
    return f"{group.label} reached {analysis.threshold:.4g} in {result.reached} of {len(group.runs)} runs"


def _has_failures(group: Group, analysis: Analysis) -> bool:
    return math.isfinite(analysis.threshold) and any(run.crossing(analysis.threshold) is None for run in group.runs)


def _has_target(analysis: Analysis) -> bool:
    """Whether the threshold is a return that somebody wanted, not a share of what was gained."""
    wanted = [analysis.choices.threshold, *(v for group in analysis.groups for v in group.values("stop_at_return"))]
    return analysis.threshold in wanted


def _margin(analysis: Analysis) -> str:
    few = f"With fewer than {FEW_SEEDS} seeds on a side nothing is claimed about it, but that it is lower."
    if math.isnan(analysis.margin):
        return f"Whether the return is the same was not tested: {analysis.margin_source}. {few}"
    return (
        f"Same return means not worse than the baseline by {analysis.margin:.4g}, {analysis.margin_source}: a "
        f"one-sided Welch test at {analysis.choices.alpha:.0%}, unless all runs stopped at one target. {few}"
    )


def _bounded(group: Group, bound: Bound) -> str:
    said = {
        "learner": "is bound by the learner",
        "policy": "is bound by the actors' policy",
        "environment": "is bound by the environment",
        "balanced": "is balanced, neither side waits much longer than the other",
    }
    shares = bound.shares
    return (
        f"{group.label} {said[bound.by]}: actors wait {shares.actor_wait:.0%} of their time and the learner "
        f"{shares.learner_wait:.0%} of its own; while actors do not wait, the environment takes "
        f"{shares.environment:.0%} and the policy {shares.policy:.0%}."
    )


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


def _merit(comparison: Comparison) -> tuple[bool, int, float, float]:
    """By what is certain: comparable, the return, the lower end of the speedup."""
    main = comparison.main
    estimate = 0.0 if main is None else main.ratio.estimate
    low = main.ratio.low if main is not None and main.has_interval else 0.0
    return not comparison.marks, _GOOD.get(comparison.verdict.outcome, 0), low, estimate
