#!/usr/bin/env python
"""An actor's time per environment step: torch eager, onnxruntime, compiled kernels, every scheme.

    python scripts/evidence/actor_time.py                      measure what is missing, about ten minutes
    python scripts/evidence/actor_time.py --budget-s 540       as much as fits; the same command goes on
    python scripts/evidence/actor_time.py --case halfcheetah-2048x3

Each case is one ``accel bench actor``; OUT/CASE.json.gz keeps its rows, with command, commit, machine and versions. A
case that has rows is not measured again. Status 3: the budget is used and cases remain.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.evidence.samples import PROJECT, arguments, read_samples, write_samples

SCHEMES = "fp32,fp16,int8,int8(per_channel),int4,prune(0.5),prune(0.5)+int8,lowrank(0.25)+int8,distill(64x2)+int8"
# case: environment, network, schemes, measuring seconds
CASES = {
    "cartpole-64x2": ("CartPole-v1", "mlp:64x2", SCHEMES, 20),
    "cartpole-64x2-lstm64": ("CartPole-v1", "mlp:64x2+lstm:64", "fp32,int8", 10),
    "lunarlander-256x2": ("LunarLander-v3", "mlp:256x2", SCHEMES, 20),
    "halfcheetah-256x2": ("HalfCheetah-v5", "mlp:256x2", SCHEMES, 20),
    "halfcheetah-512x3": ("HalfCheetah-v5", "mlp:512x3", SCHEMES, 25),
    "halfcheetah-2048x3": ("HalfCheetah-v5", "mlp:2048x3", SCHEMES, 35),
    "pong-nature-cnn": ("ALE/Pong-v5", "nature-cnn", SCHEMES, 35),
    "pong-impala-resnet": ("ALE/Pong-v5", "impala-resnet", SCHEMES, 60),
}
SET_UP_S = 45.0
"""Seconds that a benchmark takes beyond measuring; with less time left none is started."""


def main() -> int:
    """Measure the cases that are missing and write the table."""
    parser = arguments(__doc__, "actor-time")
    parser.add_argument("--case", action="append", choices=list(CASES), help="default: all")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="start no case after this time")
    options = parser.parse_args()
    deadline, left = time.monotonic() + options.budget_s, []
    for case in options.case or CASES:
        file = options.out / f"{case}.json.gz"
        if file.exists():
            continue
        if deadline - time.monotonic() < CASES[case][3] + SET_UP_S:
            left.append(case)
            continue
        print(f"== {case}", flush=True)
        write_samples(file, {"rows": measure(case)})
        (options.out / "README.md").write_text(page(options.out))
    if left:
        print(f"{len(left)} cases are left: give the same command again")
    return 3 if left else 0


def measure(case: str) -> list[dict[str, Any]]:
    """The rows of one benchmark, on one thread."""
    env, network, schemes, seconds = CASES[case]
    words = ["actor", f"--env={env}", f"--network={network}", "--envs-per-actor=1,8", f"--schemes={schemes}"]
    with tempfile.TemporaryDirectory() as scratch:
        rows = Path(scratch, "rows.json")
        command = [sys.executable, "-m", "accel", "bench", *words, f"--seconds={seconds}", f"--json={rows}"]
        one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        subprocess.run(command, cwd=PROJECT, check=True, env=os.environ | one_thread)
        return list(json.loads(rows.read_text()))


def page(out: Path) -> str:
    """Every row: microseconds per environment step, the policy's share, times as fast as torch eager."""
    lines = [
        "# Actor time", "", "```\npython scripts/evidence/actor_time.py\n```", "",
        "µs per environment step of one actor on one thread; `alone`: the environment under random actions.", "",
        "| case | envs | alone | torch | ORT fp32 | fp32 | int8 | prune(0.5)+int8 | torch ÷ int8 |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    for case in CASES:
        rows = read_samples(out / f"{case}.json.gz").get("rows", [])
        for envs in sorted({row["envs"] for row in rows}):
            lines.append(_line(case, envs, [row for row in rows if row["envs"] == envs]))
    return "\n".join([*lines, ""])


def _line(case: str, envs: int, rows: Iterable[dict[str, Any]]) -> str:
    times = {(row["runtime"], row["scheme"]): row for row in rows}
    torch, ort = times["torch", "fp32"], times["onnxruntime", "fp32"]
    found = {scheme: times.get(("native", scheme), times.get(("onnxruntime", scheme))) for _, scheme in times}
    cells = [f"{torch['env_only_us']:.3g}", *(f"{row['us_per_env_step']:.4g}" for row in (torch, ort))]
    for scheme in ("fp32", "int8", "prune(0.5)+int8"):
        row = found.get(scheme)
        cells.append("–" if row is None else f"{row['us_per_env_step']:.4g}")
    int8 = found.get("int8")
    cells.append("–" if int8 is None else f"{torch['us_per_env_step'] / int8['us_per_env_step']:.2f}×")
    return f"| {case} | {envs} | {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
