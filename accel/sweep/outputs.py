"""A sweep's files: table and plot of the Pareto front, parameter importances, configurations to train with."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import tomlkit
from optuna.study import Study
from optuna.trial import FrozenTrial

from accel.json_object import Json
from accel.monitor.statistics import Interval, mean_interval
from accel.reports.plotting import save_all
from accel.sweep.experiment import Experiment
from accel.sweep.pareto import Candidate
from accel.sweep.plots import pareto_figure
from accel.sweep.recovery import ERROR
from accel.sweep.search import StudyPlan
from accel.sweep.storage import without_passwords
from accel.sweep.study import DRAWN_AT_RANDOM, MEASURED, RETURNS, SAME_AS, SKIPPED, done_trials, tally
from accel.system.atomic import write_atomically
from accel.system.machine import describe_machine


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str] = ()) -> list[str]:
    """Lines of a table; columns are aligned to the right, except those named in ``left``."""
    rule = "".join("---|" if column in left else "---:|" for column in columns)
    return ["| " + " | ".join(columns) + " |", "|" + rule, *("| " + " | ".join(row) + " |" for row in rows)]


@dataclass(frozen=True)
class Findings:
    """The results of a sweep, ready to be written.

    Attributes:
        rows: all candidates. front: the Pareto front.
        exports: commands that export the front, in its order; none in training.
    """

    experiment: Experiment
    plan: StudyPlan
    study: Study
    rows: Sequence[Candidate]
    front: Sequence[Candidate]
    command: tuple[str, ...]
    exports: tuple[str, ...]

    @cached_property
    def trials(self) -> Sequence[FrozenTrial]:
        """All trials of the study."""
        return self.study.get_trials(deepcopy=False)

    @cached_property
    def returns(self) -> Mapping[int, Interval]:
        """By trial: the mean return of its episodes, with its 95 % interval."""
        played = {trial.number: trial.user_attrs.get(RETURNS, ()) for trial in self.trials}
        return {number: mean_interval(returns) for number, returns in played.items() if len(returns) > 1}

    @cached_property
    def differences(self) -> Mapping[int, Interval]:
        """By trial: return minus fp32's on the same seeds, with its 95 % interval."""
        full = self.study.user_attrs.get(RETURNS)
        if full is None or len(full) < 2:
            return {}
        played = [trial for trial in self.trials if RETURNS in trial.user_attrs]
        return {trial.number: mean_interval(np.subtract(trial.user_attrs[RETURNS], full)) for trial in played}


def write_outputs(findings: Findings, directory: Path) -> tuple[Path, ...]:
    """Write ``pareto.json``, ``pareto.md``, ``best/*.toml``, and the figure ``pareto`` in every format.

    Returns the configurations, in the front's order.
    """
    experiment, plan = findings.experiment, findings.plan
    files = _write_configurations(findings, directory)
    places = {number: f"best/{file.name}" for number, file in files.items()}
    document = json.dumps(_document(findings, places), indent=2, default=str)
    write_atomically(directory / "pareto.json", document.encode() + b"\n")
    write_atomically(directory / "pareto.md", _markdown(findings, places).encode())
    title = f"{experiment.title} ({experiment.kind})"
    bounds = {c.metric: c.bound(experiment.references) for c in plan.constraints}
    front = pareto_figure(
        findings.rows,
        findings.front,
        plan.objectives,
        references=experiment.references,
        bounds=bounds,
        returns=findings.returns,
        title=title,
    )
    save_all(front, directory)
    return tuple(files.values())


def _write_configurations(findings: Findings, directory: Path) -> dict[int, Path]:
    """TOML files by trial number."""
    best, experiment = directory / "best", findings.experiment
    for outdated in best.glob("*-trial-*.toml"):
        outdated.unlink()
    files: dict[int, Path] = {}
    for place, row in enumerate(findings.front, 1):
        config = experiment.configuration(findings.trials[row.number])
        if config is None:
            continue
        values = {name: value for name, value in config.to_toml_values().items() if name not in ("name", "results_dir")}
        best.mkdir(exist_ok=True)
        figures = ", ".join(f"{q.name} {row.values[q.name]:.6g}" for q in findings.plan.objectives)
        comment = f"# Trial {row.number} of a sweep {experiment.kind} of {experiment.title}: {figures}.\n"
        files[row.number] = best / f"{place:02d}-trial-{row.number:04d}.toml"
        write_atomically(files[row.number], (comment + tomlkit.dumps(values)).encode())
    return files


def _document(findings: Findings, places: Mapping[int, str]) -> Json:
    plan, experiment = findings.plan, findings.experiment
    return {
        "kind": experiment.kind,
        "title": experiment.title,
        "command": [without_passwords(word) for word in findings.command],
        "study": {"name": plan.name, "storage": without_passwords(plan.url)},
        "trials_done": len(done_trials(findings.study)),
        "trials_wanted": plan.trials,
        "seed": plan.seed,
        "objectives": [dataclasses.asdict(objective) for objective in plan.objectives],
        "constraints": [constraint.text for constraint in plan.constraints],
        "fp32": dict(experiment.references),
        "front": [
            _candidate_json(row, findings.differences.get(row.number)) | {"configuration": places.get(row.number)}
            for row in findings.front
        ],
        "subject": findings.study.user_attrs.get("sweep"),
        "fp32_returns": findings.study.user_attrs.get(RETURNS),
        "machine": describe_machine(),
        "trials": [_trial_json(trial, experiment.label(trial)) for trial in findings.trials],
    }


def _candidate_json(row: Candidate, difference: Interval | None) -> Json:
    value: Json = {"trial": row.number, "label": row.label, "values": row.values, "parameters": row.parameters}
    if difference is not None:
        value["return_minus_fp32"] = {"mean": difference.estimate, "low": difference.low, "high": difference.high}
    return value


def _trial_json(trial: FrozenTrial, label: str) -> Json:
    attributes = trial.user_attrs
    optional = (SKIPPED, ERROR, SAME_AS, DRAWN_AT_RANDOM, RETURNS, "run")
    return {
        "trial": trial.number,
        "label": label,
        "state": trial.state.name.lower(),
        "seconds": None if trial.duration is None else trial.duration.total_seconds(),
        "values": attributes.get(MEASURED),
        "violations": trial.constraints,
        "parameters": trial.params,
        **{name: attributes[name] for name in optional if name in attributes},
    }


def _markdown(findings: Findings, places: Mapping[int, str]) -> str:
    plan, experiment = findings.plan, findings.experiment
    constraints = ", ".join(constraint.text for constraint in plan.constraints) or "none"
    lines = [
        f"# Pareto front of {experiment.title}",
        "",
        f"{tally(findings.trials)}.",
        "",
        f"Sweep {experiment.kind}, sampler TPE, seed {plan.seed}. "
        "Objectives: "
        + ", ".join(f"{q.name} ({q.direction})" for q in plan.objectives)
        + f". Constraints: {constraints}.",
        "",
        experiment.how_measured(),
        "",
    ]
    if not findings.front:
        lines += ["**No trial meets the constraints.** All trials are in pareto.json.", ""]
    lines += _front_table(findings, places)
    if findings.exports:
        lines += ["", "To export one:", "", "```", *findings.exports, "```"]
    return "\n".join([*lines, ""])


def _front_table(findings: Findings, places: Mapping[int, str]) -> list[str]:
    """fp32 and the front: the objectives, then all other metrics that were measured."""
    objectives, references = findings.plan.objectives, findings.experiment.references
    measured = {name for row in findings.rows for name in row.values}
    others = [q for q in findings.experiment.metrics.values() if q.name in measured and q not in objectives]
    metrics, differences = [*objectives, *others], findings.differences
    rows = []
    if references:
        known = [_value_text(references.get(metric.name)) for metric in metrics]
        rows.append(["fp32", *known, "", "the uncompressed policy", ""])
    for row in findings.front:
        found = differences.get(row.number)
        difference = "" if found is None else f"{found.estimate:+.4g} [{found.low:+.4g}, {found.high:+.4g}]"
        values = [_value_text(row.values.get(metric.name)) for metric in metrics]
        rows.append([str(row.number), *values, difference, f"`{row.label}`", places.get(row.number, "")])
    last = ["return − fp32, same seeds [95 %]", "candidate", "train with"]
    columns = ["trial", *(metric.title for metric in metrics), *last]
    empty = ([] if differences else [last[0]]) + ([] if places else [last[2]])
    kept = [place for place, column in enumerate(columns) if column not in empty]
    return markdown_table(
        [columns[place] for place in kept], [[row[place] for place in kept] for row in rows], left=("trial", *last[1:])
    )


def _value_text(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
