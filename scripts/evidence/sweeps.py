#!/usr/bin/env python
"""The sweeps behind results/sweeps: two after training, one in training; the same command goes on where it stopped.

    python scripts/evidence/sweeps.py --halfcheetah RUN --pong RUN      all three
    python scripts/evidence/sweeps.py --halfcheetah RUN --budget-s 540  one after training, and the one in training
    python scripts/evidence/sweeps.py --skip-cartpole --pong RUN        one

RUN is a run directory with a trained policy. Studies stay in RUNS/NAME (study.log, for optuna-dashboard); tables,
figures and configurations are copied to RESULTS/NAME. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
KEPT = ("pareto.json", "pareto.md", "pareto.png", "importance.png", "sensitivity.json", "sensitivity.md")
AFTER = {
    "halfcheetah": ("--trials", "240", "--episodes", "16", "--max-kl", "1"),
    # greedy games of Pong repeat each other from most seeds
    "pong": ("--trials", "220", "--episodes", "8", "--sample", "--max-kl", "0.5"),
}
CONSTRAINT = "return>=0.95*fp32"
INTERRUPTED = 3


def main() -> int:
    """Run the requested sweeps; status 3 when the budget is used before they are complete."""
    options = parse()
    deadline = time.monotonic() + options.budget_s
    left = 0
    for name, command in commands(options).items():
        remaining_s = deadline - time.monotonic()
        left += remaining_s <= 0 or not sweep(name, command, options, remaining_s)
    if left:
        print(f"{left} sweeps are not complete: give the same command again")
    return INTERRUPTED if left else 0


def commands(options: argparse.Namespace) -> dict[str, list[str]]:
    """Options of ``accel sweep`` by name."""
    found: dict[str, list[str]] = {}
    for name, arguments in AFTER.items():
        run = getattr(options, name)
        if run is not None:
            found[name] = ["--run", str(run), *arguments, "--constraint", CONSTRAINT]
    if not options.skip_cartpole:
        found["cartpole"] = ["--config", str(Path(__file__).with_name("sweep-cartpole.toml"))]
    return found


def sweep(name: str, arguments: list[str], options: argparse.Namespace, remaining_s: float) -> bool:
    """Work on one sweep and keep its results; returns whether it is complete."""
    out = options.runs_dir / name
    command = [sys.executable, "-m", "accel", "sweep", *arguments, "--out", str(out)]
    print(shlex.join(command), flush=True)
    subprocess.run([*command, "--max-seconds", f"{remaining_s:.0f}"], cwd=PROJECT)
    keep(out, options.results_dir / name)
    try:
        found = json.loads((out / "pareto.json").read_text())
    except (OSError, ValueError):
        return False
    return bool(found["trials_done"] >= found["trials_wanted"])


def keep(out: Path, results: Path) -> None:
    """Copy tables, figures and configurations."""
    results.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        if (out / name).exists():
            shutil.copy2(out / name, results / name)
    shutil.rmtree(results / "best", ignore_errors=True)
    if (out / "best").is_dir():
        shutil.copytree(out / "best", results / "best")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--halfcheetah", type=Path, help="a trained HalfCheetah-v5 run")
    parser.add_argument("--pong", type=Path, help="a trained Pong run")
    parser.add_argument("--skip-cartpole", action="store_true", help="leave the sweep in training out")
    parser.add_argument("--runs-dir", type=Path, default=PROJECT / "runs" / "sweeps")
    parser.add_argument("--results-dir", type=Path, default=PROJECT / "results" / "sweeps")
    parser.add_argument("--budget-s", type=float, default=3600.0, help="begin no trial after this time")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
