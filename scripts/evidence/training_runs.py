#!/usr/bin/env python
"""Runs a table of trainings one at a time and keeps their measurements; the same command continues where it stopped.

    python scripts/evidence/training_runs.py                       every case of scripts/evidence/cases.toml
    python scripts/evidence/training_runs.py cartpole --budget-s 540
    python scripts/evidence/training_runs.py --table scripts/reproduce/gpu.toml --list

A run lies in RUNS/CASE/VARIANT-sSEED. RESULTS/CASE/ gets ``runs.json`` with every run's raw samples, command, commit
and machine, ``report/`` as ``accel compare`` writes it, and ``README.md`` with the numbers and what was not measured.
Runs whose samples are in ``runs.json`` are not run again, even if their directories are gone. A run stopped by the
budget is resumed by the next call. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from accel.errors import AccelError  # noqa: E402
from accel.monitor.errors import MonitorError  # noqa: E402
from accel.reports.analysis import Choices, analyse  # noqa: E402
from accel.reports.document import write_report  # noqa: E402
from accel.reports.markdown import escaped, table_text  # noqa: E402
from accel.reports.reporting import load_run_record  # noqa: E402
from accel.reports.runs import Run  # noqa: E402
from accel.reports.samples import run_from_json, run_to_json  # noqa: E402
from accel.reports.tables import (  # noqa: E402
    Table,
    machines_table,
    mismatch_table,
    publications_table,
    results_table,
    runs_table,
    speedup_table,
)
from accel.reports.wording import (  # noqa: E402
    bottlenecks,
    headline,
    method,
    number,
    verdicts,
)
from accel.system.atomic import write_atomically  # noqa: E402

LEAST_BUDGET_S = 30.0
NOT_RUN, NOT_FINISHED, FAILED = "not run yet", "not finished yet", "failed with status"
STOP_TIMEOUT_S = 90.0
SAMPLES = "runs.json"
MAX_POINTS = 200
COMPLETE = ("total_env_steps", "mean return", "max_seconds")
OVERLAP_S = 1.0
"""Times are rounded: runs that overlap by less than this ran one after the other."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FIELDS = {"title", "arguments", "variants", "baseline", "also_against", "threshold", "seeds", "first_seed"}
"""Of a case in a table."""


@dataclass(frozen=True)
class Variant:
    """One configuration of a case.

    Attributes:
        name: a plain directory name.
        arguments: of ``accel train``, after the case's own.
        seeds: of its runs.
        needs: what a machine must have, such as ``cuda`` or ``module:mujoco``.
        program: runs instead of ``accel``, a script and its own arguments.
    """

    name: str
    arguments: tuple[str, ...]
    seeds: range
    needs: tuple[str, ...] = ()
    program: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """One comparison: the same task under several variants, compared with the one named ``baseline``.

    Attributes:
        also_against: another variant that the speedups are given against, beside the report.
    """

    name: str
    title: str
    arguments: tuple[str, ...]
    variants: tuple[Variant, ...]
    baseline: str
    threshold: float | None = None
    also_against: str | None = None

    def order(self) -> list[tuple[Variant, int]]:
        """Every run, variants interleaved, so that a machine that gets slower slows all of them."""
        seeds = sorted({seed for variant in self.variants for seed in variant.seeds})
        return [(variant, seed) for seed in seeds for variant in self.variants if seed in variant.seeds]


def main() -> int:
    """Parse, run what is missing, collect; status 0 when all is measured that can be here, 3 when the budget is used, 1
    when nothing is left but a run failed."""
    options = parse()
    cases = read_cases(options.table)
    if unknown := set(options.cases) - set(cases):
        raise SystemExit(f"no case is called {', '.join(sorted(unknown))}; there are {', '.join(cases)}")
    chosen = [cases[name] for name in options.cases or cases]
    if options.list:
        for case in chosen:
            print_state(case, options.runs_dir, options.results_dir)
        return 0
    budget_s = 0.0 if options.collect_only else options.budget_s
    gaps = work(chosen, options.runs_dir, options.results_dir, time.monotonic() + budget_s)
    left = sum(gap in {NOT_RUN, NOT_FINISHED} for gap in gaps)
    failed = sum(gap.startswith(FAILED) for gap in gaps)
    if left:
        print(f"{left} runs are left: give the same command again")
    if failed:
        print(f"{failed} runs failed: their logs are in {options.runs_dir}")
    return 3 if left else int(failed > 0)


def work(cases: Sequence[Case], runs: Path, results: Path, deadline: float) -> list[str]:
    """Run what cases lack until the deadline, the first seed of all of them before the second of any; returns why runs
    have no result."""
    order = [(seed, case, variant) for case in cases for variant, seed in case.order()]
    for case in cases:
        keep_samples(case, runs / case.name, results / case.name)
    gaps = {case.name: _missing(case, results / case.name) for case in cases}
    try:
        for seed, case, variant in sorted(order, key=lambda run: run[0] - run[2].seeds.start):
            name = run_name(variant, seed)
            if name not in gaps[case.name]:
                continue
            if gap := _make(case, variant, seed, runs / case.name, deadline - time.monotonic()):
                gaps[case.name][name] = gap
            else:
                keep_samples(case, runs / case.name, results / case.name)
                del gaps[case.name][name]
    finally:
        for case in cases:
            keep_samples(case, runs / case.name, results / case.name)
            write_summary(case, results / case.name, gaps[case.name])
    return [gap for found in gaps.values() for gap in found.values()]


def _missing(case: Case, results: Path) -> dict[str, str]:
    """Runs without samples, all of them not run yet."""
    kept = read_samples(results)
    return {name: NOT_RUN for variant, seed in case.order() if (name := run_name(variant, seed)) not in kept}


def _make(case: Case, variant: Variant, seed: int, runs: Path, remaining_s: float) -> str | None:
    if missing := [need for need in variant.needs if not has(need)]:
        return f"this machine lacks {', '.join(missing)}"
    if remaining_s < LEAST_BUDGET_S:
        return NOT_RUN
    return run(case, variant, seed, runs, remaining_s)


def run(case: Case, variant: Variant, seed: int, runs: Path, timeout_s: float) -> str | None:
    """Train or resume; returns why there is no result, or None."""
    name = run_name(variant, seed)
    path = runs / name
    runs.mkdir(parents=True, exist_ok=True)
    command = list(variant.program and (sys.executable, *variant.program)) or [sys.executable, "-m", "accel"]
    if (path / "checkpoints").is_dir() and any((path / "checkpoints").iterdir()):
        command += ["train", "--resume", str(path)]
    else:
        shutil.rmtree(path, ignore_errors=True)
        command += ["train", *case.arguments, *variant.arguments, "--seed", str(seed)]
        shown = runs.relative_to(PROJECT) if runs.is_relative_to(PROJECT) else runs
        command += ["--results-dir", str(shown), "--name", name]
    load = os.getloadavg()[0]
    print(f"{case.name}/{name}: {shlex.join(command)}  (load {load:.2f})", flush=True)
    with (runs / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=PROJECT, stdout=log, stderr=log, start_new_session=True)
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = stop(process)
        except BaseException:
            stop(process)
            raise
    with (runs / f"{name}.load.jsonl").open("a") as file:
        loads = {"load_average_before": load, "load_average_after": os.getloadavg()[0]}
        file.write(json.dumps({"unix_time_s": round(time.time(), 1)} | loads) + "\n")
    if is_complete(path):
        return None
    if (path / "checkpoints").is_dir() and (path / "summary.json").is_file():
        return NOT_FINISHED
    tail = (runs / f"{name}.log").read_text(errors="replace").strip().splitlines()[-1:]
    failure = f"{FAILED} {status}: {' '.join(tail)}"
    print(f"  {failure}", flush=True)
    return failure


def stop(process: subprocess.Popen[bytes]) -> int:
    """Stop a run with a checkpoint; kill it if it does not stop."""
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


@cache
def has(need: str) -> bool:
    """Whether this machine has a CUDA device, or a Python module."""
    kind, _, name = need.partition(":")
    if kind == "module":
        return find_spec(name) is not None
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def print_state(case: Case, runs: Path, results: Path) -> None:
    """Measured and missing runs, one line per variant."""
    kept = read_samples(results / case.name)
    print(f"{case.name}: {case.title}")
    for variant in case.variants:
        names = [run_name(variant, seed) for seed in variant.seeds]
        done = sum(name in kept or is_complete(runs / case.name / name) for name in names)
        words = shlex.join(["accel", "train", *case.arguments, *variant.arguments])
        print(f"  {done}/{len(variant.seeds)} {variant.name}: {words}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="names of cases; default: all of the table")
    parser.add_argument("--table", type=Path, default=Path(__file__).parent / "cases.toml")
    parser.add_argument("--runs-dir", type=Path, default=PROJECT / "runs")
    parser.add_argument("--results-dir", type=Path, default=PROJECT / "results")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="stop and keep a checkpoint after this")
    parser.add_argument("--collect-only", action="store_true", help="run nothing, write the results anew")
    parser.add_argument("--list", action="store_true", help="say what is measured and what is missing")
    options = parser.parse_args()
    for name in ("table", "runs_dir", "results_dir"):
        setattr(options, name, getattr(options, name).resolve())
    return options


def read_cases(path: Path) -> dict[str, Case]:
    """The cases of a table by name. Exits where it is damaged."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        return {name: _case(name, values) for name, values in table["case"].items()}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise SystemExit(f"{path} is no table of cases: {error!r}") from None


def _case(name: str, values: dict[str, object]) -> Case:
    if unknown := values.keys() - _FIELDS:
        raise ValueError(f"case {name}: unknown {', '.join(sorted(unknown))}")
    first, seeds = (int(str(values.get(key, default))) for key, default in (("first_seed", 0), ("seeds", 5)))
    variants = tuple(_variant(key, value, first, seeds) for key, value in values["variants"].items())  # type: ignore[attr-defined]
    baseline = str(values.get("baseline", variants[0].name))
    also_against = values.get("also_against")
    if missing := {baseline, also_against} - {variant.name for variant in variants} - {None}:
        raise ValueError(f"case {name}: no variant is called {', '.join(map(repr, missing))}")
    threshold = values.get("threshold")
    return Case(
        _plain(name),
        str(values.get("title", name)),
        _words(values.get("arguments", [])),
        variants,
        baseline,
        None if threshold is None else float(str(threshold)),
        None if also_against is None else str(also_against),
    )


def _variant(name: str, value: object, first: int, seeds: int) -> Variant:
    fields = value if isinstance(value, dict) else {"arguments": value}
    if unknown := set(fields) - {"arguments", "seeds", "needs", "program"}:
        raise ValueError(f"variant {name}: unknown {', '.join(sorted(unknown))}")
    return Variant(
        _plain(name),
        _words(fields.get("arguments", [])),
        range(first, first + int(fields.get("seeds", seeds))),
        _words(fields.get("needs", [])),
        _words(fields.get("program", [])),
    )


def _words(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list of words")
    return tuple(map(str, value))


def _plain(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no plain name")
    return name


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
        text = json.dumps(kept, separators=(",", ":")).replace(f"{PROJECT}/", "")  # of no one's machine
        write_atomically(results / SAMPLES, f"{text}\n".encode())


def write_summary(case: Case, results: Path, gaps: Mapping[str, str]) -> None:
    """Write the report and the summary anew; ``gaps`` says which runs have no result, and why."""
    results.mkdir(parents=True, exist_ok=True)
    samples = {name: sample for name, sample in read_samples(results).items() if name not in gaps}
    write_atomically(results / "README.md", _summary(case, samples, gaps, results).encode())


def is_complete(path: Path) -> bool:
    """Whether a run reached its goal."""
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
        first = {variant: run for run in reversed(runs) if (variant := run.config["variant"])}
        choices = Choices(threshold=case.threshold, group_by=("variant",), force=True)
        analysis = analyse(runs, choices, first.get(case.baseline) if len(first) > 1 else None)
        shutil.rmtree(results / "report", ignore_errors=True)  # with figures that it no longer has
        write_report(analysis, results / "report", written=f"Made from {SAMPLES}.")
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
        other = first.get(case.also_against)
        if other is not None and (table := speedup_table(analyse(runs, choices, other))) is not None:
            parts.append(table_text(table))
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
    parts.append(f"Seeds count from {case.variants[0].seeds.start}. Raw samples: `runs.json`.")
    if programs:
        parts.append(
            f"The time of the whole command is left out for {escaped(', '.join(sorted(programs)))}: a script trains "
            "these, whose own start-up would be counted, while the others are started by `accel train`."
        )
    return "\n\n".join(parts) + "\n"


def _restore(sample: Mapping[str, object], results: Path, programs: Collection[str]) -> Run:
    """A kept run; without the command's time if a script was the command."""
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


@dataclass(frozen=True)
class Conditions:
    """When and under which load one run was made.

    Attributes:
        variant: its configuration's name. run: what it measured.
        ended_s: Unix time at which each of its parts ended, one for a run that was never resumed; empty if unknown.
        loads: load averages over a minute before each part, as far as they were kept.
        wall_s: how long its command trained; None if unknown.
    """

    variant: str
    run: Run
    ended_s: tuple[float, ...] = ()
    loads: tuple[float, ...] = ()
    wall_s: float | None = None

    @property
    def span_s(self) -> tuple[float, float] | None:
        """Unix times of its beginning and end; None if either is unknown, as for a resumed run."""
        if len(self.ended_s) != 1 or self.wall_s is None:
            return None
        return self.ended_s[0] - self.wall_s, self.ended_s[0]


def conditions_of(run: Run, sample: Mapping[str, Any]) -> Conditions:
    """What is kept of a run: its variant, its summary, and in ``load`` what the runner noted after each part of it."""
    load, summary = sample.get("load", ()), sample["summary"] or {}
    ended = tuple(float(str(part["unix_time_s"])) for part in load if "unix_time_s" in part)
    loads = tuple(float(str(part["load_average_before"])) for part in load if "load_average_before" in part)
    return Conditions(str(sample["variant"]), run, ended, loads, summary.get("wall_s"))


def conditions_text(made: Sequence[Conditions]) -> str:
    """Whether runs were interleaved and alone, how busy the machine was, of how many commits they are."""
    return " ".join((_order(made), _load(made), _source(made)))


def conditions_table(made: Sequence[Conditions]) -> Table:
    """One row a run, in order of time: when it ended, the load before it, what an environment step took."""
    rows = tuple(
        (
            one.run.name,
            one.variant,
            f"{datetime.fromtimestamp(one.ended_s[-1], UTC):%Y-%m-%d %H:%M:%S}" if one.ended_s else "–",
            ", ".join(f"{load:.2f}" for load in one.loads) or "–",
            number(one.run.environment_us_per_step),
            _commit(one.run),
        )
        for one in sorted(made, key=lambda one: one.ended_s[-1:] or (0.0,))
    )
    columns = ("run", "configuration", "ended, UTC", "load average before", "environment, µs/step", "commit")
    return Table("How the runs were made, in order of time.", columns, rows)


def _commit(run: Run) -> str:
    return str(run.machine.get("commit") or "unknown")[:12] + (" with changes" if run.machine.get("dirty") else "")


def _order(made: Sequence[Conditions]) -> str:
    known = sorted((one for one in made if one.ended_s), key=lambda one: one.ended_s[-1])
    if len(known) < len(made):
        return f"When {len(made) - len(known)} of {len(made)} runs were made is not known, nor whether interleaved."
    repeated = sum(before.variant == after.variant for before, after in pairwise(known))
    if len({one.variant for one in known}) < 2:
        order = "All runs are of one variant"
    elif not repeated:
        order = "Variants were run interleaved: no run followed one of its own variant"
    else:
        order = f"Variants were not run strictly interleaved: {repeated} of {len(known)} runs followed one of their own"
    spans = sorted(span for one in known if (span := one.span_s) is not None)
    overlaps = sum(after[0] < before[1] - OVERLAP_S for before, after in pairwise(spans))
    if len(spans) < len(known):
        resumed = len(known) - len(spans)
        alone = f"whether one at a time is not known, as {resumed} of {len(known)} were resumed"
    else:
        alone = f"{overlaps} of them began before another had ended" if overlaps else "one at a time"
    return f"{order}; {alone}."


def _load(made: Sequence[Conditions]) -> str:
    loads = [load for one in made for load in one.loads]
    if not loads:
        return "The machine's load was not noted."
    return (
        f"The load average before a run was {min(loads):.2f} to {max(loads):.2f}, {median(loads):.2f} in the median; "
        "it covers a minute, so the run before counts in it."
    )


def _source(made: Sequence[Conditions]) -> str:
    commits = {str(one.run.machine.get("commit") or "unknown") for one in made}
    dirty = sum(bool(one.run.machine.get("dirty")) for one in made)
    of = "one commit" if len(commits) == 1 else f"{len(commits)} commits"
    changes = f"{dirty} of {len(made)} with" if dirty else "none with"
    return f"The runs are of {of}, {changes} uncommitted changes."


if __name__ == "__main__":
    sys.exit(main())
