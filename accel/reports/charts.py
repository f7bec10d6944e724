"""The report's charts: learning curves, speedups, time by phase, policy lag, mismatch and decisions."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from accel.monitor.decisions import acting
from accel.monitor.mismatch import ESS_ALARM, KL_ALARM, STALENESS_KL_ALARM
from accel.monitor.plain_text import percent
from accel.reports.analysis import Analysis, GroupResult
from accel.reports.comparison import MIN_SEEDS, QUANTITIES, Speedup
from accel.reports.curves import Axis, Curve, aggregate, column, steps
from accel.reports.drawing import (
    DASHES,
    MUTED,
    SERIES,
    TEXT,
    Drawing,
    finish,
    new_figure,
    phase_colours,
    second_axis,
    step_axis,
    style,
    wrapped,
)
from accel.reports.runs import Group, Run
from accel.reports.series import Floats

PHASE_TITLES = {
    "env": "step environments",
    "policy": "run policy",
    "overhead": "overhead",
    "pull": "pull",
    "deserialise": "deserialise",
    "load": "load policy",
    "timing": "time levels",
    "send": "send",
    "wait": "wait",
}
RATIOS = (0.1, 10.0)
"""Ends of the axis of speedups; what lies beyond is an arrow."""


@dataclass(frozen=True)
class Course:
    """A figure of metrics over environment steps.

    Attributes:
        metrics: by name, its axis' title and ends, None for any.
    """

    title: str
    metrics: Mapping[str, tuple[str, tuple[float, float] | None]]
    caption: str


COURSES = MappingProxyType(
    {
        "evaluation": Course(
            "Greedy evaluation",
            {"evaluation_return": ("mean return", None)},
            "Mean return of greedy episodes that the newest policy played beside training, by the steps behind it.",
        ),
        "episode_length": Course(
            "Episode length",
            {"length_mean": ("steps", None)},
            "Mean length of the same training episodes that the return is of, in steps of the environment.",
        ),
        "losses": Course(
            "Losses",
            {
                "policy_loss": ("policy", None),
                "actor_loss": ("actor", None),
                "value_loss": ("value", None),
                "critic_loss": ("critic", None),
            },
            "Terms of the loss in the last update before each record. The policy's falls and rises whether or not "
            "the policy improves; the critic's grows with the returns that it has to predict.",
        ),
        "entropy": Course(
            "Entropy and explained variance",
            {"entropy": ("entropy, nats", None), "explained_variance": ("explained variance", (-1.0, 1.05))},
            "Entropy: how much the policy explores; ln n for n equally likely actions, 0 for one. Explained variance: "
            "1 for a critic that predicts its targets, 0 for one that predicts their mean, less for a worse one "
            "(drawn from −1).",
        ),
    }
)
MAX_SINGLE = 12
"""Runs of which each has a line of its own; those of more would hide their means."""
LEGEND_LINE, LEGEND_ROWS = 0.19, 2
"""Inches of a legend's line, and how many a figure's height has room for: longer ones make it higher, not its axes
smaller."""
LINE, NARROW = 58, 24
"""Characters in a line of a figure, and of the names left of its bars."""
_ROUND = (1, 0.1, 10, 0.5, 2, 0.2, 5, 0.8, 1.25, 0.7, 1.5, 0.3, 3, 0.9, 1.1, 0.6, 1.75, 0.4, 4, 7)
_APART = 0.11


def learning_curve(analysis: Analysis, axis: str) -> Drawing | None:
    """Return against ``seconds`` of training or environment ``steps``; None when no episode has finished."""
    curves = [r.against_time if axis == "seconds" else r.against_steps for r in analysis.results]
    singly = sum(len(group.runs) for group in analysis.groups) <= MAX_SINGLE
    if all(curve is None for curve in curves):
        return None
    name = f"return_{axis}"
    with style(name):
        figure, (axes,) = new_figure(3.3)
        for i, (result, curve) in enumerate(zip(analysis.results, curves, strict=True)):
            if curve is not None:
                draw_curve(axes, curve, i, f"{result.group.label} ({_seeds(result)})", seeds=singly)
        if math.isfinite(analysis.threshold):
            axes.axhline(analysis.threshold, color=MUTED, linewidth=1, linestyle=":")
            place = (0.01, analysis.threshold)
            label = f"threshold {analysis.threshold:.4g}"
            axes.annotate(label, place, xycoords=("axes fraction", "data"), va="bottom", fontsize=8.5, color=MUTED)
        (second_axis if axis == "seconds" else step_axis)(axes)
        axes.set_ylabel("mean training return")
        legend_below(axes)
        caption = (
            f"Mean over seeds with a pointwise {percent(analysis.choices.confidence)} Student's t band"
            f"{'; thin lines are single seeds' if singly else ''}. A curve starts where half of the seeds have values; "
            "a run that has ended keeps its last value."
        )
        ends = "; ".join(
            f"{r.group.label} ends at {c.centre[-1]:.4g}" for r, c in zip(analysis.results, curves, strict=True) if c
        )
        title = "Return against wall-clock" if axis == "seconds" else "Return against environment steps"
        return finish(figure, name, title, caption, f"{title} in {analysis.environment}: {ends}.")


def speedups(analysis: Analysis) -> Drawing | None:
    """Every speedup with its interval on one logarithmic axis; None when nothing is compared."""
    found = {
        name: [(i, c.speedups[name]) for i, c in enumerate(analysis.comparisons, 1) if name in c.speedups]
        for name in QUANTITIES
    }
    found = {name: values for name, values in found.items() if values}
    if not found or analysis.baseline is None:
        return None
    with style("speedups"):
        figure, (axes,) = new_figure(1.1 + 0.2 * len(found) + 0.22 * sum(map(len, found.values())))
        bottom, ticks = 0.0, []
        for values in found.values():
            for i, value in values:
                _draw_speedup(axes, bottom, value, i)
                bottom += 1.0
            ticks.append(bottom - (len(values) + 1) / 2)
            bottom += 0.8
        axes.axvline(1.0, color=TEXT, linewidth=1)
        _ratio_axis(axes)
        axes.set_yticks(ticks, [QUANTITIES[name].title for name in found])
        axes.set_ylim(bottom - 1.0, -0.8)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(wrapped(f"times better than {analysis.baseline.label}", LINE))
        if len(analysis.comparisons) > 1:
            for i, comparison in enumerate(analysis.comparisons, 1):
                axes.plot([], [], "o-", color=SERIES[i % len(SERIES)], label=comparison.group.label)
            legend_below(axes)
        caption = (
            f"Ratio of geometric means over seeds with Welch's {percent(analysis.choices.confidence)} interval"
            f"{', corrected for several comparisons' if len(analysis.comparisons) > 1 else ''}. A point without a line "
            f"has fewer than {MIN_SEEDS} seeds on one side. Right of 1 is better. An arrow marks what lies beyond "
            f"{RATIOS[0]:g} or {RATIOS[1]:g}."
        )
        labels = ["", *(c.group.label for c in analysis.comparisons)]
        alt = "; ".join(
            f"{labels[i]}, {QUANTITIES[name].title}: {value.ratio.estimate:.3g} times"
            for name, values in found.items()
            for i, value in values
        )
        return finish(figure, "speedups", f"Speedups over {analysis.baseline.label}", caption, f"{alt}.")


def time_per_step(analysis: Analysis, side: str) -> Drawing | None:
    """Stacked bars of the ``actor``'s or ``learner``'s time per environment step; None without timings."""
    bars = [(r.group.label, r.actor_us if side == "actor" else r.learner_us) for r in analysis.results]
    bars = [(label, times) for label, times in bars if sum(times.values()) > 0]
    if not bars:
        return None
    name = f"{side}_time"
    with style(name):
        phases = [
            p for p in dict.fromkeys(p for _, times in bars for p in times) if any(t.get(p, 0) > 0 for _, t in bars)
        ]
        lines = sum(wrapped(label, NARROW).count("\n") for label, _ in bars)
        figure, (axes,) = new_figure(1.5 + 0.36 * len(bars) + 0.14 * lines + 0.16 * len(phases) / 3)
        _stack(axes, bars, phases)
        axes.set_xlabel("µs per environment step" + (", all actors together" if side == "actor" else ""))
        legend_below(axes, columns=3)
        worker = "actors" if side == "actor" else "learner"
        caption = f"Where the {worker} spent time, over all seeds of a configuration. Waiting is drawn last."
        alt = "; ".join(f"{label}: " + ", ".join(f"{p} {t:.3g} µs" for p, t in times.items()) for label, times in bars)
        title = "Actor time per step" if side == "actor" else "Learner time per step"
        return finish(figure, name, title, caption, f"{alt}.")


def course(analysis: Analysis, name: str) -> Drawing | None:
    """One of ``COURSES`` over environment steps, a panel for each of its metrics; None where none was recorded."""
    wanted = COURSES[name]
    found = [
        (i, group.label, metric, curve)
        for i, group in enumerate(analysis.groups)
        for metric in wanted.metrics
        if (curve := aggregate(group, _steps_of(metric), column(metric))) is not None
    ]
    metrics = [metric for metric in wanted.metrics if any(metric == m for _, _, m, _ in found)]
    if not metrics:
        return None
    with style(name):
        figure, axes = new_figure(1.5 + 1.45 * len(metrics), rows=len(metrics))
        lines: list[str] = []
        for i, label, metric, curve in found:
            known = label in lines
            lines += [] if known else [label]
            draw_curve(axes[metrics.index(metric)], curve, i, f"_{label}" if known else label, seeds=False)
        for target, metric in zip(axes, metrics, strict=True):
            title, limits = wanted.metrics[metric]
            target.set_ylabel(title)
            if limits is not None:
                target.set_ylim(*limits)
        step_axis(axes[-1])
        legend_below(*axes)
        ends = "; ".join(f"{label}, {metric}: ends at {curve.centre[-1]:.3g}" for _, label, metric, curve in found)
        return finish(figure, name, wanted.title, wanted.caption, f"{wanted.title}: {ends}.")


def _steps_of(metric: str) -> Axis:
    """Evaluations come later than the steps that they are of."""
    return column("evaluation_env_steps") if metric.startswith("evaluation_") else steps


def draw_curve(axes: Axes, curve: Curve, index: int, label: str, *, seeds: bool = True) -> None:
    """One group's line, band and single seeds, in the colour and dash of its index; a single point is a dot."""
    colour, dash = SERIES[index % len(SERIES)], DASHES[index % len(DASHES)]
    if seeds and len(curve.seeds) > 1:
        for x, y in curve.seeds:
            axes.plot(x, y, color=colour, alpha=0.3, linewidth=0.7, marker=point_marker(y), markersize=3)
    if len(curve.x) > 1:
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)
    else:
        axes.vlines(curve.x, curve.low, curve.high, color=colour, alpha=0.4)
    marker = point_marker(curve.centre)
    axes.plot(curve.x, curve.centre, color=colour, linestyle=dash, marker=marker, markersize=5, label=label)


def point_marker(y: Floats) -> str | None:
    """A dot for a single value, which no line shows."""
    return "o" if np.isfinite(y).sum() == 1 else None


def legend_below(*axes: Axes, columns: int = 1) -> None:
    """One legend for all axes of a figure, under them, where it hides nothing; long names take several lines."""
    pairs = [pair for one in axes for pair in zip(*one.get_legend_handles_labels(), strict=True)]
    if pairs and (figure := axes[0].get_figure(root=True)) is not None:
        handles, names = zip(*pairs, strict=True)
        columns = columns if columns > 1 else (2 if max(map(len, names)) < NARROW + 4 else 1)
        rows = -(-sum(wrapped(name, LINE).count("\n") + 1 for name in names) // columns)
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + LEGEND_LINE * max(rows - LEGEND_ROWS, 0))
        figure.legend(handles, [wrapped(name, LINE) for name in names], loc="outside lower center", ncols=columns)


def _stack(axes: Axes, bars: Sequence[tuple[str, Mapping[str, float]]], phases: list[str]) -> None:
    ordered = [p for p in phases if p != "wait"] + [p for p in phases if p == "wait"]
    colours = phase_colours(ordered)
    widest = max(sum(times.values()) for _, times in bars)
    starts = [0.0] * len(bars)
    for phase in ordered:
        widths = [times.get(phase, 0.0) for _, times in bars]
        axes.barh(range(len(bars)), widths, 0.62, starts, color=colours[phase], label=PHASE_TITLES.get(phase, phase))
        for y, (width, start) in enumerate(zip(widths, starts, strict=True)):
            if width > 0.09 * widest:
                dark = phase in {"wait", "policy", "correct", "measure"}
                ink = "#10161d" if dark else "#fdfdfd"
                axes.text(
                    start + width / 2,
                    y,
                    f"{width:.3g}" if width < 1000 else f"{width:,.0f}",
                    ha="center",
                    va="center",
                    fontsize=8.5,
                    color=ink,
                )
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    axes.set_yticks(range(len(bars)), [wrapped(label, NARROW) for label, _ in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)


def _draw_speedup(axes: Axes, y: float, value: Speedup, index: int) -> None:
    """The interval and its estimate, cut to the axis, with arrows where something lies beyond it."""
    colour, ratio = SERIES[index % len(SERIES)], value.ratio
    low, high = (ratio.low, ratio.high) if value.has_interval else (ratio.estimate, ratio.estimate)
    shown = np.clip([low, ratio.estimate, high], *RATIOS)
    axes.plot(shown[[0, 2]], [y, y], color=colour, linewidth=2.2)
    if RATIOS[0] <= ratio.estimate <= RATIOS[1]:
        axes.plot([ratio.estimate], [y], "o", color=colour, markersize=5.5)
    for beyond, edge, marker in ((low < RATIOS[0], RATIOS[0], "<"), (high > RATIOS[1], RATIOS[1], ">")):
        if beyond:
            axes.plot([edge], [y], marker, color=colour, markersize=7, clip_on=False)
    place = ("axes fraction", "data")
    axes.annotate(f"{ratio.estimate:.3g}×", (1.03, y), xycoords=place, va="center", fontsize=8.5, color=TEXT)


def _ratio_axis(axes: Axes) -> None:
    """A logarithmic axis over the ratios drawn, within ``RATIOS``, with round ratios on it, 1 among them."""
    drawn = np.concatenate([line.get_xdata() for line in axes.lines])
    low = max(min(float(drawn.min()) / 1.15, 0.8), RATIOS[0])
    high = min(max(float(drawn.max()) * 1.15, 1.25), RATIOS[1])
    ticks = ratio_ticks(low, high)
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xlim(low, high)


def ratio_ticks(low: float, high: float) -> list[float]:
    """Round ratios from ``low`` to ``high``, the roundest first, that stand apart from one another on a log axis."""
    chosen: list[float] = []
    for tick in _ROUND:
        if low <= tick <= high and all(abs(math.log(tick / t)) >= _APART * math.log(high / low) for t in chosen):
            chosen.append(tick)
    return sorted(chosen)


def _seeds(result: GroupResult) -> str:
    count = len(result.group.runs)
    return "1 seed" if count == 1 else f"{count} seeds"


MAX_TIME_LINES = 4
MAX_BANDS = 2
KL_FLOOR = 1e-6
"""Nats. Less than that is what rounding makes of equal policies."""
_FACTORS = re.compile(r"^(staleness|compression|total)_(ess|kl)(?:/(.+))?$")
_PANELS = {"ess": ("ESS", "below"), "kl": ("KL, nats", "above")}
_HEIGHTS = ("centre", "low", "high")
_SAMPLED = {"rho_ess": ("sampled", "ess"), "behaviour_kl": ("sampled", "kl")}


def policy_lag(analysis: Analysis) -> Drawing | None:
    """Mean policy lag over steps, with the band from the least to the greatest; None when it was never recorded."""
    with style("lag"):
        figure, (axes,) = new_figure(3.0)
        said = []
        banded = len(analysis.groups) <= MAX_BANDS
        for i, group in enumerate(analysis.groups):
            low, middle, high = (aggregate(group, steps, column(f"lag_{kind}")) for kind in ("min", "mean", "max"))
            if low is None or middle is None or high is None:
                continue
            colour = SERIES[i % len(SERIES)]
            x = middle.x
            if banded:
                bottom, top = (np.interp(x, curve.x, curve.centre) for curve in (low, high))
                if len(x) > 1:
                    axes.fill_between(x, bottom, top, color=colour, alpha=0.15, linewidth=0)
                else:
                    axes.vlines(x, bottom, top, color=colour, alpha=0.4)
            dash, marker = DASHES[i % len(DASHES)], point_marker(middle.centre)
            axes.plot(x, middle.centre, color=colour, linestyle=dash, marker=marker, label=group.label)
            said.append(f"{group.label}: mean lag {float(np.mean(middle.centre)):.3g} versions")
        if not said:
            return None
        axes.set_ylim(bottom=0)
        step_axis(axes)
        axes.set_ylabel("policy lag, versions")
        legend_below(axes)
        band = "; the band goes from the least to the greatest" if banded else ""
        caption = f"Versions between the policy that acted and the one that learned, on average{band}."
        return finish(figure, "lag", "Policy lag", caption, f"{'; '.join(said)}.")


def mismatch(analysis: Analysis) -> Drawing | None:
    """Effective sample size and KL over steps, with the alarm levels; None when nothing was recorded.

    Of one configuration a panel for each quantity, with a line for each factor; of several a panel for each factor and
    quantity, compression before the total, with a line for each configuration.
    """
    several = len(analysis.groups) > 1
    found = [
        (i, quantity, factor, curve)
        for i, group in enumerate(analysis.groups)
        for name, factor, quantity in _factors(group, several)
        if (curve := aggregate(group, steps, column(name))) is not None
    ]
    keys = dict.fromkeys((factor if several else "", quantity) for _, quantity, factor, _ in found)
    panels = sorted(keys, key=lambda key: (key[0], list(_PANELS).index(key[1])))
    if not panels:
        return None
    with style("mismatch"):
        figure, axes = new_figure(0.9 + (1.45 if several else 1.8) * len(panels), rows=len(panels))
        lines: list[str] = []
        said = []
        for i, quantity, factor, curve in found:
            label = analysis.groups[i].label if several else factor
            known = label in lines
            lines += [] if known else [label]
            target = axes[panels.index((factor if several else "", quantity))]
            if quantity == "kl":
                curve = replace(curve, **{name: np.maximum(getattr(curve, name), KL_FLOOR) for name in _HEIGHTS})
            draw_curve(target, curve, lines.index(label), f"_{label}" if known else label, seeds=False)
            said.append(f"{label}{f', {factor}' if several else ''}: {quantity.upper()} ends at {curve.centre[-1]:.3g}")
        for target, (factor, quantity) in zip(axes, panels, strict=True):
            _finish_panel(target, factor, quantity, {entry[2] for entry in found})
        step_axis(axes[-1])
        legend_below(*axes)
        caption = _mismatch_caption({entry[2].partition(" ")[0] for entry in found})
        return finish(figure, "mismatch", "Mismatch over time", caption, f"{'; '.join(said)}.")


def _mismatch_caption(factors: Set[str]) -> str:
    meanings = {
        "staleness": "staleness π_θ/π_v",
        "compression": "compression π_v/μ",
        "total": "the total π_θ/μ",
        "sampled": "the weights π_θ/μ of sampled actions, the only ones these runs recorded",
    }
    shown = ", ".join(text for factor, text in meanings.items() if factor in factors)
    how = " In closed form from the recorded distributions, not from sampled weights." if factors != {"sampled"} else ""
    return (
        "Distance between the policy that acted (μ) and the one that learns (π_θ), with π_v the acting version before "
        f"compression: {shown}.{how} On-policy, the effective sample size (ESS) is 1 and KL 0; a KL below "
        f"{KL_FLOOR:g} is drawn there."
    )


def decisions(analysis: Analysis) -> Drawing | None:
    """Which scheme each actor had when, one row of axes for a run; None when nothing was decided."""
    chosen = [run for group in analysis.groups for run in group.runs if run.decisions][:MAX_TIME_LINES]
    if not chosen:
        return None
    with style("decisions"):
        levels = list(
            dict.fromkeys(acting(t) for run in chosen for d in run.decisions for t in (d.before, d.after) if t)
        )
        figure, axes = new_figure(0.9 + len(chosen) * (0.5 + 0.26 * len(levels)), rows=len(chosen))
        for target, run in zip(axes, chosen, strict=True):
            for i, (x, y) in enumerate(steps_by_actor(run, levels)):
                shift = 0.08 * (i % 5)
                target.step(x, y + shift, where="post", color=SERIES[i % len(SERIES)], linewidth=1.6)
                target.plot(x[1:-1], y[1:-1] + shift, ".", color=SERIES[i % len(SERIES)], markersize=5)
            target.set_yticks(range(len(levels)), [wrapped(level, NARROW) for level in levels], fontsize=8.5)
            target.set_ylim(-0.5, len(levels) - 0.3)
            target.set_title(wrapped(run.name, LINE), loc="left", fontsize=9.5)
        step_axis(axes[-1])
        count = sum(len(run.decisions) for run in chosen)
        caption = (
            f"{count} decisions; a line for each actor shows what acted, a dot a decision, including those without a "
            "change. Reasons are in the table."
        )
        alt = "; ".join(
            f"{run.name}: {len(run.decisions)} decisions, last {acting(run.decisions[-1].after)}" for run in chosen
        )
        return finish(figure, "decisions", "Compression levels over time", caption, f"{alt}.")


def _finish_panel(axes: Axes, factor: str, quantity: str, factors: Set[str]) -> None:
    """Alarm levels, scale and title of one panel; of several configurations its factor is in the title."""
    title, side = _PANELS[quantity]
    axes.set_ylabel(f"{factor}\n{title}" if factor else title)
    compression = any(name.startswith("compression") for name in factors) if not factor else factor == "compression"
    stale = any(not name.startswith("compression") for name in factors) if not factor else factor != "compression"
    levels = {ESS_ALARM: ""}
    if quantity == "kl":
        levels = {KL_ALARM: " (compression)"} if compression else {}
        levels |= {STALENESS_KL_ALARM: " (others)" if compression else ""} if stale else {}
    for level, whose in levels.items():
        axes.axhline(level, color=MUTED, linewidth=1, linestyle=":")
        axes.annotate(
            f"alarm {side} {level:g}{whose if len(levels) > 1 else ''}",
            (0.99, level),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=8,
            color=MUTED,
        )
    if quantity == "ess":
        axes.set_ylim(0, 1.05)
    else:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, KL_FLOOR / 1.5), max(high, 4 * max(levels)))
        axes.yaxis.set_major_locator(LogLocator(numticks=5))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_locator(NullLocator())


def _factors(group: Group, several: bool) -> list[tuple[str, str, str]]:
    """Columns of mismatch to draw: (column, factor, ess or kl).

    Compression and the total where they were measured, and what the actors' sampled weights say where not; of a single
    group also staleness, and compression by scheme when there were several.
    """
    names = list(dict.fromkeys(name for run in group.runs for name in run.series.columns))
    schemes = {scheme for name in names if (scheme := name.partition("/")[2]) and name.startswith("compression_ess/")}
    found = []
    for name in names:
        if match := _FACTORS.match(name):
            factor, quantity, scheme = match.groups()
            by_scheme = scheme is not None and factor == "compression" and len(schemes) > 1
            if (not several or factor != "staleness") and (scheme is None or (by_scheme and not several)):
                found.append((name, f"{factor} {scheme}" if scheme else factor, quantity))
    if not found:
        found = [(name, *_SAMPLED[name]) for name in names if name in _SAMPLED]
    return sorted(found, key=lambda entry: (entry[1], entry[2]))


def steps_by_actor(run: Run, levels: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each actor the environment steps and level indices of its time line.

    A decision for all actors is one of each. Those for which no decision was made alone have one line together; there
    is none where ``actors`` in the run's configuration leaves nobody.
    """
    actors = list(dict.fromkeys(decision.actor for decision in run.decisions))
    alone, count = len({*actors} - {None}), run.config.get("actors")
    if alone and not (isinstance(count, int) and count > alone):
        actors = [actor for actor in actors if actor is not None]
    end = run.steps if math.isfinite(run.steps) else 0.0
    drawn = []
    for actor in actors:
        made = [decision for decision in run.decisions if decision.actor in {actor, None}]
        first, last = made[0], made[-1]
        x = [0.0, *(float(d.env_steps) for d in made), max(end, float(last.env_steps))]
        texts = [acting(text) for text in (first.before or first.after, *(d.after for d in made), last.after)]
        y = [float(levels.index(text)) if text in levels else math.nan for text in texts]
        drawn.append((np.array(x), np.array(y)))
    return drawn
