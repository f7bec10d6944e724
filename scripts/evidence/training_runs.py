#!/usr/bin/env python
"""Runs a table of trainings one at a time and keeps their measurements; the same command continues where it stopped.

    python scripts/evidence/training_runs.py cartpole                            run the case again
    python scripts/evidence/training_runs.py cartpole --budget-s 540             as much as fits
    python scripts/evidence/training_runs.py cartpole --out results/evidence     publish: add what the evidence lacks
    python scripts/evidence/training_runs.py --list                              what is measured, what is missing

A run lies in RUNS/CASE/VARIANT-sSEED. OUT/CASE gets ``runs.json.gz`` with every run's raw samples, command, commit and
machine, and ``README.md``; RUNS/CASE/report is what ``accel compare`` writes. Runs whose samples are in OUT are not run
again. A run stopped by the budget is resumed by the next call. Where no run was added, no file is written. A case with
lanes has one run of each lane under way at any time; every other case has one.
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
import textwrap
import threading
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from pydantic import BaseModel, StringConstraints, model_validator

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel.errors import AccelError
from accel.monitor.errors import MonitorError
from accel.reports.analysis import Analysis, Choices, analyse
from accel.reports.document import check_target, write_report
from accel.reports.reporting import load_run_record
from accel.reports.samples import run_from_json, run_to_json
from accel.reports.wording import headline, verdict
from accel.system.atomic import write_atomically
from scripts.evidence.samples import PROJECT, RUNS, read_samples, write_samples

LEAST_BUDGET_S = 30.0
NOT_RUN, NOT_FINISHED, FAILED = "not run yet", "not finished yet", "failed with status"
STOP_TIMEOUT_S = 90.0
SAMPLES = "runs.json.gz"
MAX_POINTS = 200
COLUMNS = 118
POLL_S = 0.2
COMPLETE = ("total_env_steps", "mean return", "max_seconds")
OVERLAP_S = 1.0
"""Times are rounded: runs that overlap by less than this ran one after the other."""
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Sample = Mapping[str, Any]


class Variant(BaseModel, frozen=True, extra="forbid"):
    """One configuration of a case.

    Attributes:
        name: of a directory.
        arguments: of ``accel train``, after the case's own.
        seeds: how many runs, from seed 0.
    """

    name: Name
    arguments: tuple[str, ...]
    seeds: int


class Case(BaseModel, frozen=True, extra="forbid"):
    """One comparison: the same task under several variants, compared with the one named ``baseline``.

    Attributes:
        needs: what a machine must have, such as ``cuda`` or ``module:mujoco``.
        also_against: another variant that the speedups are given against.
        lanes: variants that take turns, one list for each run that is under way at once; empty: one lane of them all.
        figure: of the report, kept beside the page.
        note: what a reader of the page has to know, in Markdown.
    """

    name: Name
    title: str
    arguments: tuple[str, ...] = ()
    variants: tuple[Variant, ...]
    baseline: str
    needs: tuple[str, ...] = ()
    also_against: str | None = None
    lanes: tuple[tuple[str, ...], ...] = ()
    figure: str | None = None
    note: str = ""

    @model_validator(mode="after")
    def _names_variants(self) -> Case:
        names = [variant.name for variant in self.variants]
        if missing := {self.baseline, self.also_against} - {*names, None}:
            raise ValueError(f"no variant is called {', '.join(map(repr, missing))}")
        if self.lanes and (loose := [name for name in names if sum(name in lane for lane in self.lanes) != 1]):
            raise ValueError(f"{', '.join(loose)} must be in one lane each")
        return self

    def lane(self, variant: Variant) -> int:
        """The number of a variant's lane."""
        return next((number for number, names in enumerate(self.lanes) if variant.name in names), 0)

    def order(self) -> list[tuple[Variant, int]]:
        """Every run, variants interleaved, so that a machine that gets slower slows all of them."""
        seeds = range(max(variant.seeds for variant in self.variants))
        return [(variant, seed) for seed in seeds for variant in self.variants if seed < variant.seeds]


def main() -> int:
    """Run what is missing; status 0 when all is measured that can be here, 3 when the budget is used, 1 when nothing is
    left but a run failed."""
    options = parse()
    cases = read_cases(options.table)
    if unknown := set(options.cases) - set(cases):
        raise SystemExit(f"no case is called {', '.join(sorted(unknown))}; there are {', '.join(cases)}")
    chosen = [cases[name] for name in options.cases or cases]
    if options.list:
        for case in chosen:
            print_state(case, options.runs_dir, options.out)
        return 0
    budget_s = 0.0 if options.collect_only else options.budget_s
    deadline = time.monotonic() + budget_s
    gaps = work(chosen, options.runs_dir, options.out, deadline, rewrite=options.collect_only)
    left = sum(gap in {NOT_RUN, NOT_FINISHED} for gap in gaps)
    failed = sum(gap.startswith(FAILED) for gap in gaps)
    if left:
        print(f"{left} runs are left: give the same command again")
    if failed:
        print(f"{failed} runs failed: their logs are in {options.runs_dir}")
    return 3 if left else int(failed > 0)


def work(cases: Sequence[Case], runs: Path, out: Path, deadline: float, *, rewrite: bool) -> list[str]:
    """Run what cases lack until the deadline, the first seed of all of them before the second of any; returns why runs
    have no result. ``rewrite``: the pages too of cases to which no run was added."""
    order = [(seed, case, variant) for case in cases for variant, seed in case.order()]
    changed = {case.name for case in cases if keep_samples(case, runs / case.name, out / case.name) or rewrite}
    gaps = {case.name: _missing(case, out / case.name) for case in cases}
    for case in cases:
        if not gaps[case.name]:
            print(f"{case.name}: all {len(case.order())} runs are in {out / case.name / SAMPLES}: nothing to run")
    lanes: dict[int, list[tuple[Case, Variant, int]]] = {}
    for seed, case, variant in sorted(order, key=lambda run: run[0]):
        if run_name(variant, seed) in gaps[case.name]:
            lanes.setdefault(case.lane(variant), []).append((case, variant, seed))
    keeping, stopped = threading.Lock(), threading.Event()

    def fill(lane: Sequence[tuple[Case, Variant, int]]) -> None:
        for case, variant, seed in lane:
            name = run_name(variant, seed)
            gap = _make(case, variant, seed, runs / case.name, deadline - time.monotonic(), stopped)
            with keeping:
                if gap:
                    gaps[case.name][name] = gap
                else:
                    keep_samples(case, runs / case.name, out / case.name)
                    changed.add(case.name)
                    del gaps[case.name][name]

    try:
        with ThreadPoolExecutor(max(1, len(lanes))) as pool:
            under_way = [pool.submit(fill, lane) for lane in lanes.values()]
            try:
                for lane in under_way:
                    lane.result()
            except BaseException:
                stopped.set()
                raise
    finally:
        for case in cases:
            if case.name in changed:
                write_page(case, runs / case.name, out / case.name, gaps[case.name])
                print(f"wrote {out / case.name / 'README.md'}")
    for case in cases:
        for name, why in gaps[case.name].items():
            if why not in {NOT_RUN, NOT_FINISHED}:
                print(f"{case.name}/{name}: {why}")
    return [gap for found in gaps.values() for gap in found.values()]


def _missing(case: Case, out: Path) -> dict[str, str]:
    """Runs without samples, all of them not run yet."""
    kept = kept_runs(out)
    return {name: NOT_RUN for variant, seed in case.order() if (name := run_name(variant, seed)) not in kept}


def _make(
    case: Case, variant: Variant, seed: int, runs: Path, remaining_s: float, stopped: threading.Event
) -> str | None:
    if missing := [need for need in case.needs if not has(need)]:
        return f"this machine lacks {', '.join(missing)}"
    if remaining_s < LEAST_BUDGET_S or stopped.is_set():
        return NOT_RUN
    return run(case, variant, seed, runs, remaining_s, stopped)


def run(case: Case, variant: Variant, seed: int, runs: Path, timeout_s: float, stopped: threading.Event) -> str | None:
    """Train or resume, until the time is up or ``stopped`` is set; returns why there is no result, or None."""
    name = run_name(variant, seed)
    path = runs / name
    runs.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "accel", "train"]
    if (path / "checkpoints").is_dir() and any((path / "checkpoints").iterdir()):
        command += ["--resume", str(path)]
    else:
        shutil.rmtree(path, ignore_errors=True)
        command += [*case.arguments, *variant.arguments, "--seed", str(seed)]
        shown = runs.relative_to(PROJECT) if runs.is_relative_to(PROJECT) else runs
        command += ["--results-dir", str(shown), "--name", name]
    load = os.getloadavg()[0]
    print(f"{case.name}/{name}: {shlex.join(command)}  (load {load:.2f})", flush=True)
    with (runs / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=PROJECT, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + timeout_s
        while (status := process.poll()) is None and time.monotonic() < deadline:
            if stopped.wait(POLL_S):
                break
        if status is None:
            status = stop(process)
    with (runs / f"{name}.load.jsonl").open("a") as file:
        loads = {"load_average_before": load, "load_average_after": os.getloadavg()[0]}
        file.write(json.dumps({"unix_time_s": round(time.time(), 1)} | loads) + "\n")
    if is_complete(path):
        return None
    if (path / "checkpoints").is_dir() and (path / "summary.json").is_file():
        return NOT_FINISHED
    tail = (runs / f"{name}.log").read_text(errors="replace").strip().splitlines()[-1:]
    return f"{FAILED} {status}: {' '.join(tail)}"


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


def print_state(case: Case, runs: Path, out: Path) -> None:
    """Measured and missing runs, one line per variant."""
    kept = kept_runs(out / case.name)
    print(f"{case.name}: {case.title}")
    for variant in case.variants:
        names = [run_name(variant, seed) for seed in range(variant.seeds)]
        done = sum(name in kept or is_complete(runs / case.name / name) for name in names)
        words = shlex.join(["accel", "train", *case.arguments, *variant.arguments])
        print(f"  {done}/{variant.seeds} {variant.name}: {words}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="names of cases; default: all of the table")
    parser.add_argument("--table", type=Path, default=Path(__file__).parent / "cases.toml")
    parser.add_argument("--runs-dir", type=Path, default=RUNS, help="default: results/runs")
    parser.add_argument("--out", type=Path, default=RUNS, help="default: results/runs")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="stop and keep a checkpoint after this")
    parser.add_argument("--collect-only", action="store_true", help="run nothing, write the pages anew from samples")
    parser.add_argument("--list", action="store_true", help="say what is measured and what is missing")
    options = parser.parse_args()
    for name in ("table", "runs_dir", "out"):
        setattr(options, name, getattr(options, name).resolve())
    return options


def read_cases(path: Path) -> dict[str, Case]:
    """The cases of a table by name. Exits where it is damaged."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        shared = table.get("variants", {})
        return {name: _case(name, values, shared) for name, values in table["case"].items()}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise SystemExit(f"{path} is no table of cases: {error!r}") from None


def _case(name: str, values: dict[str, Any], shared: Mapping[str, object]) -> Case:
    seeds, given = values.pop("seeds", 5), values.pop("variants")
    given = given if isinstance(given, dict) else {key: {} for key in given}
    variants = []
    for key, value in given.items():
        fields = value if isinstance(value, dict) else {"arguments": value}
        arguments = fields["arguments"] if "arguments" in fields else shared[key]
        variants.append(Variant(**{"name": key, "seeds": seeds, **fields, "arguments": arguments}))
    return Case(**{"name": name, "title": name, "baseline": variants[0].name, **values, "variants": variants})


def run_name(variant: Variant, seed: int) -> str:
    """The directory name of one run of a case."""
    return f"{variant.name}-s{seed}"


def kept_runs(out: Path) -> dict[str, Sample]:
    """The samples kept for a case, by run."""
    return dict(read_samples(out / SAMPLES).get("runs", {}))


def keep_samples(case: Case, runs: Path, out: Path) -> bool:
    """Add the samples of complete runs to those that are kept; returns whether there were any."""
    samples = kept_runs(out)
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
        write_samples(out / SAMPLES, {"case": case.name, "title": case.title, "runs": samples})
    return len(samples) > before


def is_complete(path: Path) -> bool:
    """Whether a run reached its goal."""
    try:
        reason = json.loads((path / "summary.json").read_text())["reason"]
    except (OSError, ValueError, KeyError):
        return False
    return str(reason).startswith(COMPLETE)


def write_page(case: Case, runs: Path, out: Path, gaps: Mapping[str, str]) -> None:
    """Write the report and the page anew; ``gaps`` says which runs have no result, and why."""
    samples = {name: sample for name, sample in kept_runs(out).items() if name not in gaps}
    parts = [f"# {case.title}", f"```\npython scripts/evidence/training_runs.py {case.name}\n```"]
    parts += _measured(case, samples, runs / "report", out) if samples else []
    reasons: dict[str, list[str]] = {}
    for name, reason in gaps.items():
        reasons.setdefault(reason, []).append(name)
    parts += [_wrap(f"Not measured: {', '.join(names)}: {_plain_text(reason)}.") for reason, names in reasons.items()]
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "README.md", ("\n\n".join(parts) + "\n").encode())


def _measured(case: Case, samples: Mapping[str, Sample], report: Path, out: Path) -> list[str]:
    """The findings of a case, from its samples."""
    found = [
        run_from_json({**s, "config": {**s["config"], "variant": s["variant"]}}, name) for name, s in samples.items()
    ]
    first = {str(run.config["variant"]): run for run in reversed(found)}
    choices = Choices(group_by=("variant",), force=True)
    analysis = analyse(found, choices, first.get(case.baseline) if len(first) > 1 else None)
    check_target(report, overwrite=True)
    write_report(analysis, report, written=f"Made from {SAMPLES}.")
    parts = [_wrap(_plain_text(headline(analysis)))]
    figure = report / "figures" / f"{case.figure}.svg"
    if case.figure is not None and figure.is_file():
        out.mkdir(parents=True, exist_ok=True)
        shutil.copy(figure, out / figure.name)
        parts.append(f"![{case.figure.replace('_', ' against ')}]({case.figure}.svg)")
    parts += [_wrap(case.note)] if case.note else []
    parts += [_table(case, samples), f"Against {case.baseline}:", _bullets(analysis)]
    other = first.get(case.also_against or "")
    if other is not None:
        parts += [f"Against {case.also_against}:", _bullets(analyse(found, choices, other))]
    return [*parts, _wrap(_conditions(list(samples.values()), max(1, len(case.lanes))))]


def _table(case: Case, samples: Mapping[str, Sample]) -> str:
    """One row a variant: medians over its runs, with the least and the greatest."""
    lines = [
        "| variant | runs | reached the return | training, s | environment steps | steps/s | last mean return "
        "| learner waits, % | lag, updates |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for variant in case.variants:
        own = [s for s in samples.values() if s["variant"] == variant.name]
        summaries = [s["summary"] for s in own if s["summary"]]
        if not summaries:
            continue
        reached = sum(str(summary["reason"]).startswith("mean return") for summary in summaries)
        cells = [
            _spread([s.get(k) for s in summaries])
            for k in ("training_s", "env_steps", "env_steps_per_s", "return_mean")
        ]
        cells.append(_spread([100 * s["learner_s"].get("wait", 0.0) / sum(s["learner_s"].values()) for s in summaries]))
        cells.append(_spread([s["lag"]["lag_mean"] for s in summaries]))
        lines.append(f"| {variant.name} | {len(summaries)} | {reached} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(measured: Sequence[float | None]) -> str:
    values = [value for value in measured if value is not None]
    if not values:
        return "–"
    digits = 1 if max(map(abs, values)) < 1000 else 0
    middle, least, greatest = (f"{value:,.{digits}f}" for value in (median(values), min(values), max(values)))
    return f"{middle} ({least} to {greatest})"


def _bullets(analysis: Analysis) -> str:
    """What is found of each variant."""
    lines = []
    for found in analysis.comparisons:
        marks = "".join(f" **Not comparable:** {_plain_text(mark)}" for mark in found.marks)
        said = f"**{found.group.label}**: {_plain_text(verdict(found, analysis))}{marks}"
        lines.append(textwrap.fill(said, COLUMNS, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False))
    return "\n".join(lines)


def _wrap(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), COLUMNS, break_long_words=False, break_on_hyphens=False)


def _plain_text(text: str) -> str:
    return re.sub(r"([\\`*_<>\[\]])", r"\\\1", " ".join(text.split()))


def _lines(path: Path) -> list[object]:
    try:
        return [json.loads(line) for line in path.read_text().splitlines()]
    except (OSError, ValueError):
        return []


def _conditions(samples: Sequence[Sample], lanes: int) -> str:
    """On what the runs were made, of which commits, whether interleaved and alone, and how busy the machine was."""
    machines = [sample["machine"] for sample in samples]
    processors = sorted({str(machine.get("cpu") or "unknown") for machine in machines})
    commits = sorted({str(machine.get("commit") or "unknown")[:10] for machine in machines})
    dirty = sum(bool(machine.get("dirty")) for machine in machines)
    shown = ", ".join(commits[:3]) + (f" and {len(commits) - 3} others" if len(commits) > 3 else "")
    source = (
        f"{_plain_text('; '.join(processors))}; commit {shown}, {dirty or 'none'} of the runs with uncommitted changes."
    )
    return f"{source} {_order(samples, lanes)} Raw samples: `{SAMPLES}`."


def _order(samples: Sequence[Sample], lanes: int) -> str:
    """Whether variants took turns, one run at a time, and how busy the machine was."""
    parts = [[part for part in sample.get("load", ()) if "unix_time_s" in part] for sample in samples]
    if not all(parts):
        return "Their order in time was not kept."
    made = sorted(zip(samples, parts, strict=True), key=lambda one: float(one[1][-1]["unix_time_s"]))
    repeated = sum(before["variant"] == after["variant"] for (before, _), (after, _) in pairwise(made))
    order = f"{repeated} of {len(made)} runs followed one of their variant" if repeated else "Variants were interleaved"
    ends = [
        (part[-1]["unix_time_s"], (sample["summary"] or {}).get("wall_s")) for sample, part in made if len(part) == 1
    ]
    spans = sorted((end - wall_s, end) for end, wall_s in ends if wall_s is not None)
    overlaps = sum(after[0] < before[1] - OVERLAP_S for before, after in pairwise(spans))
    alone = f"{overlaps} began before another had ended" if overlaps else "one ran at a time"
    alone = alone if lanes == 1 else f"{lanes} ran at a time"
    load = median(part["load_average_before"] for found in parts for part in found)
    return f"{order}; {alone}. The load average before a run was {load:.2f} in the median."


if __name__ == "__main__":
    sys.exit(main())
