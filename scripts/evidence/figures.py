#!/usr/bin/env python
"""Draws the figures of docs/results.md that no training case draws, from samples in results/evidence.

python scripts/evidence/figures.py        (gains over random play in defaults, an update's time in bench_learner)
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel.reports.figure import Axis, Bars, Figure, Panel
from accel.reports.plotting import render
from accel.system.atomic import write_atomically
from scripts.evidence.samples import EVIDENCE, read_samples


def main() -> None:
    """Draw both."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for name, values, label, directory in (
        ("gains", gain_ratios(), "gain over random play ÷ Stable-Baselines3's PPO's", "defaults"),
        ("updates", update_times(), "µs of an update per environment step", "bench_learner"),
    ):
        panel = Panel([Bars(list(values), {label: list(values.values())})], Axis(label))
        content = render(Figure(name, label, [panel]))["svg"]
        write_atomically(EVIDENCE / directory / f"{name}.svg", content)


def gain_ratios() -> dict[str, float]:
    """Our mean gain over random play by Stable-Baselines3's, for each environment that both were trained in."""
    scores: dict[tuple[str, str], list[float]] = {}
    for name, run in read_samples(EVIDENCE / "defaults" / "runs.json.gz")["runs"].items():
        env, system, _ = name.rsplit("-", 2)
        scores.setdefault((env, system), []).append(mean(run["returns"]))

    def gain(env: str, system: str) -> float:
        return mean(scores[env, system]) - mean(scores[env, "random"])

    return {env: gain(env, "accel") / gain(env, "sb3") for env, system in scores if system == "sb3"}


def update_times() -> dict[str, float]:
    """Microseconds an environment step of each library's update."""
    found = {}
    for env in ("LunarLander", "HalfCheetah"):
        rows = read_samples(EVIDENCE / "bench_learner" / f"default-{env}.json.gz")["rows"]
        found |= {f"{row['learner']}, {env}": row["us_per_env_step"] for row in rows}
    return found


if __name__ == "__main__":
    main()
