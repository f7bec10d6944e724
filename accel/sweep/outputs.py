"""A sweep's files: table and plot of the Pareto front, parameter importances, configurations to train with."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tomlkit
from optuna.study import Study
from optuna.trial import FrozenTrial

from accel.json_object import Json
from accel.monitor.statistics import Interval, mean_interval
from accel.sweep.importance import METHOD, Importance, Trials, importances
from accel.sweep.objectives import Metric, Values
from accel.sweep.pareto import Candidate
from accel.sweep.plots import FrontFigure, draw_importances
from accel.sweep.recovery import ERROR
from accel.sweep.storage import public_url
from accel.sweep.study import CAVEAT, DRAWN_AT_RANDOM, MEASURED, SAME_AS, SKIP, SKIPPED, StudyOptions, counts, tally
from accel.system.atomic import write_atomically
from accel.system.machine import describe_machine

_MOST_IMPORTANT = 3


@dataclass(frozen=True)
class Findings:
    """The results of a sweep, ready to be written.

    Attributes:
        kind, title: of the experiment.
        options: how the study searched.
        references: fp32's values.
        rows: all candidates. front: the Pareto front. balanced: the most balanced one of the front.
        labels: of all trials, by number.
        configurations: of the front, by trial number; none for an imported policy.
        command: the command line.
        exports: commands that export the front, in its order; none in training.
        how_measured: how the metrics were measured.
    """

    kind: str
    title: str
    options: StudyOptions
    references: Values
    rows: Sequence[Candidate]
    front: Sequence[Candidate]
    balanced: Candidate | None
    labels: Mapping[int, str]
    configurations: Mapping[int, Mapping[str, object]]
    command: tuple[str, ...]
    exports: tuple[str, ...]
    how_measured: str


def write_outputs(findings: Findings, study: Study, directory: Path) -> tuple[Path, ...]:
    """Write ``pareto.json``, ``pareto.md``, ``pareto.png``, ``importance.png`` and ``best/*.toml``.

    Returns:
        The configurations, in the front's order.
    """
    files = _write_configurations(findings, directory)
    importance = importances(_measured_trials(study), findings.options.objectives)
    document = _document(findings, study, importance, files)
    write_atomically(directory / "pareto.json", json.dumps(document, indent=2, default=str).encode() + b"\n")
    write_atomically(directory / "pareto.md", _markdown(findings, study, importance, files).encode())
    objectives, title = findings.options.objectives, f"{findings.title} ({findings.kind})"
    bounds = {c.metric: c.bound(findings.references) for c in findings.options.constraints}
    figure = FrontFigure(findings.rows, findings.front, objectives, findings.references, bounds, title)
    write_atomically(directory / "pareto.png", figure.draw())
    write_atomically(directory / "importance.png", draw_importances(importance, title))
    return tuple(files.values())


def _write_configurations(findings: Findings, directory: Path) -> dict[int, Path]:
    """TOML files by trial number."""
    best = directory / "best"
    for outdated in best.glob("*-trial-*.toml"):
        outdated.unlink()
    if findings.configurations:
        best.mkdir(exist_ok=True)
    files: dict[int, Path] = {}
    for place, row in enumerate(findings.front, 1):
        if row.number not in findings.configurations:
            continue
        figures = ", ".join(f"{q.name} {row.values[q.name]:.6g}" for q in findings.options.objectives)
        comment = f"# Trial {row.number} of a sweep {findings.kind} of {findings.title}: {figures}.\n"
        path = best / f"{place:02d}-trial-{row.number:04d}.toml"
        write_atomically(path, (comment + tomlkit.dumps(findings.configurations[row.number])).encode())
        files[row.number] = path
    return files


def _document(
    findings: Findings, study: Study, importance: Mapping[str, Importance], files: Mapping[int, Path]
) -> Json:
    options, differences = findings.options, _differences(study)
    by_number = {trial.number: trial for trial in study.trials}
    return {
        "kind": findings.kind,
        "title": findings.title,
        "command": list(findings.command),
        "study": {"name": options.name, "storage": public_url(options.url)},
        "trials_done": counts(study)[0],
        "trials_wanted": options.trials,
        "sampler": options.sampler,
        "pruner": options.pruner,
        "seed": options.seed,
        "objectives": [
            {"name": q.name, "direction": q.direction, "unit": q.unit, "meaning": q.meaning} for q in options.objectives
        ],
        "constraints": [constraint.text for constraint in options.constraints],
        "fp32": dict(findings.references),
        "front": [
            _candidate_json(row, differences.get(row.number))
            | {"configuration": _relative(files, row), "balanced": row is findings.balanced}
            for row in findings.front
        ],
        "importances": {name: dataclasses.asdict(found) for name, found in importance.items()},
        "subject": study.user_attrs.get("sweep"),
        "fp32_returns": study.user_attrs.get("returns"),
        "machine": describe_machine(),
        "trials": [_trial_json(trial, findings.labels[number]) for number, trial in by_number.items()
                   if number in findings.labels],
    }  # fmt: skip


def _relative(files: Mapping[int, Path], row: Candidate) -> str | None:
    return f"best/{files[row.number].name}" if row.number in files else None


def _candidate_json(row: Candidate, difference: Interval | None) -> Json:
    value: Json = {"trial": row.number, "label": row.label, "values": dict(row.values)}
    value["parameters"] = dict(row.parameters)
    if difference is not None:
        value["return_minus_fp32"] = {"mean": difference.estimate, "low": difference.low, "high": difference.high}
    return value


def _differences(study: Study) -> dict[int, Interval]:
    """By trial: return minus fp32's on the same seeds, with its 95 % interval."""
    full = study.user_attrs.get("returns")
    if full is None or len(full) < 2:
        return {}
    return {
        trial.number: mean_interval(np.subtract(trial.user_attrs["returns"], full))
        for trial in study.trials
        if "returns" in trial.user_attrs
    }


def _trial_json(trial: FrozenTrial, label: str) -> Json:
    attributes = trial.user_attrs
    value: Json = {
        "trial": trial.number,
        "label": label,
        "state": trial.state.name.lower(),
        "seconds": None if trial.duration is None else trial.duration.total_seconds(),
        "values": attributes.get(MEASURED),
        "violations": trial.constraints,
        "parameters": trial.params,
    }
    for name in (SKIP, SKIPPED, ERROR, SAME_AS, DRAWN_AT_RANDOM, "returns", "run"):
        if name in attributes:
            value[name] = attributes[name]
    return value


def _measured_trials(study: Study) -> Trials:
    """All candidates that were measured at least in part, once each."""
    trials = [trial for trial in study.trials if trial.user_attrs.get(MEASURED) and SAME_AS not in trial.user_attrs]
    return [(trial.params, trial.user_attrs[MEASURED]) for trial in trials]


def _markdown(findings: Findings, study: Study, importance: Mapping[str, Importance], files: Mapping[int, Path]) -> str:
    options = findings.options
    columns, differences = _columns(findings), _differences(study)
    constraints = ", ".join(constraint.text for constraint in options.constraints) or "none"
    lines = [
        f"# Pareto front of {findings.title}",
        "",
        f"{tally(study.trials)}.",
        "",
        f"Sweep {findings.kind}, sampler {options.sampler}, pruner {options.pruner}, seed {options.seed}. Objectives: "
        + ", ".join(f"{q.name} ({q.direction})" for q in options.objectives)
        + f". Constraints: {constraints}.",
        "",
        *_how_played(study),
        findings.how_measured,
        "",
    ]
    extra = ["return − fp32, same seeds [95 %]"] if differences else []
    if not findings.front:
        lines += ["**No trial meets the constraints.** All trials are in pareto.json.", ""]
    lines += [
        "| trial | "
        + " | ".join([*(column.title for column in columns), *extra])
        + " | candidate |"
        + (" train with |" if files else ""),
        "|---|" + "---:|" * (len(columns) + len(extra)) + "---|" + ("---|" if files else ""),
    ]
    if findings.references:
        known = [_value_text(findings.references.get(column.name)) for column in columns] + [""] * len(extra)
        lines.append("| fp32 | " + " | ".join(known) + " | the uncompressed policy |" + (" |" if files else ""))
    for row in findings.front:
        values = [_value_text(row.values.get(column.name)) for column in columns]
        if extra:
            found = differences.get(row.number)
            values.append("" if found is None else f"{found.estimate:+.4g} [{found.low:+.4g}, {found.high:+.4g}]")
        trained = f" {_relative(files, row)} |" if files else ""
        mark = " **balanced**" if row is findings.balanced else ""
        lines.append(f"| {row.number}{mark} | " + " | ".join(values) + f" | `{row.label}` |{trained}")
    if findings.exports:
        lines += ["", "To export one:", "", "```", *findings.exports, "```"]
    return "\n".join([*lines, "", *_importance_lines(importance), ""])


def _importance_lines(importance: Mapping[str, Importance]) -> list[str]:
    lines = ["## Parameter importance", "", f"{METHOD}.", ""]
    for objective, found in importance.items():
        greatest = ", ".join(f"`{name}` {share:.2f}" for name, share in list(found.shares.items())[:_MOST_IMPORTANT])
        lines.append(f"- {objective}: " + (found.remark or f"{greatest} ({found.trials} trials)") + ".")
    return lines


def _how_played(study: Study) -> list[str]:
    """After training: the episodes behind a return, and their caveat."""
    subject = study.user_attrs.get("sweep", {})
    if "acted" not in subject or "returns" not in study.user_attrs:
        return []
    caveat = study.user_attrs.get(CAVEAT)
    ends = "." if caveat is None else f"; in full precision {caveat}."
    return [f"A return is the mean of {subject['episodes']} {subject['acted']} episodes on the same seeds{ends}", ""]


def _columns(findings: Findings) -> list[Metric]:
    """The objectives, then all other metrics that were measured."""
    from accel.sweep.objectives import AFTER_TRAINING, IN_TRAINING

    known = AFTER_TRAINING if findings.kind == "after training" else IN_TRAINING
    measured = {name for row in findings.rows for name in row.values}
    objectives = list(findings.options.objectives)
    return objectives + [q for name, q in known.items() if name in measured and q not in objectives]


def _value_text(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
