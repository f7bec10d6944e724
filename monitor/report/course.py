"""The report's figures of a run's course: policy lag, mismatch with its alarm levels, decisions on a time line."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from monitor.decisions import Decision
from monitor.mismatch import ESS_ALARM, KL_ALARM
from monitor.report.analysis import Analysis
from monitor.report.curves import aggregate, column, steps
from monitor.report.drawing import DASHES, MUTED, SERIES, Drawing, finish, large_numbers, new_figure, style
from monitor.report.figures import draw_curve, legend_below, short
from monitor.report.runs import Group, Run

MAX_TIME_LINES = 4
MAX_BANDS = 2
_FACTORS = re.compile(r"^(staleness|compression|total)_(ess|kl)(?:/(.+))?$")
_PANELS = {
    "ess": ("effective\nsample size", ESS_ALARM, "below"),
    "kl": ("KL, nats", KL_ALARM, "above"),
}
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
                axes.fill_between(x, bottom, top, color=colour, alpha=0.15, linewidth=0)
            axes.plot(x, middle.centre, color=colour, linestyle=DASHES[i % len(DASHES)], label=short(group.label))
            said.append(f"{group.label}: mean lag {float(np.mean(middle.centre)):.3g} versions")
        if not said:
            return None
        axes.set_ylim(bottom=0)
        large_numbers(axes, "x")
        axes.set_xlabel("environment steps")
        axes.set_ylabel("policy lag, versions")
        legend_below(axes)
        band = "; the band goes from the least to the greatest" if banded else ""
        caption = f"Versions between the policy that acted and the one that learned, on average{band}."
        return finish(figure, "lag", "Policy lag", caption, f"{'; '.join(said)}.")


def mismatch(analysis: Analysis) -> Drawing | None:
    """Effective sample size and KL over steps by factor, with the alarm levels; None when nothing was recorded."""
    generator = np.random.default_rng(analysis.choices.seed)
    found = [
        (i, quantity, factor, curve)
        for i, group in enumerate(analysis.groups)
        for name, factor, quantity in _factors(group, len(analysis.groups) > 1)
        if (curve := aggregate(group, steps, column(name), generator=generator)) is not None
    ]
    panels = [quantity for quantity in _PANELS if any(entry[1] == quantity for entry in found)]
    if not panels:
        return None
    with style("mismatch"):
        figure, axes = new_figure(0.9 + 1.8 * len(panels), rows=len(panels))
        lines: list[str] = []
        said = []
        for i, quantity, factor, curve in found:
            several = len(analysis.groups) > 1
            label = f"{short(analysis.groups[i].label, 24)}: {factor}" if several else factor
            known = label in lines
            lines += [] if known else [label]
            target = axes[panels.index(quantity)]
            draw_curve(target, curve, lines.index(label), f"_{label}" if known else label, seeds=False)
            said.append(f"{label} {quantity.upper()} ends at {curve.centre[-1]:.3g}")
        for target, quantity in zip(axes, panels, strict=True):
            _alarm(target, quantity)
        axes[-1].set_xlabel("environment steps")
        large_numbers(axes[-1], "x")
        legend_below(*axes)
        caption = (
            "How far the policy that acted was from the one that learns: staleness π_θ/π_v, compression π_v/μ, or the "
            "sampled weights of the whole ratio π_θ/μ. On-policy, an effective sample size is 1 and a KL 0."
        )
        return finish(figure, "mismatch", "Mismatch over time", caption, f"{'; '.join(said)}.")


def decisions(analysis: Analysis) -> Drawing | None:
    """Which scheme each actor had when, one row of axes for a run; None when nothing was decided."""
    chosen = [run for group in analysis.groups for run in group.runs if run.decisions][:MAX_TIME_LINES]
    if not chosen:
        return None
    with style("decisions"):
        levels = list(
            dict.fromkeys(text for run in chosen for d in run.decisions for text in (d.before, d.after) if text)
        )
        figure, axes = new_figure(0.9 + len(chosen) * (0.5 + 0.2 * len(levels)), rows=len(chosen))
        for target, run in zip(axes, chosen, strict=True):
            for i, (x, y) in enumerate(_steps_by_actor(run, levels)):
                shift = 0.08 * (i % 5)
                target.step(x, y + shift, where="post", color=SERIES[i % len(SERIES)], linewidth=1.6)
                target.plot(x[1:-1], y[1:-1] + shift, ".", color=SERIES[i % len(SERIES)], markersize=5)
            target.set_yticks(range(len(levels)), [short(level, 28) for level in levels], fontsize=8.5)
            target.set_ylim(-0.5, len(levels) - 0.3)
            target.set_title(short(run.name), loc="left", fontsize=9.5)
        axes[-1].set_xlabel("environment steps")
        large_numbers(axes[-1], "x")
        count = sum(len(run.decisions) for run in chosen)
        caption = f"{count} decisions; a line for each actor, a dot for each decision. The reasons are in the table."
        alt = "; ".join(f"{run.name}: {len(run.decisions)} decisions, last {run.decisions[-1].after}" for run in chosen)
        return finish(figure, "decisions", "Compression levels over time", caption, f"{alt}.")


def _alarm(axes: Axes, quantity: str) -> None:
    title, level, side = _PANELS[quantity]
    axes.axhline(level, color=MUTED, linewidth=1, linestyle=":")
    axes.annotate(
        f"alarm {side} {level:g}",
        (0.99, level),
        xycoords=("axes fraction", "data"),
        ha="right",
        va="bottom",
        fontsize=8.5,
        color=MUTED,
    )
    axes.set_ylabel(title)
    if quantity == "ess":
        axes.set_ylim(0, 1.05)


def _factors(group: Group, several: bool) -> list[tuple[str, str, str]]:
    """Columns of mismatch to draw: (column, factor, ess or kl).

    The total where it was measured, and what the actors' sampled weights say where not; of a single group also its two
    factors, and compression by scheme when there were several.
    """
    names = list(dict.fromkeys(name for run in group.runs for name in run.series.columns))
    schemes = {scheme for name in names if (scheme := name.partition("/")[2]) and name.startswith("compression_ess/")}
    found = []
    for name in names:
        if match := _FACTORS.match(name):
            factor, quantity, scheme = match.groups()
            by_scheme = scheme is not None and factor == "compression" and len(schemes) > 1
            if (not several or factor == "total") and (scheme is None or (by_scheme and not several)):
                found.append((name, f"{factor} {scheme}" if scheme else factor, quantity))
    if not found:
        found = [(name, *_SAMPLED[name]) for name in names if name in _SAMPLED]
    return sorted(found, key=lambda entry: (entry[1], entry[2]))


def _steps_by_actor(run: Run, levels: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each actor (or all of them) the environment steps and level indices of its time line."""
    lines: dict[int | None, list[Decision]] = {}
    for decision in run.decisions:
        lines.setdefault(decision.actor, []).append(decision)
    end = run.steps if math.isfinite(run.steps) else 0.0
    drawn = []
    for made in lines.values():
        first, last = made[0], made[-1]
        x = [0.0, *(float(d.env_steps) for d in made), max(end, float(last.env_steps))]
        texts = [first.before or first.after, *(d.after for d in made), last.after]
        y = [float(levels.index(text)) if text in levels else math.nan for text in texts]
        drawn.append((np.array(x), np.array(y)))
    return drawn
