"""Runs with known figures: directories like the trainer's, and records as a report reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from accel.monitor.decisions import Decision, DecisionLog
from accel.reports.runs import Run
from accel.reports.series import Series
from accel.system.atomic import write_atomically
from tests.accel.runs.test_summary import SUMMARY

MACHINE: dict[str, object] = {
    "host": "node",
    "cpu": "Test CPU",
    "architecture": "x86_64",
    "usable_cores": 2.0,
    "memory_bytes": 24 << 30,
    "gpus": [],
    "versions": {"python": "3.11.4", "torch": "2.13.0"},
    "commit": "0123456789abcdef",
    "dirty": False,
    "command": ["accel", "train", "--preset", "quickstart"],
}
CONFIG: dict[str, object] = {
    "env": "CartPole-v1",
    "actors": 2,
    "compressor": "int8",
    "actor_runtime": "onnxruntime",
    "network": "mlp:64x2",
    "total_env_steps": 1_000_000,
    "stop_window": 100,
}


def run_record(
    columns: Mapping[str, npt.ArrayLike] | None = None,
    *,
    name: str = "",
    machine: Mapping[str, object] | None = None,
    summary: Mapping[str, object] | None = None,
    decisions: Sequence[Decision] = (),
    notes: Sequence[str] = (),
    damaged: int = 0,
    **config: object,
) -> Run:
    """A run of int8 in environment E as a report reads it; named after its scheme and seed unless it has a name."""
    values = {"env": "E", "compressor": "int8", "seed": 0} | config
    read = {key: np.asarray(column, np.float64) for key, column in (columns or {}).items()}
    series = Series(read, len(next(iter(read.values()), ())), damaged)
    name = name or f"{values['compressor']}-{values['seed']}"
    found = {"cpu": "A"} if machine is None else machine
    return Run(name, f"/runs/{name}", values, found, summary, series, decisions, tuple(notes))


def write_run(
    root: Path,
    name: str,
    *,
    seed: int = 0,
    records: int = 60,
    steps_per_s: float = 10_000.0,
    level: float = 500.0,
    decisions: int = 0,
    ended: bool = True,
    **config: object,
) -> Path:
    """A run of ``records`` seconds whose return rises from 20 to ``level`` with noise, as ``root/name``."""
    path = root / name
    path.mkdir(parents=True)
    values = {**CONFIG, "seed": seed, "name": name, "results_dir": str(root), **config}
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None]
    (path / "config.toml").write_text("\n".join(lines) + "\n")
    (path / "machine.json").write_text(json.dumps(MACHINE))
    rng = np.random.default_rng([seed, records])
    with (path / "metrics.jsonl").open("w") as file:
        for i in range(records):
            record = _record(i, records, steps_per_s, level, str(values["compressor"]), rng)
            file.write(json.dumps(record) + "\n")
    steps = int(records * steps_per_s)
    if ended:
        phases = {"env": 40.0, "policy": 25.0, "overhead": 8.0, "send": 2.0, "wait": 20.0, "load": 5.0}
        summary = replace(
            SUMMARY,
            path=str(path),
            reason=f"total_env_steps = {steps} reached",
            env=str(values["env"]),
            scheme=str(values["compressor"]),
            seed=seed,
            env_steps=steps,
            return_mean=level,
            training_s=float(records),
            wall_s=records + 4.0,
            env_steps_per_s=steps_per_s,
            learner_s={"wait": 0.1 * records, "forward": 0.4 * records, "backward": 0.5 * records},
            actor_s={phase: seconds / 100 * 2 * records for phase, seconds in phases.items()},
            comparison=None,
        )
        write_atomically(path / "summary.json", json.dumps(summary.to_json()).encode())
    levels = ["fp32", "int8", "prune(0.5)+int8"]
    log = DecisionLog(path, clock=lambda: 1000.0)
    for i in range(decisions):
        where, said = int(steps * (i + 1) / (decisions + 1)), f"decision {i}: 12 % more effective experience"
        log.write(where, "better", levels[i % 3], levels[(i + 1) % 3], said, {"rate/int8": 1.0})
    return path


def _record(
    i: int, records: int, steps_per_s: float, level: float, scheme: str, rng: np.random.Generator
) -> dict[str, object]:
    progress = (i + 1) / records
    mean = 20 + (level - 20) * (1 - np.exp(-5 * progress)) / (1 - np.exp(-5)) + rng.normal(0, 0.01 * abs(level))
    return {
        "env_steps": int((i + 1) * steps_per_s),
        "wall_time_s": 1000.0 + i + 1,
        "elapsed_s": i + 1.0,
        "updates": 10 * (i + 1),
        "env_steps_per_s": steps_per_s,
        "episodes": 200 * (i + 1),
        "return_mean": float(mean),
        "length_mean": 100.0,
        "scheme": scheme,
        "dropped_unrolls": 0,
        "actors_alive": 2,
        "lag_min": 0,
        "lag_mean": 1.5 + rng.random(),
        "lag_max": 4,
        "entropy": 0.5,
        "learner_wait_share": 0.1,
        "learner_forward_share": 0.4,
        "learner_backward_share": 0.5,
        "actor_env_share": 0.5,
        "actor_policy_share": 0.25,
        "actor_wait_share": 0.25,
    }
