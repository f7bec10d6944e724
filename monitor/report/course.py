"""The report's figures of a run's course: policy lag, mismatch with its alarm levels, decisions on a time line."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence, Set
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from monitor.decisions import acting
from monitor.mismatch import ESS_ALARM, KL_ALARM, STALENESS_KL_ALARM
from monitor.report.analysis import Analysis
from monitor.report.curves import aggregate, column, steps
from monitor.report.drawing import DASHES, MUTED, SERIES, Drawing, finish, new_figure, step_axis, style
from monitor.report.figures import LINE, NARROW, draw_curve, legend_below, point_marker
from monitor.report.labels import wrapped
from monitor.report.runs import Group, Run

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
    generator = np.random.default_rng(analysis.choices.seed)
    with style("lag"):
        figure, (axes,) = new_figure(3.0)
        said = []
        banded = len(analysis.groups) <= MAX_BANDS
        for i, group in enumerate(analysis.groups):
            low, middle, high = (
                aggregate(group, steps, column(f"lag_{kind}"), generator=generator) for kind in ("min", "mean", "max")
            )
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
    generator = np.random.default_rng(analysis.choices.seed)
    several = len(analysis.groups) > 1
    found = [
        (i, quantity, factor, curve)
        for i, group in enumerate(analysis.groups)
        for name, factor, quantity in _factors(group, several)
        if (curve := aggregate(group, steps, column(name), generator=generator)) is not None
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
        "sampled": "the weights π_θ/μ of the actions that were taken, the only ones these runs recorded",
    }
    shown = ", ".join(text for factor, text in meanings.items() if factor in factors)
    how = " In closed form from the recorded distributions, not from sampled weights." if factors != {"sampled"} else ""
    return (
        "How far the policy that acted (μ) was from the one that learns (π_θ), π_v being the version that acted before "
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
            f"{count} decisions; a line for each actor shows what acted, a dot a decision, also one that changed "
            "nothing. The reasons are in the table."
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
