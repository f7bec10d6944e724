#!/usr/bin/env python
"""Draws the figures of docs/results.md that no training case draws, from samples in results/evidence.

python scripts/evidence/figures.py        (gains over random play in defaults, an update's time in bench_learner)
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import mean

import matplotlib as mpl

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.evidence.samples import EVIDENCE, read_samples

OURS, THEIRS = "#1f6fb4", "#7a7f87"


def main() -> None:
    """Draw both."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "figures"
    gains = gain_ratios()
    draw(
        gains,
        [OURS] * len(gains),
        "gain over random play ÷ Stable-Baselines3's PPO's",
        EVIDENCE / "defaults" / "gains.svg",
    )
    times = update_times()
    colours = [OURS if name.startswith("accel") else THEIRS for name in times]
    draw(times, colours, "µs of an update per environment step", EVIDENCE / "bench_learner" / "updates.svg")


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


def draw(values: dict[str, float], colours: list[str], label: str, path: Path) -> None:
    """Bars with their values, equal bytes for equal samples."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.0, 0.6 + 0.28 * len(values)), layout="constrained")
    bars = axes.barh(list(values), list(values.values()), color=colours)
    axes.bar_label(bars, fmt="{:.3g}", padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    main()
