"""Keeps what training runs measured: raw samples as JSON, a report, and a summary of numbers and gaps."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from training_cases import Case, Variant
from training_conditions import conditions_of, conditions_table, conditions_text

from accel.errors import AccelError
from accel.runs.reporting import load_run_record
from accel.system.atomic import write_atomically
from monitor.errors import MonitorError
from monitor.report.analysis import Choices, analyse
from monitor.report.document import write_report
from monitor.report.markdown import escaped, table_text
from monitor.report.runs import Run
from monitor.report.samples import run_from_json, run_to_json
from monitor.report.tables import (
    Table,
    machines_table,
    mismatch_table,
    publications_table,
    results_table,
    runs_table,
    speedup_table,
)
from monitor.report.wording import bottlenecks, headline, method, verdicts

SAMPLES = "runs.json"
MAX_POINTS = 200
COMPLETE = ("total_env_steps", "mean return", "max_seconds")


def run_name(variant: Variant, seed: int) -> str:
    """The directory name of one run of a case."""
    return f"{variant.name}-s{seed}"


def read_samples(results: Path) -> dict[str, dict[str, object]]:
    """The samples kept for a case, by run."""
    try:
        return dict(json.loads((results / SAMPLES).read_text())["runs"])
    except FileNotFoundError:
        return {}


def keep_samples(case: Case, runs: Path, results: Path) -> None:
    """Add the samples of complete runs to those that are kept."""
    samples = read_samples(results)
    before = len(samples)
    for variant, seed in case.order():
        name = run_name(variant, seed)
        if name not in samples and is_complete(runs / name):
            try:
                sample = run_to_json(load_run_record(runs / name, max_points=MAX_POINTS))
            except (AccelError, MonitorError) as error:
                print(f"  {name} cannot be read: {error}", flush=True)
                continue
            samples[name] = {**sample, "variant": variant.name, "load": _lines(runs / f"{name}.load.jsonl")}
    if len(samples) > before:
        results.mkdir(parents=True, exist_ok=True)
        kept = {"case": case.name, "title": case.title, "runs": samples}
        write_atomically(results / SAMPLES, (json.dumps(kept, separators=(",", ":")) + "\n").encode())


def write_summary(case: Case, results: Path, gaps: Mapping[str, str]) -> None:
    """Write the report and the summary anew; ``gaps`` says which runs have no result, and why."""
    results.mkdir(parents=True, exist_ok=True)
    samples = {name: sample for name, sample in read_samples(results).items() if name not in gaps}
    write_atomically(results / "README.md", _summary(case, samples, gaps, results).encode())


def is_complete(path: Path) -> bool:
    """Whether a run ended because it had done what it should."""
    try:
        reason = json.loads((path / "summary.json").read_text())["reason"]
    except (OSError, ValueError, KeyError):
        return False
    return str(reason).startswith(COMPLETE)


def _summary(case: Case, samples: Mapping[str, Mapping[str, object]], gaps: Mapping[str, str], results: Path) -> str:
    parts = [f"# {escaped(case.title)}"]
    programs = {variant.name for variant in case.variants if variant.program}
    runs = [_restore(sample, results, programs) for sample in samples.values()]
    if runs:
        baseline = next((run for run in runs if run.config["variant"] == case.baseline), None)
        several = len({run.config["variant"] for run in runs}) > 1
        choices = Choices(threshold=case.threshold, group_by=("variant",), force=True)
        analysis = analyse(runs, choices, baseline if several else None)
        write_report(analysis, results / "report", written=f"Made from {SAMPLES}.", overwrite=True)
        parts += [escaped(headline(analysis)), "[The whole report](report/report.md)"]
        parts += [
            f"**{escaped(label)}**: {escaped(text)}" + "".join(f" **Not comparable:** {escaped(m)}" for m in marks)
            for _, label, text, marks in verdicts(analysis)
        ]
        parts.append("\n".join(f"- {escaped(text)}" for text in bottlenecks(analysis)))
        if analysis.caveats:
            parts.append("To know:\n\n" + "\n".join(f"- {escaped(text)}" for text in analysis.caveats))
        tables = (speedup_table, results_table, mismatch_table, publications_table, runs_table, machines_table)
        parts += [table_text(table) for make in tables if (table := make(analysis)) is not None]
        parts += list(map(escaped, method(analysis)))
        made = [conditions_of(run, sample) for run, sample in zip(runs, samples.values(), strict=True)]
        parts += [escaped(conditions_text(made)), table_text(conditions_table(made))]
    if gaps:
        rows = tuple((name, reason) for name, reason in gaps.items())
        parts += ["## Not measured", table_text(Table("Runs of the table without a result.", ("run", "why"), rows))]
    words = [
        shlex.join([*(("python", *v.program) if v.program else ("accel",)), "train", *case.arguments, *v.arguments])
        for v in case.variants
    ]
    parts += ["## Commands", "\n".join(f"    {word}" for word in words)]
    parts.append("Seeds count from 0. Raw samples: `runs.json`.")
    if programs:
        parts.append(
            f"The time of the whole command is left out for {escaped(', '.join(sorted(programs)))}: a script trains "
            "these, whose own start-up would be counted, while the others are started by `accel train`."
        )
    return "\n\n".join(parts) + "\n"


def _restore(sample: Mapping[str, object], results: Path, programs: Collection[str]) -> Run:
    """A kept run; without the whole command's time where a script of its own was the command."""
    config = {**sample["config"], "variant": sample["variant"]}  # type: ignore[dict-item]
    run = run_from_json({**sample, "config": config}, str(results / SAMPLES))
    if sample["variant"] in programs and run.summary is not None:
        run = replace(run, summary={key: value for key, value in run.summary.items() if key != "wall_s"})
    return run


def _lines(path: Path) -> list[object]:
    try:
        return [json.loads(line) for line in path.read_text().splitlines()]
    except (OSError, ValueError):
        return []
