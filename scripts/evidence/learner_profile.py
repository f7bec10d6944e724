#!/usr/bin/env python
"""Where the learner's update of each preset spends its time on a CPU.

    python scripts/evidence/learner_profile.py        (two minutes; MuJoCo, Box2D, ALE and minigrid)

Updates on random experience as ``accel bench learner`` makes them, one thread, single precision, each operator's own
time as torch's profiler has it. Profiling itself slows short operators: shares are what to read. OUT/rows.json has the
time of every operator.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from accel.bench.learner import LearnerCell
from accel.bench.rows import provenance
from accel.bench.subject import environment_spec
from accel.config import TrainConfig
from accel.config.files import load_preset

PRESETS = (
    *("quickstart", "acrobot", "lunarlander", "pendulum", "bipedalwalker", "hopper", "walker2d", "halfcheetah"),
    *("minigrid", "pong"),
)
OPTIONS = {"compressor": "fp32", "mixed_precision": "none", "device": "cpu"}
GROUPS: Mapping[str, tuple[str, ...]] = {
    "products": ("mm", "addmm", "bmm", "baddbmm", "matmul", "dot"),
    "convolutions": ("convolution", "mkldnn", "conv"),
    "activations": ("tanh", "relu", "threshold", "clamp_min"),
    "optimiser": ("adam", "rmsprop", "vector_norm"),
    "copies and indices": ("copy_", "index", "cat", "gather", "select", "fill_", "zero_"),
}


def measure(preset: str, updates: int) -> dict[str, Any]:
    """Milliseconds of whole updates without the profiler, and microseconds of operators by name with it."""
    config = TrainConfig.create(**load_preset(preset) | OPTIONS)
    cell = LearnerCell(config, environment_spec(config), torch.device("cpu"))
    cell.take()
    times = [sum(cell.take()) for _ in range(updates)]
    with profile(activities=[ProfilerActivity.CPU]) as found:
        began = time.perf_counter()
        cell.take()
        profiled_s = time.perf_counter() - began
    return {
        "algorithm": config.algorithm.algorithm,
        "network": config.policy.network,
        "steps": cell.valid_steps,
        "update_s": times,
        "profiled_s": profiled_s,
        "operators_us": {entry.key: entry.self_cpu_time_total for entry in found.key_averages()},
    }


def shares(row: Mapping[str, Any]) -> dict[str, float]:
    """Of the profiled update's time, by group; what no operator took is Python's, and numpy's tanh."""
    sums: dict[str, float] = defaultdict(float)
    for name, us in row["operators_us"].items():
        plain = name.removeprefix("aten::").removeprefix("_fused_").removeprefix("_")
        group = next((group for group, parts in GROUPS.items() if any(part in plain for part in parts)), "others")
        sums[group] += us
    whole = max(1e6 * row["profiled_s"], sum(sums.values()))
    return {group: us / whole for group, us in sums.items()} | {"no operator": 1.0 - sum(sums.values()) / whole}


def page(rows: Mapping[str, Mapping[str, Any]], facts: Mapping[str, Any]) -> str:
    """The table."""
    groups = (*GROUPS, "others", "no operator")
    lines = [
        "# Where the learner's update of each preset spends its time",
        "",
        "`python scripts/evidence/learner_profile.py`; one thread, single precision, random experience; every",
        "operator's time is in `rows.json`. Milliseconds of a whole update (median) and, of one that is profiled and",
        "so slower, the shares of operators' own time; no operator: Python, and numpy's tanh.",
        "",
        f"| preset | algorithm, network | steps | update, ms | {' | '.join(groups)} |",
        f"|---|---|---:|---:|{'---:|' * len(groups)}",
    ]
    for preset, row in rows.items():
        found = shares(row)
        cells = " | ".join(f"{found.get(group, 0.0):.0%}" for group in groups)
        update = f"{1e3 * median(row['update_s']):.3g}"
        lines.append(f"| {preset} | `{row['algorithm']}`, `{row['network']}` | {row['steps']:,} | {update} | {cells} |")
    return "\n".join([*lines, "", f"{facts['cpu']}, torch {torch.__version__}, commit {facts['commit']}.", ""])


def main() -> None:
    """Measure every preset and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/learner-profile"))
    parser.add_argument("--updates", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    facts, rows = provenance(), {}
    for preset in PRESETS:
        rows[preset] = measure(preset, options.updates)
        print(page(rows, facts).splitlines()[-3], flush=True)
        (options.out / "rows.json").write_text(json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n")
        (options.out / "README.md").write_text(page(rows, facts))


if __name__ == "__main__":
    main()
