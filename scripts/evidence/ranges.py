#!/usr/bin/env python
"""int8's distance from the learner's policy with upkeep by updates and by the optimiser's steps, from kept runs.

python scripts/evidence/training_runs.py halfcheetah-preset-returns     (makes today's runs)
python scripts/evidence/ranges.py                                       (writes results/ranges-by-updates/README.md)
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from accel.monitor.mismatch import KL_ALARM

RESULTS = Path(__file__).resolve().parents[2] / "results"
EARLY_STEPS = 100_000
PAGE = """# int8 whose upkeep counted updates

64 seeds of `halfcheetah-preset-returns` with int8 at commits before calibration, the look for drift, checks and the
renewal of kept observations counted the optimiser's steps; today's are in
[halfcheetah-preset-returns](../halfcheetah-preset-returns/README.md). This preset takes 40 optimiser steps an update.
`python scripts/evidence/ranges.py` makes this page from both. Options that come close to the old upkeep:
`--calibration-interval-steps 20000 --drift-interval-steps 2000 --check-interval-steps 8000`.
KL is that of compression, in nats, where it was sampled; the greatest is that of a run's first {early:,} steps.

| upkeep counts | seeds | KL, mean of all records | records above {alarm:g} | greatest KL, median | last mean return |
|---|---:|---:|---:|---:|---:|
{rows}
"""


def main() -> None:
    """Write the page."""
    rows = [
        _row("updates", RESULTS / "ranges-by-updates"),
        _row("the optimiser's steps", RESULTS / "halfcheetah-preset-returns"),
    ]
    page = PAGE.format(alarm=KL_ALARM, early=EARLY_STEPS, rows="\n".join(rows))
    (RESULTS / "ranges-by-updates" / "README.md").write_text(page)
    print(page)


def _row(name: str, directory: Path) -> str:
    runs = json.loads((directory / "runs.json").read_text())["runs"]
    found, greatest, returns = [], [], []
    for run in (run for run in runs.values() if run["variant"] == "int8"):
        columns = run["columns"]
        pairs = zip(columns["env_steps"], columns["compression_kl"], strict=True)
        sampled = [(steps, kl) for steps, kl in pairs if kl is not None]
        found.append([kl for _, kl in sampled])
        greatest.append(max(kl for steps, kl in sampled if steps <= EARLY_STEPS))
        returns.append(run["summary"]["return_mean"])
    every = np.concatenate(found)
    mean, share = float(every.mean()), float((every > KL_ALARM).mean())
    return f"| {name} | {len(found)} | {mean:.4f} | {share:.1%} | {np.median(greatest):.3f} | {np.mean(returns):.0f} |"


if __name__ == "__main__":
    main()
