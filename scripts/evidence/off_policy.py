#!/usr/bin/env python
"""What replay-based algorithms reach with actors in full precision and in int8.

    python scripts/evidence/off_policy.py                       (hours of two cores)
    python scripts/evidence/off_policy.py --case lunarlander --seeds 1

Each run is `accel train --algorithm NAME --compressor SCHEME --actors 0` with the algorithm's defaults but for what the
case names. Its score is the mean return of 30 greedy episodes of the last artifact that the actors got. OUT has
every episode's return, the commands, commits and machines. A run that is there is not made again: the command can
be stopped and started, and several of them can add to one file. MinAtar's case needs pip install minatar.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from accel.runs.evaluation import evaluate  # noqa: E402
from accel.system.atomic import write_atomically  # noqa: E402
from accel.system.machine import describe_machine, read_machine  # noqa: E402
from scripts.evidence.samples import arguments, read_samples, write_samples  # noqa: E402
from scripts.evidence.worlds import play_at_random  # noqa: E402

EPISODES = 30
FIRST_SEED = 10_000  # of the episodes that count
SEEDS = 3
SCHEMES = ("fp32", "int8")
WORLDS = "scripts.evidence.worlds"
EARLIER = "lunarlander-apex-rate1e-3-fp32-s0"
"""A run from before the default learning rate of Ape-X was lowered."""


@dataclass(frozen=True)
class Case:
    """The environment, the words on the command line that go with it, and the algorithms that play it."""

    env: str
    steps: int
    algorithms: tuple[str, ...]
    words: str = ""
    seeds: int = SEEDS


CASES: Mapping[str, Case] = {
    "lunarlander": Case("LunarLander-v3", 100_000, ("dqn", "apex")),
    "minatar": Case(
        f"{WORLDS}:MinAtar/Breakout-v1", 150_000, ("dqn", "apex"),
        f"--env-arg max_episode_steps=1000 --network {WORLDS}:minatar_torso --wrapper accel.envs.images:ImageBytes",
    ),
    "positions": Case(f"{WORLDS}:PositionsOfCartPole-v0", 60_000, ("r2d2", "apex")),
    "halfcheetah": Case("HalfCheetah-v5", 50_000, ("sac", "d4pg"), "--batch-size 128 --samples-per-insert 64"),
    "hopper": Case("Hopper-v5", 50_000, ("sac", "d4pg"), "--batch-size 128 --samples-per-insert 64"),
    "halfcheetah-long": Case("HalfCheetah-v5", 1_000_000, ("sac",), "--batch-size 128 --samples-per-insert 32", 1),
}  # fmt: skip
Run = dict[str, Any]


def main() -> int:
    """Make the runs that are missing, one seed of all after another, and the page after each."""
    parser = arguments(__doc__, "off-policy")
    parser.add_argument("--case", action="append", choices=list(CASES), help="default: all")
    parser.add_argument("--algorithm", action="append", help="default: all of the case")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for case in options.case or CASES:
        if (key := f"{case}-random") not in _read(options.out):
            name = CASES[case].env.rpartition(":")[2]
            _add(options.out, key, {"returns": play_at_random(name, EPISODES, FIRST_SEED, max_episode_steps=1000)})
        for seed in range(min(options.seeds, CASES[case].seeds)):
            for algorithm in CASES[case].algorithms:
                for scheme in SCHEMES if options.algorithm is None or algorithm in options.algorithm else ():
                    key = f"{case}-{algorithm}-{scheme}-s{seed}"
                    if key not in _read(options.out):
                        print(key, flush=True)
                        _add(options.out, key, measure(CASES[case], algorithm, scheme, seed))
    print((options.out / "README.md").read_text())
    return 0


def _read(out: Path) -> dict[str, Run]:
    return read_samples(out / "runs.json.gz")


def _add(out: Path, key: str, run: Run) -> None:
    """Add one run and write the page anew, while no other process does."""
    with Path(tempfile.gettempdir(), "off-policy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runs = dict(sorted((_read(out) | {key: run}).items()))
        write_samples(out / "runs.json.gz", runs)
        write_atomically(out / "README.md", render(runs).encode())


def measure(case: Case, algorithm: str, scheme: str, seed: int) -> Run:
    """Train once and play what the actors got last."""
    words = ["train", "--algorithm", algorithm, "--env", case.env, *shlex.split(case.words), "--compressor", scheme]
    words += ["--total-env-steps", str(case.steps), "--seed", str(seed), "--actors", "0", "--learner-threads", "1"]
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "accel", *words, "--results-dir", scratch, "--name", "run"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])}
        subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.DEVNULL, env=environment)
        run = Path(scratch, "run")
        summary = json.loads((run / "summary.json").read_text())
        artifact = run / "policy" / "final.accel"
        played = evaluate(run, artifact=artifact, episodes=EPISODES, seed=FIRST_SEED)
    return {
        "command": shlex.join(["accel", *words]),
        "machine": describe_machine(read_machine()),
        "played": played.scheme,
        "returns": played.episodes.returns.tolist(),
        "training_return": summary["return_mean"],
        "training_s": summary["training_s"],
        "env_steps": summary["env_steps"],
    }


def render(runs: Mapping[str, Run]) -> str:
    """The page: a row for each algorithm of a case."""
    lines = [
        "# Replay-based algorithms with compressed actors", "",
        "`python scripts/evidence/off_policy.py`; every episode's return, command, commit and machine is kept.",
        f"Each number is one seed: the mean return of {EPISODES} greedy episodes of the last policy that",
        "the actors got, compressed as the column says. One process trains and acts (`--actors 0`).", "",
        "| case | algorithm | steps | random | fp32, by seed | int8, by seed |",
        "|---|---|---:|---:|---|---|",
    ]  # fmt: skip
    for name, case in CASES.items():
        for algorithm in case.algorithms:
            cells = [_scores(runs, f"{name}-{algorithm}-{scheme}-s") for scheme in SCHEMES]
            random = f"{mean(runs[f'{name}-random']['returns']):.4g}" if f"{name}-random" in runs else ""
            lines.append(f"| {name} | `{algorithm}` | {case.steps:,} | {random} | {' | '.join(cells)} |")
    lines += ["", "Algorithms have their default options, and what a case adds:", ""]
    lines += [f"- {name}: `{f'--env {case.env} {case.words}'.strip()}`" for name, case in CASES.items()]
    if (run := runs.get(EARLIER)) is not None:
        lines.append(
            f"- With `apex`'s earlier learning rate, 1e-3, lunarlander, fp32, seed 0: {mean(run['returns']):.4g}."
        )
    machines = {f"{run['machine']['commit']}, {run['machine']['cpu']}" for run in runs.values() if "machine" in run}
    return "\n".join([*lines, *(f"- Commit and machine: {machine}." for machine in sorted(machines)), ""])


def _scores(runs: Mapping[str, Run], start: str) -> str:
    """The mean return of each seed, marked where the last policy was not of the scheme asked for."""
    found = [(key, run) for key, run in runs.items() if key.startswith(start)]
    scheme = start.rsplit("-", 2)[1]
    return ", ".join(
        f"{mean(run['returns']):.4g}" + ("" if run["played"] == scheme else f" ({run['played']})") for _, run in found
    )


if __name__ == "__main__":
    sys.exit(main())
