#!/usr/bin/env python
"""Which correction pays with which compression and how old a policy: every combination, in one process each.

    python scripts/ablation/grid.py                   (an hour of two cores)
    python scripts/ablation/grid.py --seeds 1 --lag 16

A run is `accel train` on CartPole-v1 with IMPALA's defaults but for what COMMON says, 200,000 steps. Learner and actor
take turns (`--actors 0`), so results do not depend on the machine's speed, and a lag is forced by publications: with
one every L + 1 updates, experience is 0 to L updates old. A run's score is the mean return of its last 100 episodes.
`rejected` is no option of `accel train`: scripts/ablation/correction.py has it. OUT/runs.json has every score, command,
commit and machine. A run that is there is not made again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from accel.monitor.statistics import difference_of_means  # noqa: E402
from accel.system.atomic import write_atomically  # noqa: E402
from accel.system.machine import describe_machine, read_machine  # noqa: E402

SCHEMES = ("fp32", "int8", "prune(0.5)+int8", "lowrank(0.25)")
CORRECTIONS = ("none", "vtrace", "retrace", "rejected")
LAGS = (0, 4, 16)
SEEDS = 5
COMMON = (
    "--env CartPole-v1 --algorithm impala --actors 0 --network mlp:64x2 --total-env-steps 200000 --stop-window 100 "
    "--learner-threads 1"
)
Run = dict[str, Any]


def main() -> int:
    """Make the runs that are missing, one seed of all after another, and the page after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--lag", action="append", type=int, choices=LAGS, help="default: all")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--out", type=Path, default=PROJECT / "results" / "correction-grid")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    samples = options.out / "runs.json"
    runs: dict[str, Run] = json.loads(samples.read_text()) if samples.exists() else {}
    wanted = itertools.product(range(options.seeds), options.lag or LAGS, SCHEMES, CORRECTIONS)
    missing = [cell for cell in wanted if key_of(*cell) not in runs]
    with ThreadPoolExecutor(options.jobs) as pool:
        for cell, run in zip(missing, pool.map(lambda cell: measure(*cell), missing), strict=True):
            runs[key_of(*cell)] = run
            write_atomically(samples, json.dumps(dict(sorted(runs.items())), indent=1).encode())
            write_atomically(options.out / "README.md", render(runs).encode())
    print((options.out / "README.md").read_text())
    return 0


def key_of(seed: int, lag: int, scheme: str, correction: str) -> str:
    """A run's name in the file."""
    return f"lag {lag}, {scheme}, {correction}, seed {seed}"


def measure(seed: int, lag: int, scheme: str, correction: str) -> Run:
    """Train once."""
    program = ["-m", "accel"] if correction != "rejected" else ["scripts/ablation/correction.py", "rejected"]
    words = [*program, "train", *COMMON.split(), "--compressor", scheme, "--publish-interval-updates", str(lag + 1)]
    words += ["--corrector", "vtrace" if correction == "rejected" else correction, "--seed", str(seed)]
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, *words, "--results-dir", scratch, "--name", "run"]
        ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
        summary = Path(scratch, "run", "summary.json")
        found = json.loads(summary.read_text()) if ended.returncode == 0 else {}
    return {
        "command": shlex.join(["python", *words]),
        "machine": describe_machine(read_machine()),
        "return": found.get("return_mean"),
        "env_steps": found.get("env_steps"),
        "error": None if found else ended.stderr[-500:],
    }


def render(runs: Mapping[str, Run]) -> str:
    """The page: a table for each lag, and where a correction differs from none."""
    lines = [
        "# Corrections, compressions and the age of the policy that acts", "",
        "`python scripts/ablation/grid.py`; every score, command, commit and machine is in `runs.json`.",
        "CartPole-v1, IMPALA with its defaults, 200,000 steps, one process. A cell is the mean over seeds of the mean",
        "return of the last 100 episodes, with the least and the greatest; bold where the 95 % interval of its",
        "difference from `none` in the same row leaves zero out (Welch). A run that ended with an error counts as 0.",
        "", "| lag, updates | scheme | " + " | ".join(CORRECTIONS) + " |", "|---:|---|" + "---:|" * len(CORRECTIONS),
    ]  # fmt: skip
    for lag, scheme in itertools.product(LAGS, SCHEMES):
        found = [
            [run["return"] or 0.0 for key, run in runs.items() if key.startswith(f"lag {lag}, {scheme}, {correction},")]
            for correction in CORRECTIONS
        ]
        if all(found):
            cells = [_cell(values, None if at == 0 else found[0]) for at, values in enumerate(found)]
            lines.append(f"| {lag} | `{scheme}` | {' | '.join(cells)} |")
    lines += ["", f"All: `accel train {COMMON}`.", ""]
    seeds = [len({key.rpartition(" ")[2] for key in runs if key.startswith(f"lag {lag},")}) for lag in LAGS]
    counts = ", ".join(f"{count} at lag {lag}" for lag, count in zip(LAGS, seeds, strict=True))
    failed = sum(run["return"] is None for run in runs.values())
    lines.append(f"- Seeds: {counts}. {len(runs)} runs, {failed} of which ended with an error.")
    machines = {f"{run['machine']['commit']}, {run['machine']['cpu']}" for run in runs.values()}
    return "\n".join([*lines, *(f"- Commit and machine: {machine}." for machine in sorted(machines)), ""])


def _cell(values: list[float], without: list[float] | None) -> str:
    text = f"{mean(values):.0f} ({min(values):.0f} to {max(values):.0f})"
    if without is None or min(len(values), len(without)) < 2:
        return text
    interval = difference_of_means(values, without)
    return f"**{text}**" if interval.low > 0 or interval.high < 0 else text


if __name__ == "__main__":
    sys.exit(main())
