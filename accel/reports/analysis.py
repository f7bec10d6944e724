"""From runs to a report's numbers: thresholds, speedups, verdicts, bottlenecks. No files, no drawing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import tyro

from accel.display.arguments import argument
from accel.errors import ReportError
from accel.monitor.plain_text import percent
from accel.monitor.statistics import Interval, difference_of_means, mean_interval
from accel.reports.caveats import caveats, differences, obstacles
from accel.reports.comparison import (
    MIN_SEEDS,
    QUANTITIES,
    ReturnVerdict,
    Speedup,
    compare_returns,
    speedup,
    values_of,
)
from accel.reports.curves import LEAST_SEEDS
from accel.reports.runs import Group, Run, group_runs, relabelled
from accel.reports.targets import Target, common_target, margin_of, threshold_of


@dataclass(frozen=True, kw_only=True)
class Choices:
    """How a report is made. Of several comparisons with one baseline, ``confidence`` and ``alpha``, the level of the
    non-inferiority test, hold for all of them together."""

    threshold: Annotated[
        float | None,
        argument("return for time to threshold; default: the runs' stop-at-return; in tables, else 90 % of the gain"),
    ] = None
    group_by: Annotated[
        tuple[str, ...],
        argument("options, such as compressor, by which to put runs together; default: all but the seed", name="group"),
    ] = ()
    labels: Annotated[
        tuple[str, ...],
        argument(
            "names of the configurations, one for each, in their order, a baseline first; default: what differs "
            "where that is short, else the runs' names",
            name="label",
        ),
    ] = ()
    confidence: Annotated[float, tyro.conf.arg(help="confidence level of the intervals, in (0, 1)")] = 0.95
    margin: Annotated[
        float, tyro.conf.arg(help="how much lower a return still counts as the same, as a share of the baseline's gain")
    ] = 0.05
    margin_return: Annotated[
        float | None, tyro.conf.arg(help="the same in units of return, such as 25; replaces the share")
    ] = None
    force: Annotated[bool, tyro.conf.arg(help="compare what is not comparable, and mark it")] = False
    alpha: tyro.conf.Suppress[float] = 0.05

    def __post_init__(self) -> None:
        for name, value in (("margin", self.margin), ("margin_return", self.margin_return)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ReportError(f"{name} = {value}; needs a number above 0")
        if not (0 < self.confidence < 1 and 0 < self.alpha < 0.5):
            raise ReportError(f"confidence = {self.confidence}, alpha = {self.alpha}; needs (0, 1) and (0, 0.5)")
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise ReportError(f"threshold = {self.threshold}; needs a return")

    def corrected(self, comparisons: int) -> Choices:
        """With the confidence and level at which that many comparisons hold together.

        Bonferroni's correction, which holds however they depend on each other. Holm's step-down procedure rejects more
        hypotheses, but its decisions cannot be read off intervals.
        """
        return replace(self, confidence=1 - (1 - self.confidence) / comparisons, alpha=self.alpha / comparisons)


@dataclass(frozen=True, eq=False)
class GroupResult:
    """A group's numbers.

    Attributes:
        final_return: mean over seeds with Student's t interval, whose ends are NaN below ``LEAST_SEEDS``.
        by_quantity: the seeds' values of each of ``QUANTITIES``.
        reached: seeds that reached the threshold.
        actor_us, learner_us: microseconds per environment step by phase, over all seeds.
    """

    group: Group
    final_return: Interval | None
    by_quantity: Mapping[str, tuple[float, ...]]
    reached: int
    actor_us: Mapping[str, float]
    learner_us: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Comparison:
    """One group against the baseline.

    Attributes:
        speedups: by quantity.
        main: the speedup of the headline: to a threshold that was asked for, otherwise the first that is known.
        marks: why it should not have been compared.
    """

    group: Group
    speedups: Mapping[str, Speedup]
    verdict: ReturnVerdict
    main: Speedup | None
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Analysis:
    """Everything a report says; ``baseline`` is None and ``comparisons`` empty when nothing is compared.

    Attributes:
        threshold: of tables and figures. margin: of "no loss of return".
    """

    choices: Choices
    results: tuple[GroupResult, ...]
    baseline: Group | None
    comparisons: tuple[Comparison, ...]
    threshold: Target
    margin: Target
    caveats: tuple[str, ...] = ()

    @property
    def target(self) -> float:
        """The threshold where the user or the runs set it, otherwise NaN: what headline and verdicts are about."""
        return math.nan if self.threshold.derived else self.threshold.value

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups, the baseline first."""
        return tuple(result.group for result in self.results)

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs, group by group."""
        return tuple(run for group in self.groups for run in group.runs)

    @property
    def environment(self) -> str:
        """The environment's id, or all of them."""
        return ", ".join(dict.fromkeys(str(group.config.get("env", "unknown")) for group in self.groups))


def analyse(runs: Sequence[Run], choices: Choices, baseline: Run | None = None) -> Analysis:
    """Group runs, measure them and, given a baseline, compare the other groups with its group.

    Args:
        baseline: one of ``runs``; its whole group is the baseline.
    Raises:
        ReportError: no other group, or groups that cannot be compared and no ``force``.
    """
    groups = group_runs(runs, choices.group_by)
    if baseline is not None:
        groups = tuple(sorted(groups, key=lambda group: baseline not in group.runs))
    if choices.labels:
        groups = relabelled(groups, choices.labels)
    if baseline is not None:
        _check_comparable(groups, choices.force)
    threshold = threshold_of(groups, choices.threshold)
    results = tuple(_measure(group, threshold.value, choices) for group in groups)
    margin = margin_of(groups[0], choices.margin, choices.margin_return)
    notes = [note for group in groups for note in caveats(group)]
    comparisons: tuple[Comparison, ...] = ()
    if baseline is not None:
        corrected = choices.corrected(len(groups) - 1)
        comparisons = tuple(_compare(groups[0], group, threshold, margin, corrected) for group in groups[1:])
        notes += differences(groups[0], groups[1:])
    return Analysis(
        choices,
        results,
        None if baseline is None else groups[0],
        comparisons,
        threshold,
        margin,
        tuple(notes),
    )


def _check_comparable(groups: Sequence[Group], force: bool) -> None:
    if len(groups) < 2:
        raise ReportError(
            "nothing to compare: every run has the baseline's configuration. Name runs of another, or use accel report"
        )
    if force:
        return
    found = [f"{g.label}: {reason}" for g in groups[1:] for reason in obstacles(groups[0], g)]
    found += [f"{r.name} has not finished (no summary.json)" for r in groups[0].runs if r.summary is None]
    if found:
        raise ReportError(
            "these runs cannot be compared:\n  " + "\n  ".join(found) + "\n--force compares them anyway, and marks them"
        )


def _measure(group: Group, threshold: float, choices: Choices) -> GroupResult:
    returns = group.final_returns
    final: Interval | None = None
    if len(returns) >= LEAST_SEEDS:
        final = mean_interval(returns, confidence=choices.confidence)
    elif len(returns):
        final = Interval.point(float(np.mean(returns)), len(returns))
    by_quantity = {name: values_of(group, name, threshold) for name in QUANTITIES}
    reached = sum(run.crossing(threshold) is not None for run in group.runs)
    times = _us_per_step(group, "actor"), _us_per_step(group, "learner")
    return GroupResult(group, final, by_quantity, reached, *times)


def _compare(baseline: Group, group: Group, threshold: Target, margin: Target, choices: Choices) -> Comparison:
    found = {name: speedup(baseline, group, name, threshold.value, choices.confidence) for name in QUANTITIES}
    if any(side.values("stop_at_return") != (None,) for side in (baseline, group)):
        # A run that reaches its target stops early, so its training time says nothing by itself, and what it spent is
        # nothing to compare with what a run spent that missed it.
        stopped = _stopped_at(baseline, group) is not None
        for name in ("training_s", *(() if stopped else ("wall_s", "cpu_s"))):
            del found[name]
    speedups = {name: value for name, value in found.items() if value is not None}
    order = ("time_to_threshold_s", "env_steps_per_s", "actor_us_per_step", "training_s")[threshold.derived :]
    main = next((speedups[name] for name in order if name in speedups), None)
    marks = obstacles(baseline, group) if choices.force else ()
    return Comparison(group, speedups, _verdict(baseline, group, margin, choices), main, marks)


def _verdict(baseline: Group, group: Group, margin: Target, choices: Choices) -> ReturnVerdict:
    """By construction where every run stopped at the same target, otherwise by test."""
    ours, theirs = baseline.final_returns, group.final_returns
    target = _stopped_at(baseline, group)
    if not len(ours) or not len(theirs):
        return ReturnVerdict("untested", "no finished episode")
    if target is not None and min(len(ours), len(theirs)) >= MIN_SEEDS:
        difference = difference_of_means(theirs, ours, confidence=1 - 2 * choices.alpha)
        return ReturnVerdict("no_loss", f"by construction, every run stopped at {target:g}", difference, margin.value)
    if target is None and not margin.exists:
        return ReturnVerdict("untested", f"{margin.source}; --margin-return sets a margin in return")
    source = "" if choices.margin_return is not None else f" ({percent(choices.margin)} of the baseline's gain)"
    return compare_returns(ours, theirs, margin.value, alpha=choices.alpha, source=source)


def _stopped_at(baseline: Group, group: Group) -> float | None:
    """The target at which every run of both sides stopped; None where they have no common one or one missed it."""
    target = common_target((baseline, group))
    if target is None or any(run.crossing(target) is None for side in (baseline, group) for run in side.runs):
        return None
    return target


def _us_per_step(group: Group, side: str) -> dict[str, float]:
    totals: dict[str, float] = {}
    for run in group.runs:
        for phase, value in run.seconds_by_phase(side).items():
            totals[phase] = totals.get(phase, 0.0) + value
    done = sum(run.timed_steps() for run in group.runs)
    return {phase: value / done * 1e6 for phase, value in totals.items()} if done > 0 else {}
