#!/usr/bin/env python
"""Runs a table of trainings one at a time and keeps what they measured; the same command goes on where it stopped.

    python scripts/evidence/training_runs.py                       every case of scripts/evidence/cases.toml
    python scripts/evidence/training_runs.py cartpole --budget-s 540
    python scripts/evidence/training_runs.py --table scripts/reproduce/gpu.toml --list

A run lies in RUNS/CASE/VARIANT-sSEED. RESULTS/CASE/ gets ``runs.json`` with every run's raw samples, command, commit
and machine, ``report/`` as ``accel compare`` writes it, and ``README.md`` with the numbers and
what was not measured. Runs whose samples are in ``runs.json`` are not run again, whatever became of their directories.
A run that the budget ends is resumed by the next call. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT), str(Path(__file__).parent)]

from training_cases import Case, Variant, read_cases  # noqa: E402
from training_results import is_complete, keep_samples, read_samples, run_name, write_summary  # noqa: E402

LEAST_BUDGET_S = 30.0
NOT_RUN, NOT_FINISHED = "not run yet", "not finished yet"
STOP_TIMEOUT_S = 90.0


def main() -> int:
    """Parse, run what is missing, collect; status 0 when nothing is left to run here, 3 when the budget is used."""
    options = parse()
    cases = read_cases(options.table)
    if unknown := set(options.cases) - set(cases):
        raise SystemExit(f"no case is called {', '.join(sorted(unknown))}; there are {', '.join(cases)}")
    chosen = [cases[name] for name in options.cases or cases]
    if options.list:
        for case in chosen:
            print_state(case, options.runs_dir, options.results_dir)
        return 0
    deadline = time.monotonic() + options.budget_s
    left = 0
    for case in chosen:
        left += work(
            case, options.runs_dir / case.name, options.results_dir / case.name, deadline, options.collect_only
        )
    if left:
        print(f"{left} runs are left: give the same command again")
    return 3 if left else 0


def work(case: Case, runs: Path, results: Path, deadline: float, collect_only: bool) -> int:
    """Run what a case lacks until the deadline; returns how many runs that could be made here are left."""
    gaps: dict[str, str] = {}
    left = 0
    try:
        for variant, seed in case.order():
            name = run_name(variant, seed)
            keep_samples(case, runs, results)
            if name in read_samples(results):
                continue
            gaps[name] = _make(case, variant, seed, runs, 0.0 if collect_only else deadline - time.monotonic()) or ""
            left += gaps[name] in {NOT_RUN, NOT_FINISHED}
    finally:
        keep_samples(case, runs, results)
        write_summary(case, results, {name: gap for name, gap in gaps.items() if gap})
    return left


def _make(case: Case, variant: Variant, seed: int, runs: Path, remaining_s: float) -> str | None:
    if missing := [need for need in variant.needs if not has(need)]:
        return f"this machine lacks {', '.join(missing)}"
    if remaining_s < LEAST_BUDGET_S:
        return NOT_RUN
    return run(case, variant, seed, runs, remaining_s)


def run(case: Case, variant: Variant, seed: int, runs: Path, timeout_s: float) -> str | None:
    """Train, or go on; returns why there is no result, or None."""
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
    print(f"  failed with status {status}: {' '.join(tail)}", flush=True)
    return f"failed with status {status}: {' '.join(tail)}"


def stop(process: subprocess.Popen[bytes]) -> int:
    """End a run in good order, with a checkpoint; then not in good order."""
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def has(need: str) -> bool:
    """Whether this machine has a CUDA device, or a Python module."""
    kind, _, name = need.partition(":")
    if kind == "module":
        return find_spec(name) is not None
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def print_state(case: Case, runs: Path, results: Path) -> None:
    """What is measured and what is missing, one line a variant."""
    kept = read_samples(results / case.name)
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
    parser.add_argument("--runs-dir", type=Path, default=PROJECT / "runs")
    parser.add_argument("--results-dir", type=Path, default=PROJECT / "results")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="stop and keep a checkpoint after this")
    parser.add_argument("--collect-only", action="store_true", help="run nothing, write the results anew")
    parser.add_argument("--list", action="store_true", help="say what is measured and what is missing")
    options = parser.parse_args()
    for name in ("table", "runs_dir", "results_dir"):
        setattr(options, name, getattr(options, name).resolve())
    return options


if __name__ == "__main__":
    sys.exit(main())
