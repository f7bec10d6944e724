#!/usr/bin/env python
"""What quantising the layer that reads observations costs: mismatch, return, bytes and time of trained policies.

    python scripts/evidence/input_layers.py        (a quarter of an hour)

Each policy is trained in full precision, in one process, and compressed with that layer in single precision, which is
the default where it is small, and in 8 bits (``x8``). Mismatch is measured on observations of other episodes than
ranges were, the return over 48 greedy episodes, the same ones for all; times are of one call for 8 observations, in
turns. OUT/rows.json has every row; what is there is not made again.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT), str(Path(__file__).parent)]

from trained_policies import study  # noqa: E402

from accel.bench.policy import bench_policy  # noqa: E402
from accel.bench.timing import torch_threads  # noqa: E402
from accel.monitor.statistics import mean_interval  # noqa: E402
from accel.system.atomic import write_atomically  # noqa: E402

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
Row = dict[str, Any]


def main() -> None:
    """Make the rows that are missing, one seed of all after another, and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=PROJECT / "results" / "input-layers")
    parser.add_argument("--runs-dir", type=Path, default=PROJECT / "runs" / "input-layers")
    options = parser.parse_args()
    samples = options.out / "rows.json"
    rows: list[Row] = json.loads(samples.read_text()) if samples.exists() else []
    options.out.mkdir(parents=True, exist_ok=True)
    for seed in range(options.seeds):
        for number, case in enumerate(CASES):
            if not any((row["case"], row["training_seed"]) == (case, seed) for row in rows):
                rows += measure(case, seed, options.runs_dir / f"{number}-s{seed}")
                write_atomically(samples, (json.dumps(rows, indent=1) + "\n").encode())
                write_atomically(options.out / "README.md", ("\n".join(page(rows)) + "\n").encode())
    print((options.out / "README.md").read_text())


def measure(case: str, seed: int, run: Path) -> Iterator[Row]:
    """Train once, and a row of each scheme."""
    words = ["train", *CASES[case], *ALONE, "--seed", str(seed)]
    if not (run / "summary.json").exists():
        command = [sys.executable, "-m", "accel", *words, "--results-dir", str(run.parent), "--name", run.name]
        subprocess.run(command, cwd=PROJECT, check=True, capture_output=True)
    timed = bench_policy(run=run, schemes=SCHEMES, batches=(8,), runtimes=("onnxruntime",), seconds=10.0)
    times = {str(row["scheme"]): row["us"] for row in timed}
    for scheme in SCHEMES:
        with torch_threads():
            row = study(run, scheme)
        about = {"case": case, "training_seed": seed, "command": shlex.join(["accel", *words])}
        print(case, seed, scheme, row.get("kl"), row.get("return"), flush=True)
        yield {**about, **row, "us_per_call": times.get(scheme)}


def page(rows: Sequence[Row]) -> Iterator[str]:
    """The table."""
    yield "# The layer that reads observations, in single precision and in 8 bits"
    yield ""
    yield "`python scripts/evidence/input_layers.py`; every row is in `rows.json`. Policies are trained in full"
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
