#!/usr/bin/env python
"""ActorQ's table with our own actors: what a step takes, and what pulling and loading policies add to it.

    python scripts/evidence/actorq.py        (fifteen minutes on two idle cores)

ActorQ (Lam et al. 2021, part of arXiv:1910.01055) gives the time of an actor's step and of its pulls for policies of
2048×3, with a new policy every 30 and every 300 steps, uncompressed and int8. Here a synchronous schedule
(``--algorithm a2c``) gives an actor a new policy after each unroll of so many steps; its clocks are those of the
summary. Waiting for the learner is left out. Variants in turns; OUT/runs.json has every run, and a run that is there is
not made again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from accel.bench.rows import provenance  # noqa: E402
from accel.system.atomic import write_atomically  # noqa: E402

PERIODS = {30: 3_000, 300: 9_000}  # steps a policy: steps of a run
REPETITIONS = 3
ONNXRUNTIME = ("--actor-runtime", "onnxruntime")
VARIANTS = {
    "torch eager": ["--compressor", "fp32", "--actor-runtime", "torch"],
    "onnxruntime fp32": ["--compressor", "fp32", *ONNXRUNTIME],
    "int8": ["--compressor", "int8", *ONNXRUNTIME],
    "prune(0.5)+int8": ["--compressor", "prune(0.5)+int8", *ONNXRUNTIME],
}
BASE = "torch eager"
COMMON = (
    "--algorithm", "a2c", "--env", "HalfCheetah-v5", "--network", "mlp:2048x3", "--activation", "relu",
    "--separate-value-torso", "False", "--actors", "1", "--envs-per-actor", "1", "--learning-rate", "1e-5",
)  # fmt: skip
STEP, PULLS = ("env", "policy", "overhead"), ("pull", "deserialise", "load")
Run = dict[str, object]


def main() -> int:
    """Make the runs that are missing, then the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PROJECT / "results" / "actorq")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    samples = options.out / "runs.json"
    for repetition in range(options.repetitions):
        for period, steps in PERIODS.items():
            for variant in VARIANTS:
                runs = json.loads(samples.read_text())["runs"] if samples.exists() else {}
                key = f"{variant}, {period}, {repetition}"
                if key in runs:
                    continue
                print(key, flush=True)
                runs[key] = measure(variant, period, steps, repetition)
                document = {"runs": runs, **provenance()}
                write_atomically(samples, json.dumps(document, indent=1).encode())
                write_atomically(options.out / "README.md", render(runs).encode())
    print((options.out / "README.md").read_text())
    return 0


def measure(variant: str, period: int, steps: int, seed: int) -> Run:
    """One run: microseconds of each of the actor's phases, for an environment step."""
    words = [*COMMON, *VARIANTS[variant], "--unroll-length", str(period), "--total-env-steps", str(steps)]
    words += ["--seed", str(seed)]
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "accel", "train", *words, "--results-dir", directory, "--name", "run"]
        subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
        summary = json.loads((Path(directory) / "run" / "summary.json").read_text())
    taken = {phase: 1e6 * seconds / summary["env_steps"] for phase, seconds in summary["actor_s"].items()}
    return {
        "us": taken,
        "env_steps": summary["env_steps"],
        "policies": summary["updates"],
        "command": "accel train " + " ".join(words),
    }


def render(runs: Mapping[str, Run]) -> str:
    """The page: one row a variant and period."""
    lines = [
        "# An actor's step and pulls, as ActorQ's table has them", "",
        "`python scripts/evidence/actorq.py`; every run, command, commit and machine is in `runs.json`.",
        "HalfCheetah-v5, one environment an actor, a 2048×3 policy with ReLU; a new policy after so many steps.",
        "Microseconds for an environment step, medians over the runs. The environment's time is in the step; pull is",
        "what receiving takes the actor, as a policy arrives beside its steps. ActorQ published 1.6 times as fast with",
        "a policy every 30 steps, and 2.0 with one every 300, int8 against its own fp32 actors, on other machines and",
        "environments",
        "([arXiv:1910.01055](https://arxiv.org/abs/1910.01055)). Until the first units are chosen fp32 stands in for a",
        "pruned policy, and its time counts: with 3,000 steps that is a good part.", "",
        "| steps a policy | actor | runs | step | pull | deserialise | load | total | × torch eager | × ORT fp32 |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    for period in PERIODS:
        totals = {variant: [total(us) for us in _found(runs, variant, period)] for variant in VARIANTS}
        for variant in VARIANTS:
            found = _found(runs, variant, period)
            if not found:
                continue
            step = median(sum(us[phase] for phase in STEP) for us in found)
            pull, deserialise, load = (median(us[phase] for us in found) for phase in PULLS)
            ratios = [
                f"{median(totals[base]) / median(totals[variant]):.2f}" if totals[base] else ""
                for base in (BASE, "onnxruntime fp32")
            ]
            lines.append(
                f"| {period} | {variant} | {len(found)} | {step:,.0f} | {pull:,.2f} | {deserialise:,.0f} | "
                f"{load:,.0f} | {median(totals[variant]):,.0f} | {' | '.join(ratios)} |"
            )
    return "\n".join([*lines, ""])


def total(us: Mapping[str, float]) -> float:
    """Step and pulls."""
    return sum(us[phase] for phase in (*STEP, *PULLS))


def _found(runs: Mapping[str, Run], variant: str, period: int) -> Sequence[Mapping[str, float]]:
    """Phases of each run of a variant."""
    wanted = f"{variant}, {period}, "
    return [run["us"] for key, run in runs.items() if key.startswith(wanted)]  # type: ignore[misc]


if __name__ == "__main__":
    sys.exit(main())
