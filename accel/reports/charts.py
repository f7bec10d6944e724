"""The report's figures: learning curves, speedups, time by phase, policy lag and mismatch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from types import MappingProxyType

import numpy as np

from accel.monitor.mismatch import ESS_ALARM, KL_ALARM, STALENESS_KL_ALARM
from accel.monitor.plain_text import percent
from accel.reports.aggregates import performance_profile
from accel.reports.analysis import Analysis
from accel.reports.comparison import MIN_SEEDS, QUANTITIES
from accel.reports.curves import Curve, aggregate
from accel.reports.figure import Axis, Bars, Figure, Line, Mark, Panel, Points, Reference
from accel.reports.series import Floats
from accel.reports.tables import FACTORS

STEPS = Axis("environment steps", "steps")
RETURN = Axis("mean training return")
RETURN_CAPTION = (
    "Mean over seeds with a pointwise Student's t band; thin lines are single seeds, where there are not many. A curve "
    "starts where half of the seeds have values; a run that has ended keeps its last value."
)
MAX_SINGLE = 12
"""Runs of which each has a line of its own; those of more would hide their means."""
KL_FLOOR = 1e-6
"""Nats. Less than that is what rounding makes of equal policies."""


@dataclass(frozen=True)
class MetricFigure:
    """A figure of metrics, by name and with their axes, over the metric ``over``."""

    title: str
    metrics: Mapping[str, Axis]
    caption: str
    over: str = "env_steps"


METRIC_FIGURES = MappingProxyType(
    {
        "return_seconds": MetricFigure("Return against wall-clock", {"returns": RETURN}, RETURN_CAPTION, "elapsed_s"),
        "return_steps": MetricFigure("Return against environment steps", {"returns": RETURN}, RETURN_CAPTION),
        "evaluation": MetricFigure(
            "Greedy evaluation",
            {"evaluation_return": Axis("mean return")},
            "Mean return of greedy episodes that the newest policy played beside training, by the steps behind it.",
            "evaluation_env_steps",
        ),
        "episode_length": MetricFigure(
            "Episode length",
            {"length_mean": Axis("steps")},
            "Mean length of the same training episodes that the return is of, in steps of the environment.",
        ),
        "losses": MetricFigure(
            "Losses",
            {f"{name}_loss": Axis(name) for name in ("policy", "actor", "value", "critic")},
            "Terms of the loss in the last update before each record. The policy's falls and rises whether or not "
            "the policy improves; the critic's grows with the returns that it has to predict.",
        ),
        "entropy": MetricFigure(
            "Entropy and explained variance",
            {
                "entropy": Axis("entropy, nats"),
                "explained_variance": Axis("explained variance", limits=(-1.0, 1.05)),
            },
            "Entropy: how much the policy explores; ln n for n equally likely actions, 0 for one. Explained variance: "
            "1 for a critic that predicts its targets, 0 for one that predicts their mean, less for a worse one "
            "(drawn from −1).",
        ),
        "lag": MetricFigure(
            "Policy lag",
            {"lag_mean": Axis("versions", limits=(0, None))},
            "Versions between the policy that acted and the one that learned, on average.",
        ),
    }
)


def figures(analysis: Analysis) -> tuple[Figure, ...]:
    """Every figure with data, in the report's order."""
    found = (
        *(metric_figure(analysis, name) for name in METRIC_FIGURES),
        final_returns(analysis),
        speedups(analysis),
        mismatch(analysis),
        time_per_step(analysis, "actor"),
        time_per_step(analysis, "learner"),
    )
    return tuple(figure for figure in found if figure is not None)


def final_returns(analysis: Analysis) -> Figure | None:
    """The share of runs above each final return; None with fewer than ``MIN_SEEDS`` seeds of every configuration."""
    scores = {group.label: [group.final_returns] for group in analysis.groups if len(group.final_returns)}
    if not scores or max(len(finals) for (finals,) in scores.values()) < MIN_SEEDS:
        return None
    return profile(scores, Axis("final return"))


def profile(scores: Mapping[str, Sequence[Floats]], axis: Axis, reference: Reference | None = None) -> Figure:
    """The share of each configuration's runs above each score, averaged over its environments."""
    own = {label: np.unique(np.concatenate([*tasks])) for label, tasks in scores.items()}
    ends = min(0.0, *(float(values[0]) for values in own.values())), max(float(values[-1]) for values in own.values())
    marks: list[Mark] = []
    for i, (label, tasks) in enumerate(scores.items()):
        x = np.array([ends[0], *own[label], ends[1]])
        marks.append(Line(label, x, performance_profile(tasks, x), colour=i, steps=True))
    panel = Panel([*marks, *([] if reference is None else [reference])], axis, Axis("share of runs above"))
    caption = "The share of runs that score above each value; a curve above another is better there."
    return Figure("profile", "Performance profile", [panel], caption)


def speedups(analysis: Analysis) -> Figure | None:
    """Every speedup with its interval on one logarithmic axis; None when nothing is compared."""
    found = [name for name in QUANTITIES if any(name in c.speedups for c in analysis.comparisons)]
    if not found or analysis.baseline is None:
        return None
    count = len(analysis.comparisons)
    tops = {name: i * (count + 0.8) for i, name in enumerate(found)}
    marks = []
    for i, comparison in enumerate(analysis.comparisons):
        values = {name: comparison.speedups[name] for name in found if name in comparison.speedups}
        y, ends = [tops[name] + i for name in values], [(v.ratio.low, v.ratio.high) for v in values.values()]
        x, label = [value.ratio.estimate for value in values.values()], comparison.group.label
        names = [f"{value.bound} {value.ratio.estimate:.3g}×".strip() for value in values.values()]
        marks.append(Points(label, x, y, ends, names=names, colour=i + 1))
    shown = [end for mark in marks for end in (*mark.x, *chain(*mark.x_ends)) if math.isfinite(end)]
    limits = min(0.8, *shown) / 1.08, max(1.25, *shown) * 1.08
    x_axis = Axis(f"times better than {analysis.baseline.label}", "log", limits)
    inches = 0.3 + (0.2 + 0.24 * count) * len(found)
    ticks = {top + (count - 1) / 2: QUANTITIES[name].title for name, top in tops.items()}
    y_axis = Axis(limits=(len(found) * (count + 0.8) - 1.0, -0.8), ticks=ticks)
    panel = Panel([*marks, Reference(1.0, "equal", "x")], x_axis, y_axis, inches=inches)
    corrected = ", corrected for several comparisons" if len(analysis.comparisons) > 1 else ""
    caption = (
        f"Ratio of geometric means over seeds with Welch's {percent(analysis.choices.confidence)} interval{corrected}. "
        f"A point without a line has fewer than {MIN_SEEDS} seeds on one side. Right of 1 is better."
    )
    return Figure("speedups", f"Speedups over {analysis.baseline.label}", [panel], caption)


def time_per_step(analysis: Analysis, side: str) -> Figure | None:
    """Stacked bars of the ``actor``'s or ``learner``'s time per environment step; None without timings."""
    times = {r.group.label: r.actor_us if side == "actor" else r.learner_us for r in analysis.results}
    times = {label: spent for label, spent in times.items() if sum(spent.values()) > 0}
    if not times:
        return None
    phases = [
        p for p in dict.fromkeys(p for t in times.values() for p in t) if any(t.get(p, 0) for t in times.values())
    ]
    phases.sort(key=lambda phase: phase == "wait")
    parts = {phase: [spent.get(phase, 0.0) for spent in times.values()] for phase in phases}
    x = Axis("µs per environment step" + (", all actors together" if side == "actor" else ""))
    worker = "actors" if side == "actor" else "learner"
    return Figure(
        f"{side}_time",
        "Actor time per step" if side == "actor" else "Learner time per step",
        [Panel([Bars(list(times), parts)], x)],
        f"Where the {worker} spent time, over all seeds of a configuration. Waiting is drawn last.",
    )


def metric_figure(analysis: Analysis, name: str) -> Figure | None:
    """One of ``METRIC_FIGURES``, a panel for each of its metrics; None where none was recorded."""
    wanted, panels = METRIC_FIGURES[name], []
    x = Axis("training time, s") if wanted.over == "elapsed_s" else STEPS
    for metric, axis in wanted.metrics.items():
        curves = [
            aggregate(group, wanted.over, metric, confidence=analysis.choices.confidence) for group in analysis.groups
        ]
        singly = metric == "returns" and len(analysis.runs) <= MAX_SINGLE
        marks: list[Mark] = [
            _line(curve, i, group.label, singly)
            for i, (group, curve) in enumerate(zip(analysis.groups, curves, strict=True))
            if curve is not None
        ]
        if marks and metric == "returns" and analysis.threshold.exists:
            threshold = analysis.threshold.value
            marks.append(Reference(threshold, f"threshold {threshold:.4g}"))
        panels += [Panel(marks, x, axis)] if marks else []
    return Figure(name, wanted.title, panels, wanted.caption) if panels else None


def mismatch(analysis: Analysis) -> Figure | None:
    """Effective sample size and KL over steps, with the alarm levels; None when nothing was recorded.

    A panel for each quantity. Of one configuration a line for each factor; of several configurations a line of each for
    what compression does and for the total.
    """
    several = len(analysis.groups) > 1
    lines: dict[str, list[Line]] = {"ess": [], "kl": []}
    factors: dict[str, str] = {}
    for group, factor, quantity in product(analysis.groups, FACTORS, lines):
        curve = aggregate(group, "env_steps", f"{factor}_{quantity}")
        if curve is None or (several and factor == "staleness"):
            continue
        factors[factor] = FACTORS[factor]
        label = f"{group.label}, {factor}" if several else factor
        least = KL_FLOOR if quantity == "kl" else -math.inf
        lines[quantity].append(_line(curve, len(lines[quantity]), label, least=least))
    if not factors:
        return None
    kl = {KL_ALARM: "compression", STALENESS_KL_ALARM: "others"}
    highest = max([*kl, *(float(np.nanmax(np.asarray(line.y))) for line in lines["kl"])])
    axes = {"ess": Axis("ESS", limits=(0, 1.05)), "kl": Axis("KL, nats", "log", (None, 4 * highest))}
    alarms = {
        "ess": [Reference(ESS_ALARM, f"alarm below {ESS_ALARM:g}")],
        "kl": [Reference(level, f"alarm above {level:g} ({whose})") for level, whose in kl.items()],
    }
    panels = [Panel([*lines[name], *alarms[name]], STEPS, axes[name]) for name in lines if lines[name]]
    caption = (
        "Distance between the policy that acted (μ) and the one that learns (π_θ), with π_v the acting version before "
        f"compression: {', '.join(factors.values())}. In closed form from the recorded "
        "distributions, not from sampled weights. On-policy, the effective sample size (ESS) is 1 and KL 0; a KL below "
        f"{KL_FLOOR:g} is drawn there."
    )
    return Figure("mismatch", "Mismatch over time", panels, caption)


def _line(curve: Curve, colour: int, label: str, singly: bool = False, *, least: float = -math.inf) -> Line:
    """Args: singly: with a thin line for each seed. least: smaller values are drawn there."""
    single = curve.seeds if singly and len(curve.seeds) > 1 else ()
    centre, low, high = (np.maximum(values, least) for values in (curve.centre, curve.low, curve.high))
    return Line(label, curve.x, centre, low, high, colour, single)
