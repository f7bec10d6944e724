#!/usr/bin/env python
"""``--compressor auto`` beside the fixed choices, of the kept runs of ``auto-*`` and ``halfcheetah-2048x3``.

    python scripts/evidence/training_runs.py auto-cartpole auto-lunarlander …     (makes the runs)
    python scripts/evidence/auto_speed.py                                         (writes results/auto-speed/README.md)

A run's figure is its seconds of training to the case's end: a mean return, or a number of steps where the case says so.
Ratios are of geometric means over seeds: 1.1 is a tenth slower. Three seeds show no difference of a few per cent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import exp, log
from pathlib import Path
from statistics import mean, median
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
RESULTS = PROJECT / "results"
OUT = RESULTS / "auto-speed" / "README.md"
FIXED = ("fp32", "int8")


def main() -> None:
    """Write the page from the samples that are there."""
    lines = [
        "# auto beside the fixed choices",
        "",
        "`python scripts/evidence/auto_speed.py`, from the samples of the linked cases. Seconds of training by",
        "seed; a dash is a run that did not get there. Ratios are of geometric means: 1.10 is a tenth slower. With",
        "so few seeds a ratio is what was seen, not a bound: the steps that a run takes to a return differ from",
        "seed to seed by more than levels do in speed. So the next column is of environment steps per second of",
        "training, medians: 0.90 is a tenth slower. The last column is what acted at the end with `auto`, and",
        "after how many seconds of training it was taken.",
        "",
        "| case | fp32 | int8 | auto | auto ÷ best fixed | auto ÷ fp32 | steps/s, auto ÷ best fixed | at the end |",
        "|---|---|---|---|---:|---:|---:|---|",
    ]  # fmt: skip
    for directory in sorted([*RESULTS.glob("auto-*/runs.json"), RESULTS / "halfcheetah-2048x3" / "runs.json"]):
        content = json.loads(directory.read_text())
        by_variant = {
            name: [run for run in content["runs"].values() if run["variant"] == name] for name in (*FIXED, "auto")
        }
        times = {name: [_seconds(run) for run in found] for name, found in by_variant.items()}
        means = {name: _geometric_mean(values) for name, values in times.items()}
        fixed = [value for name in FIXED if (value := means[name]) is not None]
        cells = [", ".join("–" if s is None else f"{s:.3g}" for s in times[name]) for name in (*FIXED, "auto")]
        levels = ", ".join(_level(run) for run in by_variant["auto"])
        title = f"[{content['title']}](../{directory.parent.name}/README.md)"
        rates = {name: median(_rate(run) for run in found) for name, found in by_variant.items()}
        ratios = [_ratio(means["auto"], min(fixed, default=None)), _ratio(means["auto"], means["fp32"])]
        ratios.append(_ratio(rates["auto"], max(rates[name] for name in FIXED)))
        lines.append(f"| {title} | {' | '.join(cells)} | {' | '.join(ratios)} | {levels} |")
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text("\n".join([*lines, ""]))
    print(OUT.read_text())


def _seconds(run: Mapping[str, Any]) -> float | None:
    """Of training to the end of the case; None where it stopped short of the return it was to reach."""
    summary = run["summary"]
    if run["config"].get("stop_at_return") is not None and not summary["reason"].startswith("mean return"):
        return None
    return float(summary["training_s"])


def _rate(run: Mapping[str, Any]) -> float:
    """Environment steps per second of training."""
    return float(run["summary"]["env_steps"] / run["summary"]["training_s"])


def _level(run: Mapping[str, Any]) -> str:
    """What acted at the end, and the time of the record after the decision for it."""
    level = str(run["summary"]["scheme"])
    taken = [d["env_steps"] for d in run["decisions"] if d["to"] == level != d["from"]]
    if not taken:
        return level
    columns = run["columns"]
    elapsed = zip(columns["elapsed_s"], columns["env_steps"], strict=True)
    return f"{level} ({next((s for s, steps in elapsed if steps >= taken[-1]), run['summary']['training_s']):.2g} s)"


def _geometric_mean(values: list[float | None]) -> float | None:
    """None where a run did not get there."""
    return exp(mean(log(v) for v in values if v is not None)) if values and None not in values else None


def _ratio(value: float | None, other: float | None) -> str:
    return "–" if value is None or other is None else f"{value / other:.2f}"


if __name__ == "__main__":
    main()
