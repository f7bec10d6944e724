"""The report's tables as texts; the page and the Markdown print the same."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from accel.monitor.bottleneck import TimeShares
from accel.monitor.divergence import GREEDY_TOLERANCE
from accel.monitor.mismatch import ESS_ALARM, KL_ALARM, STALENESS_KL_ALARM
from accel.monitor.plain_text import percent
from accel.reports.aggregates import stratified_bootstrap
from accel.reports.analysis import Analysis
from accel.reports.comparison import MIN_SEEDS, QUANTITIES
from accel.reports.runs import NOT_CONFIGURATION, Group, Run, plain
from accel.reports.wording import number

MAX_DECISIONS = 200
FACTORS = {"staleness": "staleness π_θ/π_v", "compression": "compression π_v/μ", "total": "total π_θ/μ"}
_MISMATCH = {
    "ess": (
        "ESS",
        f"effective sample size, 1 / (1 + χ²) averaged over states: 1 for equal policies, alarm below {ESS_ALARM:g}",
    ),
    "kl": (
        "KL, nats",
        f"KL divergence, 0 for equal policies; alarm above {KL_ALARM:g} (compression) or {STALENESS_KL_ALARM:g}",
    ),
    "chi2": (
        "χ²",
        "χ² divergence, the variance of importance weights. χ² of two Gaussians is infinite in every state where π "
        "is more than √2 times as wide as μ (2σ_μ² ≤ σ_π²); ESS counts such a state as 0",
    ),
    "chi2_infinite": ("states with infinite χ²", "share of states where χ² is infinite"),
    "retention": (
        "trace retention",
        "mean product of the trace's clipped weights over the effective horizon: 1 on-policy",
    ),
    "greedy_agreement": (
        "greedy actions agree",
        "share of states with the same most likely choice; for Gaussians, with every mean within "
        f"{GREEDY_TOLERANCE:g} standard deviations of the reference policy: π_v for staleness, otherwise μ",
    ),
    "clipped": ("clipped weights", "share of weights above the clip"),
    "mean_weight": (
        "mean weight",
        "of sampled actions; 1 is expected for any two policies, so another value means wrong records",
    ),
}
"""Title and meaning of each quantity."""


@dataclass(frozen=True)
class Table:
    """A table: caption, column titles, rows of texts; the first column names its row.

    Attributes:
        notes: what its columns or rows mean, by title.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[tuple[str, str], ...] = ()


def results_table(analysis: Analysis) -> Table:
    """One row a group: what it reached and how fast; medians over seeds."""
    titles = ("configuration", "seeds", "final return, mean", "interquartile mean", "threshold reached", "bottleneck")
    names = [name for name in QUANTITIES if any(result.by_quantity[name] for result in analysis.results)]
    rows = tuple(
        (
            result.group.label,
            str(len(result.group.runs)),
            "–" if result.final_return is None else str(result.final_return),
            str(stratified_bootstrap([finals], confidence=analysis.choices.confidence))
            if len(finals := result.group.final_returns) >= MIN_SEEDS
            else "–",
            f"{result.reached} of {len(result.group.runs)}" if analysis.threshold.exists else "–",
            "–" if (shares := result.group.time_shares) is None else _limit(shares),
            *(_spread(result.by_quantity[name]) for name in names),
        )
        for result in analysis.results
    )
    columns = tuple(f"{QUANTITIES[name].title}, {QUANTITIES[name].unit}" for name in names)
    caption = "Medians over the seeds that have a value, with the least and the greatest."
    return Table(caption, titles + columns, rows, _result_notes(analysis, names))


def _result_notes(analysis: Analysis, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    reached = f"runs whose mean training return reached {analysis.threshold.value:.4g}: {analysis.threshold.source}"
    interval_of = f"mean over seeds, with Student's {percent(analysis.choices.confidence)} interval from three seeds on"
    return (
        ("final return", f"mean of the last tenth of a run's steps, or the target at which it stopped; {interval_of}"),
        (
            "interquartile mean",
            f"of the middle half of the seeds' final returns, with a bootstrapped interval, from {MIN_SEEDS} seeds on",
        ),
        *([("threshold reached", reached)] if analysis.threshold.exists else []),
        (
            "bottleneck",
            "what limits the speed: the learner where actors wait for it, otherwise what takes their time; with the "
            "shares of their time in which actors and the learner wait, and of the actors' work",
        ),
        *((QUANTITIES[name].title, QUANTITIES[name].meaning) for name in names),
    )


def _limit(shares: TimeShares) -> str:
    waiting = f"actors wait {shares.actor_wait:.0%}, learner {shares.learner_wait:.0%}"
    return f"{shares.limit} ({waiting}; environment {shares.environment:.0%}, policy {shares.policy:.0%})"


def differing_table(analysis: Analysis) -> Table | None:
    """The options in which configurations differ; None where there is none, or one configuration."""
    keys = sorted({key for group in analysis.groups for key in group.options})
    if len(analysis.groups) < 2 or not keys:
        return None
    unread = any(key not in group.config for key in keys for group in analysis.groups)
    caption = f"The options in which the configurations differ{'; – where one is not read' if unread else ''}."
    return _options(analysis, keys, caption)


def options_table(analysis: Analysis) -> Table:
    """Options by configuration: those that differ first, then the rest."""
    configs = [run.config for run in analysis.runs]
    keys = sorted({key for config in configs for key in config} - NOT_CONFIGURATION)
    keys.sort(key=lambda key: len({repr(config.get(key)) for config in configs}) == 1)
    return _options(analysis, keys, "Options; those that differ come first.")


def _options(analysis: Analysis, keys: Sequence[str], caption: str) -> Table:
    """A column for each configuration."""
    columns = [(g.label, *(" or ".join(map(plain, g.values(key))) for key in keys)) for g in analysis.groups]
    titles, *rows = zip(("option", *keys), *columns, strict=True)
    return Table(caption, titles, tuple(rows))


def speedup_table(analysis: Analysis) -> Table | None:
    """One row for each quantity and comparison; None when nothing is compared."""
    if analysis.baseline is None:
        return None
    rows = []
    for name, quantity in QUANTITIES.items():
        for comparison in analysis.comparisons:
            if (value := comparison.speedups.get(name)) is not None:
                note = "counted at their budget" if value.bound else "without a value"
                rows.append(
                    (
                        quantity.title,
                        comparison.group.label,
                        value.text,
                        f"{len(value.group)} / {len(value.baseline)}",
                        f"{value.missing} {note}" if value.missing else "",
                    )
                )
    columns = ("quantity", "configuration", "times better", "seeds / baseline's", "note")
    shown = {row[0] for row in rows}
    notes = (
        (
            "times better",
            "ratio of geometric means over seeds, above 1 is better; in brackets Welch's "
            f"{percent(analysis.choices.confidence)} interval, which shows no difference where it contains 1",
        ),
        *((q.title, q.meaning) for q in QUANTITIES.values() if q.title in shown),
    )
    return Table(f"Against {analysis.baseline.label}.", columns, tuple(rows), notes)


def runs_table(analysis: Analysis) -> Table:
    """One row a run."""
    rows = []
    labels = [group.label for group in analysis.groups for _ in group.runs]
    for label, run in zip(labels, analysis.runs, strict=True):
        crossing = run.crossing(analysis.threshold.value)
        counts = (run.final_return, run.steps, run.training_s, math.nan if crossing is None else crossing[0])
        ending = "not finished" if run.summary is None else str(run.summary.get("reason", "finished"))
        numbers = map(number, (*counts, run.us_per_step("actor").get("env") or math.nan))
        rows.append((run.name, label, str(run.seed), *numbers, ending))
    counted = ("final return", "env steps", "training, s", "to threshold, s", "environment, µs/step")
    caption = (
        "Every run. Compression does not change the environment's work: where its time differs, other work ran on the "
        "machine, or a larger policy occupied its cache and memory bandwidth."
    )
    notes = (
        ("final return", "mean over the last tenth of the run's steps, or the target at which it stopped"),
        ("env steps", "environment steps that were learned from"),
        ("training", "seconds from the first unroll waited for to the last update"),
        ("to threshold", "seconds of training until the mean return reached the threshold"),
        ("environment", "microseconds in the environment itself per environment step, all actors together"),
    )
    return Table(caption, ("run", "configuration", "seed", *counted, "ended"), tuple(rows), notes)


def mismatch_table(analysis: Analysis) -> Table | None:
    """One row for each configuration, factor and scheme, medians over the records; None when nothing was measured."""
    recorded = {name for run in analysis.runs for name in run.series.columns}
    measured = [quantity for quantity in _MISMATCH if any(f"{factor}_{quantity}" in recorded for factor in FACTORS)]
    rows = []
    for group in analysis.groups:
        columns = {name for run in group.runs for name in run.series.columns}
        schemes = sorted({name.partition("/")[2] for name in columns if name.startswith("compression_ess/")})
        for factor, title in FACTORS.items():
            for scheme in ("", *(schemes if factor == "compression" and len(schemes) > 1 else ())):
                names = [f"{factor}_{quantity}{'/' if scheme else ''}{scheme}" for quantity in measured]
                if f"{factor}_ess" in columns:
                    rows.append((group.label, title, scheme or "all", *(_typical(group, name) for name in names)))
    if not rows:
        return None
    caption = (
        "Distance between the policy that acted and the one that learns: medians over the records of all seeds, "
        "infinite ones included, as one state can dominate a mean of KL, χ² or weights."
    )
    titles = ("configuration", "factor", "scheme", *(_MISMATCH[name][0] for name in measured))
    notes = (
        ("factor", "π_θ learns, μ acted, π_v is the version that acted before compression; total = their product"),
        *(_MISMATCH[name] for name in measured),
    )
    return Table(caption, titles, tuple(rows), notes)


def _typical(group: Group, name: str) -> str:
    """The median over a group's records."""
    empty = np.array([])
    values = np.concatenate([run.series.columns.get(name, empty) for run in group.runs])
    known = values[~np.isnan(values)]
    return number(float(np.median(known))) if known.size else "–"


def decisions_table(analysis: Analysis) -> Table | None:
    """The last decisions with their reasons; None where there was none."""
    made = [(run, decision) for run in analysis.runs for decision in run.decisions]
    if not made:
        return None
    rows = tuple(
        (run.name, number(d.env_steps), d.before or "–", d.after, d.kind, d.reason) for run, d in made[-MAX_DECISIONS:]
    )
    hidden = f" The first {len(made) - MAX_DECISIONS} are omitted." if len(made) > MAX_DECISIONS else ""
    columns = ("run", "env steps", "from", "to", "kind", "reason")
    return Table(f"Decisions of the monitor.{hidden}", columns, rows)


def machines_table(analysis: Analysis) -> Table:
    """One row for each distinct machine, set of versions and commit."""
    seen: dict[tuple[str, ...], list[str]] = {}
    for run in analysis.runs:
        seen.setdefault(_machine_row(run), []).append(run.name)
    rows = tuple((f"{len(names)} runs" if len(names) > 1 else names[0], *row) for row, names in seen.items())
    return Table("Machines.", ("runs", "processor", "cores", "memory", "GPUs", "versions", "commit"), rows)


def commands(analysis: Analysis) -> tuple[str, ...]:
    """The command of every run, where it is known."""
    found = [run.machine.get("command") for run in analysis.runs]
    texts = [shlex.join(map(str, words)) if isinstance(words, list | tuple) else words for words in found]
    return tuple(dict.fromkeys(text for text in texts if text and isinstance(text, str)))


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    if len(values) == 1:
        return number(values[0])
    return f"{number(median(values))} ({number(min(values))} to {number(max(values))})"


def _machine_row(run: Run) -> tuple[str, ...]:
    machine = run.machine
    memory = machine.get("memory_bytes")
    versions = machine.get("versions")
    wanted = ("python", "torch", "onnxruntime", "numpy", "gymnasium")
    shown = [f"{n} {versions[n]}" for n in wanted if versions.get(n)] if isinstance(versions, Mapping) else []
    commit = str(machine.get("commit") or "unknown")[:12] + (" with changes" if machine.get("dirty") else "")
    return (
        str(machine.get("cpu", "unknown")),
        str(machine.get("usable_cores", "–")),
        f"{memory / 2**30:.0f} GiB" if isinstance(memory, int | float) else "–",
        ", ".join(run.gpus) or "none",
        ", ".join(shown) or "–",
        commit,
    )
