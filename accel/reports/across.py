"""Configurations compared over several environments: every run's gain by the baseline's mean gain there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from accel.errors import ReportError
from accel.monitor.plain_text import percent
from accel.monitor.statistics import Interval
from accel.reports.aggregates import interquartile_mean, stratified_bootstrap
from accel.reports.analysis import Analysis
from accel.reports.charts import profile
from accel.reports.comparison import MIN_SEEDS
from accel.reports.figure import Axis, Figure, Reference
from accel.reports.series import Floats
from accel.reports.tables import Table
from accel.reports.targets import gain_of


@dataclass(frozen=True, eq=False)
class Across:
    """What several environments say together.

    Attributes:
        analyses: of each environment, by its name; the same configurations in all of them, the baseline first.
        scores: of each configuration, [seeds] for each environment: (final return − first) / (the baseline's mean final
            return − its mean first): 0 has learned nothing, 1 as much as the baseline.
        overall: of each configuration, the interquartile mean of all scores with its bootstrapped interval, whose ends
            are NaN where an environment has fewer than ``MIN_SEEDS`` seeds.
    """

    analyses: Mapping[str, Analysis]
    scores: Mapping[str, Sequence[Floats]]
    overall: Mapping[str, Interval]

    @property
    def baseline(self) -> str:
        """Its label."""
        return next(iter(self.scores))


def over_environments(analyses: Mapping[str, Analysis]) -> Across:
    """Scores of the configurations that all environments share.

    Raises: ReportError: an environment lacks a configuration, or its baseline learned nothing to measure by.
    """
    labels = [tuple(group.label for group in analysis.groups) for analysis in analyses.values()]
    if any(set(found) != set(labels[0]) for found in labels):
        found = "; ".join(f"{env}: {', '.join(names)}" for env, names in zip(analyses, labels, strict=True))
        raise ReportError(f"environments with other configurations ({found}): name runs of each in all of them")
    scores: dict[str, list[Floats]] = {label: [] for label in labels[0]}
    for environment, analysis in analyses.items():
        first, final, spread = gain_of(analysis.groups[0])
        if not final - first > spread:
            raise ReportError(
                f"{environment}: the baseline, {analysis.groups[0].label}, gained {final - first:.4g} with a standard "
                f"deviation of {spread:.4g} between its seeds, which is no measure for others: leave it out"
            )
        for group in analysis.groups:
            if not len(group.final_returns):
                raise ReportError(f"{environment}: no run of {group.label} has finished an episode: leave it out")
            scores[group.label].append((group.final_returns - first) / (final - first))
    confidence = next(iter(analyses.values())).choices.confidence
    return Across(analyses, scores, {label: _overall(found, confidence) for label, found in scores.items()})


def _overall(tasks: Sequence[Floats], confidence: float) -> Interval:
    if min(map(len, tasks)) < MIN_SEEDS:
        return Interval.point(interquartile_mean(tasks), sum(map(len, tasks)))
    return stratified_bootstrap(tasks, confidence=confidence)


def headline(across: Across) -> str:
    """The configuration beside the baseline that gained most, in a sentence."""
    others = [label for label in across.scores if label != across.baseline]
    best = max(others, key=lambda label: across.overall[label].estimate)
    return (
        f"{best}: {across.overall[best]:.3g} of the gain of {across.baseline} over {len(across.analyses)} environments"
    )


def scores_table(across: Across) -> Table:
    """One row an environment, then all of them."""
    rows = [
        (environment, *(f"{found[i].mean():.3g} ({len(found[i])})" for found in across.scores.values()))
        for i, environment in enumerate(across.analyses)
    ]
    confidence = next(iter(across.analyses.values())).choices.confidence
    rows.append(("interquartile mean of all", *(f"{value:.3g}" for value in across.overall.values())))
    notes = (
        ("score", f"a run's gain in return by the mean gain of {across.baseline} in the same environment; (seeds)"),
        (
            "interquartile mean",
            f"of the middle half of all runs' scores, with a bootstrapped {percent(confidence)} interval that "
            f"draws seeds within each environment, from {MIN_SEEDS} seeds on; {across.baseline}'s mean gain is fixed",
        ),
    )
    return Table("Mean scores by environment.", ("environment", *across.scores), tuple(rows), notes)


def figure(across: Across) -> Figure:
    """The share of runs above each score."""
    scores = Axis(f"gain by the mean gain of {across.baseline}")
    reference = Reference(1.0, f"mean of {across.baseline}", "x")
    return profile(across.scores, scores, reference)
