"""Which groups of runs may be compared, and caveats about their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accel.reports.runs import Group, Run

ENVIRONMENT = ("env", "env_arg", "wrapper", "backend", "squash_actions")
BUDGET = ("total_env_steps", "stop_at_env_steps", "max_seconds", "stop_at_return", "stop_window")
LIBRARIES = ("torch", "onnxruntime")
"""Their versions change speed and may change returns."""


def obstacles(baseline: Group, group: Group) -> tuple[str, ...]:
    """Why two groups must not be compared, in sentences; empty when they may be."""
    found: list[str] = []
    for kind, keys in (("environment", ENVIRONMENT), ("budget", BUDGET)):
        for key in keys:
            ours, theirs = baseline.values(key), group.values(key)
            if len(ours) > 1 or ours != theirs:
                values = (" and ".join(map(repr, side)) for side in (theirs, ours))
                found.append(f"another {kind}: {key} is {next(values)}, the baseline's is {next(values)}")
    if unknown := [run.name for run in (*baseline.runs, *group.runs) if not run.machine]:
        found.append(f"unknown machine: {' and '.join(unknown)} without a readable machine.json")
    else:
        for kind, of in (("machine", _machine), ("version", _versions)):
            ours, theirs = (tuple(sorted({of(run) for run in side.runs})) for side in (baseline, group))
            if ours != theirs:
                found.append(f"another {kind}: {' and '.join(theirs)}; the baseline's is {' and '.join(ours)}")
    return (*found, *(f"{run.name} has not finished (no summary.json)" for run in group.runs if run.summary is None))


def differences(baseline: Group, groups: Sequence[Group]) -> tuple[str, ...]:
    """Differences of commits from the baseline, which do not forbid a comparison, in sentences."""
    commits = {group.label: ", ".join(sorted(set(map(_commit, group.runs)))) for group in (baseline, *groups)}
    ours = commits.pop(baseline.label)
    return tuple(
        f"different commits: {label} of {theirs}; {baseline.label} of {ours}"
        for label, theirs in commits.items()
        if theirs != ours
    )


def caveats(group: Group) -> tuple[str, ...]:
    """Caveats about a group's runs, in sentences."""
    found = [f"{run.name}: {note}" for run in group.runs for note in run.notes]
    for run in group.runs:
        if run.series.damaged:
            found.append(f"{run.name}: {run.series.damaged} damaged or half-written metrics lines were skipped")
        if run.summary is None:
            found.append(f"{run.name}: has not finished, so its numbers are preliminary")
    if dirty := sum(bool(run.machine.get("dirty")) for run in group.runs):
        found.append(f"{group.label}: {dirty} of {len(group.runs)} runs were made with uncommitted changes")
    if len({repr(run.seed) for run in group.runs}) < len(group.runs):
        found.append(f"{group.label}: a seed occurs twice; its runs are not independent")
    for what, of in (
        ("commits", _commit),
        (f"versions of {' or '.join(LIBRARIES)}", _versions),
        ("machines", _machine),
    ):
        if len({of(run) for run in group.runs}) > 1:
            found.append(f"{group.label}: its runs are of different {what}")
    return tuple(found)


def _machine(run: Run) -> str:
    """The parts of a machine that determine its speed, as one text."""
    cpu, architecture, cores = (run.machine.get(key, "unknown") for key in ("cpu", "architecture", "usable_cores"))
    return f"{cpu} ({', '.join([str(architecture), f'{cores} cores', *run.gpus])})"


def _versions(run: Run) -> str:
    versions = run.machine.get("versions")
    known = versions if isinstance(versions, Mapping) else {}
    return ", ".join(f"{name} {known.get(name) or 'unknown'}" for name in LIBRARIES)


def _commit(run: Run) -> str:
    return str(run.machine.get("commit") or "unknown")[:12]
