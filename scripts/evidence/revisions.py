#!/usr/bin/env python
"""Trains presets with two revisions of this repository, in turns on one machine, and keeps each run's measurements.

    python scripts/evidence/revisions.py BEFORE AFTER --out results/revisions
    python scripts/evidence/revisions.py BEFORE AFTER --case cartpole --seeds 10

BEFORE and AFTER are revisions of git. Each is checked out beside the project and run with this environment's packages.
OUT/runs.json has every run's samples, command and commit; OUT/README.md the medians, and the ratio AFTER / BEFORE of
runs of one seed with its 95 % interval (Student's t of the logarithms). A pair that is there is not run again; if one
of its revisions changed, both sides are, as only runs made in turns are compared.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from accel.monitor.statistics import mean_interval  # noqa: E402
from accel.system.atomic import write_atomically  # noqa: E402
from accel.system.machine import describe_machine, read_machine  # noqa: E402

CASES: Mapping[str, tuple[int, Sequence[str]]] = {
    "cartpole": (10, ("--preset", "quickstart")),
    "lunarlander": (5, ("--preset", "lunarlander")),
    "halfcheetah": (5, ("--preset", "halfcheetah", "--total-env-steps", "600000")),
}
MEASURES = {
    "training_s": "seconds of training",
    "wall_s": "seconds from the command",
    "env_steps": "environment steps",
    "env_steps_per_s": "environment steps/s",
}
Run = dict[str, object]


def main() -> int:
    """Run what is missing, then render."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--case", action="append", choices=list(CASES), help="default: every case")
    parser.add_argument("--seeds", type=int, help="default: the case's own number")
    parser.add_argument("--out", type=Path, default=PROJECT / "results" / "revisions")
    options = parser.parse_args()
    samples = options.out / "runs.json"
    kept: dict[str, Run] = json.loads(samples.read_text())["runs"] if samples.exists() else {}
    commits = {side: _commit(getattr(options, side)) for side in ("before", "after")}
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        trees = {side: _checkout(commit, Path(scratch) / side) for side, commit in commits.items()}
        try:
            for case in options.case or CASES:
                seeds, arguments = CASES[case]
                for seed in range(options.seeds or seeds):
                    keys = {side: f"{case}-{side}-s{seed}" for side in commits}
                    if all(keys[side] in kept and kept[keys[side]]["commit"] == commits[side] for side in commits):
                        continue
                    for key in keys.values():
                        kept.pop(key, None)
                    # The side that goes first alternates by seed.
                    for side in ("before", "after") if seed % 2 else ("after", "before"):
                        kept[keys[side]] = _train(case, side, seed, arguments, trees[side], Path(scratch)) | {
                            "commit": commits[side]
                        }
                        document = {"machine": describe_machine(read_machine()), "runs": kept}
                        write_atomically(samples, json.dumps(document, indent=1).encode())
                        write_atomically(options.out / "README.md", render(kept).encode())
        finally:
            for tree in trees.values():
                subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=PROJECT, check=False)
    print((options.out / "README.md").read_text())
    return 0


def render(runs: Mapping[str, Run]) -> str:
    """The page: a table for each case."""
    lines = [
        "# Two revisions in turns", "",
        "`python scripts/evidence/revisions.py BEFORE AFTER`; samples, commands and commits are in `runs.json`.",
        "Ratios (differences of returns) are of runs of one seed, with Student's t intervals (of logarithms).", "",
    ]  # fmt: skip
    for case in CASES:
        pairs = []
        for seed in range(100):
            both = [runs.get(f"{case}-{side}-s{seed}") for side in ("before", "after")]
            if both[0] is not None and both[1] is not None:
                pairs.append((both[0], both[1]))
        if not pairs:
            continue
        reached = [sum("mean return" in str(pair[side]["reason"]) for pair in pairs) for side in (0, 1)]
        lines += [
            f"## {case}: {len(pairs)} seeds, threshold reached {reached[0]} times before, {reached[1]} after", "",
            "| measure | before | after | after / before |", "|---|---|---|---|",
        ]  # fmt: skip
        for name, title in MEASURES.items():
            before, after = ([float(str(pair[side][name])) for pair in pairs] for side in (0, 1))
            lines.append(f"| {title} | {_spread(before)} | {_spread(after)} | {_ratio(before, after)} |")
        before, after = ([float(str(pair[side]["return_mean"])) for pair in pairs] for side in (0, 1))
        lines += [f"| return at the end | {_spread(before)} | {_spread(after)} | {_difference(before, after)} |", ""]
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def _ratio(before: Sequence[float], after: Sequence[float]) -> str:
    logs = [math.log(b / a) for a, b in zip(before, after, strict=True)]
    middle = math.exp(sum(logs) / len(logs))
    if len(logs) < 2:
        return f"{middle:.2f}"
    interval = mean_interval(logs)
    return f"{middle:.2f} [{math.exp(interval.low):.2f}, {math.exp(interval.high):.2f}]"


def _difference(before: Sequence[float], after: Sequence[float]) -> str:
    differences = [b - a for a, b in zip(before, after, strict=True)]
    if len(differences) < 2:
        return f"{differences[0]:+.4g}"
    interval = mean_interval(differences)
    return f"{sum(differences) / len(differences):+.4g} [{interval.low:.4g}, {interval.high:.4g}]"


def _train(case: str, side: str, seed: int, arguments: Sequence[str], tree: Path, scratch: Path) -> Run:
    name = f"{case}-{side}-s{seed}"
    command = [
        "accel",
        "train",
        *arguments,
        "--seed",
        str(seed),
        "--results-dir",
        str(scratch / "runs"),
        "--name",
        name,
    ]
    print(f"{side}: {' '.join(command[:-4])}", flush=True)
    environment = os.environ | {"PYTHONPATH": str(tree)}
    subprocess.run(
        [sys.executable, "-m", *command], cwd=scratch, env=environment, check=True, stdout=subprocess.DEVNULL
    )
    summary: Run = json.loads((scratch / "runs" / name / "summary.json").read_text())
    kept = ("reason", "return_mean", "updates", "lag", "learner_s", "actor_s", *MEASURES)
    return {name: summary[name] for name in kept} | {"command": " ".join(command[:-4])}


def _commit(revision: str) -> str:
    found = subprocess.run(["git", "rev-parse", revision], cwd=PROJECT, check=True, capture_output=True, text=True)
    return found.stdout.strip()


def _checkout(commit: str, path: Path) -> Path:
    subprocess.run(["git", "worktree", "add", "--detach", "-q", str(path), commit], cwd=PROJECT, check=True)
    return path


if __name__ == "__main__":
    sys.exit(main())
