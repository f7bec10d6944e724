"""From runs to what a report says: thresholds, curves, speedups, verdicts, breakdowns. No files, no drawing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from monitor.errors import ReportError
from monitor.report.comparison import (
    QUANTITIES,
    Speedup,
    Verdict,
    difference_of_means,
    same_return,
    speedup,
    values_of,
)
from monitor.report.curves import Curve, aggregate, curve_range, seconds, steps
from monitor.report.runs import Group, Run, caveats, group_runs, obstacles
from monitor.statistics import Interval, bootstrap_interval

THRESHOLD_SHARE = 0.9


@dataclass(frozen=True)
class Choices:
    """How a report is made.

    Attributes:
        threshold: return for "time to threshold"; None: the runs' own ``stop_at_return``, or else 90 % of the way from
            the lowest to the last point of the reference group's curve.
        margin: how much worse a final return still counts as the same, as a share of the baseline's gain, that is the
            range of its learning curve.
        group_by: the options by which runs are put together; empty: all but seed, name and results_dir.
        force: compare what should not be compared, and mark it.
        confidence: of every interval. alpha: level of the non-inferiority test. seed: of the bootstrap.
    """

    threshold: float | None = None
    margin: float = 0.05
    group_by: tuple[str, ...] = ()
    force: bool = False
    confidence: float = 0.95
    alpha: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.margin) and self.margin > 0):
            raise ReportError(f"margin = {self.margin}; needs a share above 0, such as 0.05")
        if not (0 < self.confidence < 1 and 0 < self.alpha < 0.5):
            raise ReportError(f"confidence = {self.confidence}, alpha = {self.alpha}; needs (0, 1) and (0, 0.5)")
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise ReportError(f"threshold = {self.threshold}; needs a return")


@dataclass(frozen=True, eq=False)
class GroupResult:
    """A group's numbers.

    Attributes:
        final_return: interquartile mean over seeds with its bootstrap interval, whose ends are NaN for one seed.
        by_quantity: the seeds' values of each of ``QUANTITIES``.
        reached: seeds that reached the threshold.
        against_time, against_steps: return curves; None without a finished episode.
        actor_us, learner_us: microseconds per environment step by phase, over all seeds.
    """

    group: Group
    final_return: Interval | None
    by_quantity: Mapping[str, tuple[float, ...]]
    reached: int
    against_time: Curve | None
    against_steps: Curve | None
    actor_us: Mapping[str, float]
    learner_us: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Comparison:
    """One group against the baseline; ``marks`` says why it should not have been compared."""

    group: Group
    speedups: Mapping[str, Speedup]
    verdict: Verdict
    marks: tuple[str, ...] = ()

    @property
    def main(self) -> Speedup | None:
        """The speedup that the headline quotes: to the threshold where all seeds got there, else what there is."""
        threshold = self.speedups.get("time_to_threshold_s")
        if threshold is not None and threshold.missing == 0:
            return threshold
        for name in ("env_steps_per_s", "actor_us_per_step", "training_s"):
            if name in self.speedups:
                return self.speedups[name]
        return threshold


@dataclass(frozen=True, eq=False)
class Analysis:
    """Everything a report says; ``baseline`` is None and ``comparisons`` empty when nothing is compared."""

    choices: Choices
    results: tuple[GroupResult, ...]
    baseline: Group | None
    comparisons: tuple[Comparison, ...]
    threshold: float
    threshold_source: str
    margin: float
    caveats: tuple[str, ...] = field(default=())

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups, the baseline first."""
        return tuple(result.group for result in self.results)

    @property
    def environment(self) -> str:
        """The environment's id, or all of them."""
        return ", ".join(dict.fromkeys(str(group.config.get("env", "unknown")) for group in self.groups))


def analyse(runs: Sequence[Run], choices: Choices, baseline: Run | None = None) -> Analysis:
    """Group runs, measure them and, given a baseline, compare the other groups with its group.

    Args:
        baseline: one of ``runs``; its whole group is the baseline.
    Raises:
        ReportError: a run without records, no other group, or groups that cannot be compared and no ``force``.
    """
    for run in runs:
        if not run.series.records:
            damaged = f" ({run.series.damaged} damaged lines)" if run.series.damaged else ""
            raise ReportError(f"{run.path} holds no metrics yet{damaged}: wait for its first record")
    groups = group_runs(runs, choices.group_by)
    if baseline is not None:
        groups = tuple(sorted(groups, key=lambda group: baseline not in group.runs))
        _check_comparable(groups, choices.force)
    generator = np.random.default_rng(choices.seed)
    curves = [_curves(group, choices, generator) for group in groups]
    threshold, source = _threshold(groups, curves, choices)
    results = tuple(
        _measure(group, pair, threshold, choices, generator) for group, pair in zip(groups, curves, strict=True)
    )
    gain = curve_range([curves[0][1]])
    margin = choices.margin * (gain if gain > 0 else abs(_centre(results[0])))
    comparisons = (
        () if baseline is None else tuple(_compare(groups[0], g, threshold, margin, choices) for g in groups[1:])
    )
    notes = tuple(note for group in groups for note in caveats(group))
    return Analysis(
        choices, results, None if baseline is None else groups[0], comparisons, threshold, source, margin, notes
    )


def _check_comparable(groups: Sequence[Group], force: bool) -> None:
    if len(groups) < 2:
        raise ReportError(
            "nothing to compare: every run has the baseline's configuration. Name runs of another, or use accel report"
        )
    if force:
        return
    found = [f"{g.label}: {reason}" for g in groups[1:] for reason in obstacles(groups[0], g)]
    found += [f"{r.name} has not ended in order (no summary.json)" for r in groups[0].runs if r.summary is None]
    if found:
        raise ReportError(
            "these runs cannot be compared:\n  "
            + "\n  ".join(found)
            + "\n--force compares them all the same, and marks them"
        )


def _curves(group: Group, choices: Choices, generator: np.random.Generator) -> tuple[Curve | None, Curve | None]:
    time, step = (
        aggregate(group, axis, lambda run: run.returns, confidence=choices.confidence, generator=generator)
        for axis in (seconds, steps)
    )
    return time, step


def _threshold(
    groups: Sequence[Group], curves: Sequence[tuple[Curve | None, Curve | None]], choices: Choices
) -> tuple[float, str]:
    """The return for "time to threshold" and where it comes from; NaN when no episode ever finished."""
    if choices.threshold is not None:
        return choices.threshold, "as asked for"
    targets = {group.config.get("stop_at_return") for group in groups}
    (target,) = targets if len(targets) == 1 else (None,)
    if isinstance(target, int | float):
        return float(target), "the return at which the runs stop"
    curve = curves[0][1]
    if curve is None:
        return math.nan, "no episode finished"
    low = float(curve.centre.min())
    share = f"{THRESHOLD_SHARE:.0%} of the way from the lowest to the last point of the curve of {groups[0].label}"
    return low + THRESHOLD_SHARE * (float(curve.centre[-1]) - low), share


def _measure(
    group: Group,
    curves: tuple[Curve | None, Curve | None],
    threshold: float,
    choices: Choices,
    generator: np.random.Generator,
) -> GroupResult:
    returns = _finals(group)
    final: Interval | None = None
    if len(returns) > 1:
        final = bootstrap_interval(returns, generator=generator, confidence=choices.confidence)
    elif returns:
        final = Interval(returns[0], math.nan, math.nan, choices.confidence, 1)
    by_quantity = {name: values_of(group, name, threshold) for name in QUANTITIES}
    reached = sum(run.crossing(threshold) is not None for run in group.runs)
    return GroupResult(
        group, final, by_quantity, reached, *curves, _us_per_step(group, "actor"), _us_per_step(group, "learner")
    )


def _compare(baseline: Group, group: Group, threshold: float, margin: float, choices: Choices) -> Comparison:
    found = {name: speedup(baseline, group, name, threshold, choices.confidence) for name in QUANTITIES}
    if baseline.config.get("stop_at_return") is not None:
        # A run that stops early for being good has not trained less well: its whole time says nothing by itself.
        found.pop("training_s")
    return Comparison(
        group,
        {name: value for name, value in found.items() if value is not None},
        _verdict(baseline, group, threshold, margin, choices),
        obstacles(baseline, group) if choices.force else (),
    )


def _verdict(baseline: Group, group: Group, threshold: float, margin: float, choices: Choices) -> Verdict:
    """By construction where every run stopped at the same target, else by test."""
    ours, theirs = _finals(baseline), _finals(group)
    targets = {side.config.get("stop_at_return") for side in (baseline, group)}
    if None not in targets and len(targets) == 1:
        target = float(str(targets.pop()))
        if all(run.crossing(target) is not None for side in (baseline, group) for run in side.runs):
            difference = difference_of_means(np.array(theirs), np.array(ours), 1 - 2 * choices.alpha)
            text = f"same return by construction: every run stopped at {target:g}"
            return Verdict("same", difference, margin, text)
    if not ours or not theirs or not margin > 0:
        nothing = Interval(math.nan, math.nan, math.nan, choices.confidence, 0)
        return Verdict(
            "untested", nothing, margin, "not tested: no finished episode, or a baseline that learned nothing"
        )
    return same_return(
        ours, theirs, margin, alpha=choices.alpha, unit=f" ({choices.margin:.0%} of the baseline's gain)"
    )


def _finals(group: Group) -> list[float]:
    return [value for run in group.runs if math.isfinite(value := run.final_return)]


def _us_per_step(group: Group, side: str) -> dict[str, float]:
    totals: dict[str, float] = {}
    for run in group.runs:
        for phase, value in run.seconds_by_phase(side).items():
            totals[phase] = totals.get(phase, 0.0) + value
    done = sum(run.timed_steps() for run in group.runs)
    return {phase: value / done * 1e6 for phase, value in totals.items()} if done > 0 else {}


def _centre(result: GroupResult) -> float:
    return math.nan if result.final_return is None else result.final_return.estimate
