"""Which groups of runs may be compared, and caveats about their numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from accel.monitor.mismatch import ESS_ALARM, KL_ALARM, STALENESS_KL_ALARM
from accel.reports.runs import Group, Run

ENVIRONMENT = ("env", "env_arg", "wrapper", "backend", "squash_actions")
BUDGET = ("total_env_steps", "stop_at_env_steps", "max_seconds", "stop_at_return", "stop_window")
MACHINE = ("cpu", "architecture", "usable_cores", "gpus")
LIBRARIES = ("torch", "onnxruntime")
"""Their versions change speed and may change returns."""
ENVIRONMENT_OPTIONS = ("actors", "envs_per_actor")
"""Options that change the work of an environment step; compression does not."""
UNEQUAL_LOAD = 0.1
"""Relative difference in environment time per step above which runs count as made under unequal load. Other work on the
machine causes it, or a larger policy that occupies its cache (at 2048x3 that alone exceeds it)."""
_CAUSES = {"staleness": STALENESS_KL_ALARM, "compression": KL_ALARM}


def obstacles(baseline: Group, group: Group) -> tuple[str, ...]:
    """Why two groups must not be compared, in sentences; empty when they may be."""
    found: list[str] = []
    for kind, keys in (("environment", ENVIRONMENT), ("budget", BUDGET)):
        for key in keys:
            if not _is_alike(baseline, group, key):
                which = "another" if len(baseline.values(key)) == len(group.values(key)) == 1 else "more than one"
                ours, theirs = (_by_run(side, key) for side in (baseline, group))
                found.append(f"{which} {kind}: {key} is {theirs}, the baseline's is {ours}")
    if unknown := [run.name for run in (*baseline.runs, *group.runs) if not run.machine]:
        return (*found, f"unknown machine: {_listed(unknown)} without a readable machine.json", *_unfinished(group))
    for what, how, of in (("machine", "on", _machine), ("version", "with", _versions)):
        here, there = ({of(run) for run in side.runs} for side in (baseline, group))
        if here != there:
            found.append(f"another {what}: {_listed(there)}; the baseline ran {how} {_listed(here)}")
    return (*found, *_unfinished(group))


def _unfinished(group: Group) -> list[str]:
    return [f"{run.name} has not finished (no summary.json)" for run in group.runs if run.summary is None]


def differences(baseline: Group, groups: Sequence[Group]) -> tuple[str, ...]:
    """Differences from the baseline that do not forbid a comparison, in sentences: commits, load of the machine."""
    found = []
    ours = {_commit(run) for run in baseline.runs}
    for group in groups:
        theirs = {_commit(run) for run in group.runs}
        if ours != theirs:
            sides = (f"{side.label} of {', '.join(sorted(of))}" for side, of in ((group, theirs), (baseline, ours)))
            found.append(f"different commits: {'; '.join(sides)}")
    before = baseline.environment_us
    if apart := [text for group in groups if (text := _unequal_load(baseline, before, group))]:
        found.append(
            f"unequal environment time per step: {before:.3g} µs with {baseline.label}, {', '.join(apart)}. Other work "
            "on the machine, or a larger policy that occupies its cache, can cause speed differences of that size"
        )
    return tuple(found)


def _unequal_load(baseline: Group, before: float, group: Group) -> str | None:
    """The difference in environment time from the baseline as a clause; None where it is small."""
    after = group.environment_us
    same_work = all(_is_alike(baseline, group, key) for key in (*ENVIRONMENT_OPTIONS, *ENVIRONMENT))
    if not same_work or not math.isfinite(before) or not math.isfinite(after):
        return None
    more = max(before, after) / min(before, after) - 1
    return f"{after:.3g} µs with {group.label} ({more:.0%} apart)" if more > UNEQUAL_LOAD else None


def _is_alike(baseline: Group, group: Group, key: str) -> bool:
    """Whether all runs of both sides have the same value of an option."""
    values = baseline.values(key)
    return len(values) == 1 and group.values(key) == values


def _by_run(group: Group, key: str) -> str:
    """The value of an option, or each value with the names of its runs where these differ."""
    values = group.values(key)
    if len(values) == 1:
        return repr(values[0])
    names = [", ".join(run.name for run in group.runs if run.config.get(key) == value) for value in values]
    return " and ".join(f"{value!r} in {of}" for value, of in zip(values, names, strict=True))


def caveats(group: Group) -> tuple[str, ...]:
    """Caveats about a group's runs, in sentences."""
    found = [f"{run.name}: {note}" for run in group.runs for note in run.notes]
    for run in group.runs:
        if run.series.damaged:
            found.append(f"{run.name}: {run.series.damaged} damaged or half-written metrics lines were skipped")
        if run.summary is None:
            found.append(f"{run.name}: has not finished, so its numbers are preliminary")
    if alarms := _alarms(group):
        found.append(alarms)
    if dirty := sum(bool(run.machine.get("dirty")) for run in group.runs):
        found.append(f"{group.label}: {dirty} of {len(group.runs)} runs were made with uncommitted changes")
    seeds = [run.seed for run in group.runs]
    found += [f"{group.label}: seed {seed} occurs twice; its runs are not independent" for seed in _repeated(seeds)]
    for what, values in (
        ("of different commits", {_commit(run) for run in group.runs}),
        (f"with different versions of {' or '.join(LIBRARIES)}", {_versions(run) for run in group.runs}),
        ("made on different machines", {_machine(run) for run in group.runs}),
    ):
        if len(values) > 1:
            found.append(f"{group.label}: its runs are {what}")
    return tuple(found)


def alarm_shares(group: Group, cause: str) -> dict[str, float]:
    """Share of a group's records with samples of mismatch in which each quantity of a cause exceeded its alarm level.

    Args:
        cause: ``staleness`` or ``compression``.
    """
    levels = {"kl": ("above", _CAUSES[cause]), "ess": ("below", ESS_ALARM)}
    found = {}
    for quantity, (side, level) in levels.items():
        name = f"{cause}_{quantity}"
        values = np.concatenate([run.series.column(name) for run in group.runs])
        known = values[~np.isnan(values)]
        if known.size:
            title = {"kl": "KL", "ess": "ESS"}[quantity]
            beyond = known > level if side == "above" else known < level
            found[f"{title} {side} {level:g}"] = float(np.mean(beyond))
    return found


def _alarms(group: Group) -> str:
    """One sentence: how often mismatch exceeded its alarm levels, by cause; empty where it never did."""
    parts = []
    for cause in _CAUSES:
        shares = {text: share for text, share in alarm_shares(group, cause).items() if share > 0}
        if shares:
            parts.append(f"{cause} ({', '.join(f'{text} in {max(s, 0.01):.0%}' for text, s in shares.items())})")
    return f"{group.label}: mismatch exceeded its alarm levels by {' and '.join(parts)} of records" if parts else ""


def _machine(run: Run) -> str:
    """The parts of a machine that determine its speed, as one text."""
    parts = [str(run.machine.get(key, "unknown")) for key in MACHINE if key != "gpus"]
    return f"{parts[0]} ({parts[1]}, {parts[2]} cores{''.join(f', {name}' for name in run.gpus)})"


def _versions(run: Run) -> str:
    versions = run.machine.get("versions")
    known = versions if isinstance(versions, Mapping) else {}
    return ", ".join(f"{name} {known.get(name) or 'unknown'}" for name in LIBRARIES)


def _commit(run: Run) -> str:
    return str(run.machine.get("commit") or "unknown")[:12]


def _listed(names: Iterable[str]) -> str:
    return " and ".join(sorted(names))


def _repeated(values: Sequence[object]) -> list[object]:
    seen: set[str] = set()
    repeated = []
    for value in values:
        if repr(value) in seen:
            repeated.append(value)
        seen.add(repr(value))
    return repeated
