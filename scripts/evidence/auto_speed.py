#!/usr/bin/env python
"""``--compressor auto`` beside the fixed choices, of the kept runs of ``auto-*`` and ``halfcheetah-2048x3``.

    python scripts/evidence/training_runs.py auto-cartpole auto-lunarlander …     (makes the runs)
    python scripts/evidence/auto_speed.py       (writes the table of results/auto-speed/README.md, and leaves its text)

A run's figure is its seconds of training to the case's end: a mean return, or a number of steps where the case says so.
Ratios are of geometric means over seeds, with Welch's 95 % interval of the logarithms: 1.1 is a tenth slower.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from statistics import geometric_mean
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from accel.monitor.statistics import ratio_of_means  # noqa: E402

RESULTS = PROJECT / "results"
OUT = RESULTS / "auto-speed" / "README.md"
FULL_PRECISION = ("kernels", "fp32")
"""What full precision is called in a case: the first of them, where ``fp32`` is onnxruntime's."""
HEAD = (
    "| case | fp32, s | int8, s | auto, s | auto ÷ best fixed | auto ÷ fp32 | steps/s, auto ÷ best | at the end |",
    "|---|---|---|---|---|---|---|---|",
)
Run = Mapping[str, Any]


def main() -> None:
    """Put the table of the samples that are there in the place of the page's."""
    rows = []
    for path in sorted([*RESULTS.glob("auto-*/runs.json"), RESULTS / "halfcheetah-2048x3" / "runs.json"]):
        content = json.loads(path.read_text())
        rows.append(row(content["title"], path.parent.name, list(content["runs"].values())))
    before, _, rest = OUT.read_text().partition(HEAD[0][:7])
    OUT.write_text(before + "\n".join([*HEAD, *rows]) + rest[rest.index("\n\n") :])
    print("\n".join(rows))


def row(title: str, case: str, runs: Sequence[Run]) -> str:
    """One case's."""
    names = {run["variant"] for run in runs}
    full = next(name for name in FULL_PRECISION if name in names)
    by_variant = {name: [run for run in runs if run["variant"] == name] for name in (full, "int8", "auto")}
    times = {
        name: [seconds for run in found if (seconds := _seconds(run)) is not None] for name, found in by_variant.items()
    }
    rates = {name: [_rate(run) for run in found] for name, found in by_variant.items()}
    best = min((full, "int8"), key=lambda name: geometric_mean(times[name] or [inf]))
    fastest = max((full, "int8"), key=lambda name: geometric_mean(rates[name]))
    cells = [
        f"[{title}](../{case}/README.md)",
        *(_times(times[name], len(found)) for name, found in by_variant.items()),
    ]
    cells += [f"{_ratio(times['auto'], times[name])} ({_called(name)})" for name in (best, full)]
    cells += [f"{_ratio(rates['auto'], rates[fastest])} ({_called(fastest)})", _levels(by_variant["auto"])]
    return f"| {' | '.join(cells)} |"


def _seconds(run: Run) -> float | None:
    """Of training to the end of the case; None where it stopped short of the return it was to reach."""
    summary = run["summary"]
    if run["config"].get("stop_at_return") is not None and not summary["reason"].startswith("mean return"):
        return None
    return float(summary["training_s"])


def _rate(run: Run) -> float:
    """Environment steps per second of training."""
    return float(run["summary"]["env_steps"] / run["summary"]["training_s"])


def _called(variant: str) -> str:
    return "fp32" if variant in FULL_PRECISION else variant


def _times(found: Sequence[float], runs: int) -> str:
    """Geometric mean and range of those that got there, and how many of the runs did."""
    if not found:
        return f"–, 0 of {runs}"
    return f"{geometric_mean(found):.3g} ({min(found):.3g} to {max(found):.3g}), {len(found)} of {runs}"


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    if min(len(ours), len(theirs)) < 2:
        return "–"
    found = ratio_of_means(ours, theirs)
    return f"{found.estimate:.2f} [{found.low:.2f}, {found.high:.2f}]"


def _levels(runs: Sequence[Run]) -> str:
    """What acted at the end, in how many runs, and the time of the record after the last decision for it."""
    found = Counter(str(run["summary"]["scheme"]) for run in runs)
    return ", ".join(f"{level} in {count}{_taken(level, runs, count)}" for level, count in found.most_common())


def _taken(level: str, runs: Sequence[Run], count: int) -> str:
    seconds = []
    for run in runs:
        steps = [d["env_steps"] for d in run["decisions"] if d["to"] == level != d["from"]]
        if steps and run["summary"]["scheme"] == level:
            elapsed = zip(run["columns"]["elapsed_s"], run["columns"]["env_steps"], strict=True)
            seconds.append(next((s for s, at in elapsed if at >= steps[-1]), run["summary"]["training_s"]))
    if not seconds:
        return ""
    shown = dict.fromkeys(f"{found:.2g}" for found in (min(seconds), max(seconds)))
    return f" ({'' if len(seconds) == count else f'{len(seconds)} of them '}after {' to '.join(shown)} s)"


if __name__ == "__main__":
    main()
