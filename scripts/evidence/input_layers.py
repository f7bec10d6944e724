#!/usr/bin/env python
"""What quantising the layer that reads observations costs: mismatch, return, bytes and time of trained policies.

    python scripts/evidence/input_layers.py        (a quarter of an hour)

Each policy is trained in full precision, in one process, and compressed with that layer in single precision, which is
the default where it is small, and in 8 bits (``x8``). Mismatch is measured on observations of other episodes than
ranges were, the return over 48 greedy episodes, the same ones for all; times are of one call for 8 observations, in
turns. OUT/rows.json.gz has every row; what is there is not made again.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from accel.bench.policies import MeasuredPolicy, Policies  # noqa: E402
from accel.bench.policy import bench_policy  # noqa: E402
from accel.bench.rows import provenance  # noqa: E402
from accel.monitor.statistics import mean_interval  # noqa: E402
from accel.runs.evaluation import compress_run  # noqa: E402
from accel.runs.loading import load_run  # noqa: E402
from accel.runs.playing import collect_inputs, play  # noqa: E402
from accel.system.atomic import write_atomically  # noqa: E402
from accel.system.timing import torch_threads  # noqa: E402
from scripts.evidence.samples import RUNS, arguments, read_samples, write_samples  # noqa: E402

PAIRS = {"int8": "int8(x8)", "int8(w4)": "int8(w4,x8)", "int8(w3)": "int8(w3,x8)"}
SCHEMES = ("fp32", *(scheme for pair in PAIRS.items() for scheme in pair))
ALONE = ("--actors", "0", "--learner-threads", "1", "--compressor", "fp32")
CASES: Mapping[str, tuple[str, ...]] = {
    "CartPole-v1, 64×2": ("--preset", "quickstart", "--total-env-steps", "500000", "--stop-at-return", "none"),
    "LunarLander-v3, 128×2": ("--preset", "lunarlander", "--total-env-steps", "600000", "--stop-at-return", "none"),
    "Pendulum-v1, 64×2": ("--preset", "pendulum",),
    "HalfCheetah-v5, 256×2": ("--preset", "halfcheetah", "--total-env-steps", "500000", "--stop-at-return", "none"),
    "Hopper-v5, default": ("--env", "Hopper-v5", "--total-env-steps", "100000"),
}  # fmt: skip
EPISODES, ROWS, ENVS = 48, 4096, 10
CALIBRATION_SEED, SEED = 0, 1
Row = dict[str, Any]


def main() -> None:
    """Make the rows that are missing, one seed of all after another, and the page."""
    parser = arguments(__doc__, "input-layers")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs-dir", type=Path, default=RUNS / "input-layers" / "runs")
    options = parser.parse_args()
    samples = options.out / "rows.json.gz"
    rows: list[Row] = read_samples(samples).get("rows", [])
    options.out.mkdir(parents=True, exist_ok=True)
    for seed in range(options.seeds):
        for number, case in enumerate(CASES):
            if not any((row["case"], row["training_seed"]) == (case, seed) for row in rows):
                rows += measure(case, seed, options.runs_dir / f"{number}-s{seed}")
                write_samples(samples, {"rows": rows})
                write_atomically(options.out / "README.md", ("\n".join(page(rows)) + "\n").encode())
    print((options.out / "README.md").read_text())


def measure(case: str, seed: int, run: Path) -> Iterator[Row]:
    """Train once, and a row of each scheme."""
    words = ["train", *CASES[case], *ALONE, "--seed", str(seed)]
    if not (run / "summary.json").exists():
        command = [sys.executable, "-m", "accel", *words, "--results-dir", str(run.parent), "--name", run.name]
        subprocess.run(command, cwd=PROJECT, check=True, capture_output=True)
    timed = bench_policy(Policies(run=run), schemes=SCHEMES, batches=(8,), runtimes=("onnxruntime",), seconds=10.0)
    times = {str(row["scheme"]): row["us"] for row in timed}
    for scheme in SCHEMES:
        with torch_threads():
            row = study(run, scheme)
        about = {"case": case, "training_seed": seed, "command": shlex.join(["accel", *words])}
        print(case, seed, scheme, row.get("kl"), row.get("return"), flush=True)
        yield {**about, **row, "us_per_call": times.get(scheme)}


def study(path: Path, scheme: str) -> Row:
    """A scheme's mismatch on the inputs that a trained policy meets, and its greedy returns on fixed seeds."""
    run = load_run(path)
    artifact = compress_run(run, scheme, CALIBRATION_SEED)
    inputs = collect_inputs(run, ROWS, SEED)
    played = play(artifact, run, episodes=EPISODES, seed=SEED, envs=ENVS)
    row: Row = {"scheme": scheme, "bytes": len(artifact.to_bytes()), **provenance()}
    row |= MeasuredPolicy(run, "trained", "environment", inputs, inputs).mismatch_of(artifact)
    return row | {"return": mean_interval(played.returns).estimate, "returns": played.returns.tolist()}


def page(rows: Sequence[Row]) -> Iterator[str]:
    """The table."""
    yield "# The layer that reads observations, in single precision and in 8 bits"
    yield ""
    yield "`python scripts/evidence/input_layers.py`; every row is in `rows.json.gz`. Policies are trained in full"
    yield "precision and compressed then. KL is the mean divergence from the policy in full precision, nats, on"
    yield "observations that it meets itself; ranges are over seeds. Returns are of 48 greedy episodes; the difference"
    yield "from fp32 is paired by seed, with Student's interval where there are three seeds."
    yield ""
    yield "| policy | scheme | KL [range] | greedy action as fp32's | return − fp32 | bytes | time ÷ `x8` |"
    yield "|---|---|---|---:|---|---:|---:|"
    for case in CASES:
        own = [row for row in rows if row["case"] == case and "kl" in row]
        for scheme in SCHEMES[1:]:
            if found := [row for row in own if row["scheme"] == scheme]:
                yield f"| {case} | `{scheme}` | {' | '.join(_cells(found, own))} |"
    yield ""
    machines = sorted({f"{row['cpu']}, onnxruntime {row['onnxruntime']}, commit {row['commit']}" for row in rows})
    yield f"{'; '.join(machines)}."


def _cells(rows: Sequence[Row], every: Sequence[Row]) -> Iterator[str]:
    def of(scheme: str, key: str) -> dict[int, float]:
        return {row["training_seed"]: row[key] for row in every if row["scheme"] == scheme}

    scheme = rows[0]["scheme"]
    kl = [row["kl"] for row in rows]
    yield f"{median(kl):.2g} [{min(kl):.2g}, {max(kl):.2g}]"
    yield f"{100 * median(row['greedy_agreement'] for row in rows):.1f} %"
    full, ours = of("fp32", "return"), of(scheme, "return")
    differences = [value - full[seed] for seed, value in ours.items()]
    interval = mean_interval(differences) if len(differences) > 2 and any(differences) else None
    shown = "" if interval is None else f" [{interval.low:+.3g}, {interval.high:+.3g}]"
    yield f"{sum(differences) / len(differences):+.3g}{shown} of {sum(full.values()) / len(full):.4g}"
    yield f"{rows[0]['bytes']:,}"
    codes, own = of(PAIRS.get(scheme, scheme), "us_per_call"), of(scheme, "us_per_call")
    yield f"{median(own[seed] / codes[seed] for seed in own):.2f}"


if __name__ == "__main__":
    main()
