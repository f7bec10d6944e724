#!/usr/bin/env python
"""What acting with a compressed policy costs, apart from learning with it: one policy played as actors had it, and in
full precision.

    accel train --preset halfcheetah --compressor int8 --seed 100 --results-dir runs --name int8-s100
    python scripts/evidence/acting_loss.py runs/int8-s*        (4 s a run)

The return of a training is that of the episodes its compressed, sampling actors play. It falls behind where the policy
learns less, or where a policy that has learned as much acts worse. Here the policy at the end of each run plays as the
artifact that its actors got last, and in full precision, sampling, on the same seeds. OUT/runs.json has every
episode's return; a run that is there is not played again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from accel.bench.timing import torch_threads  # noqa: E402
from accel.monitor.statistics import mean_interval  # noqa: E402
from accel.runs.evaluation import evaluate  # noqa: E402
from accel.system.atomic import write_atomically  # noqa: E402
from accel.system.machine import describe_machine, read_machine  # noqa: E402

EPISODES = 16
FIRST_SEED = 10_000  # of the episodes, which are the same for every policy
Run = dict[str, Any]


def main() -> int:
    """Play what is not there, and write the samples and the page after each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="directories of runs with compressed actors")
    parser.add_argument("--out", type=Path, default=PROJECT / "results" / "acting-loss")
    options = parser.parse_args()
    if len({path.name for path in options.runs}) < len(options.runs):
        parser.error("two of the runs have one name: play those of one case")
    options.out.mkdir(parents=True, exist_ok=True)
    samples = options.out / "runs.json"
    runs: dict[str, Run] = json.loads(samples.read_text()) if samples.exists() else {}
    for path in options.runs:
        if path.name not in runs:
            print(path.name, flush=True)
            with torch_threads():
                runs[path.name] = measure(path)
            write_atomically(samples, json.dumps(runs, indent=1).encode())
    write_atomically(options.out / "README.md", render(runs).encode())
    print(render(runs))
    return 0


def measure(path: Path) -> Run:
    """Returns of one run's last policy, compressed and in full precision, on the same seeds."""
    summary = json.loads((path / "summary.json").read_text())
    played = evaluate(
        path, artifact=path / "policy" / "final.accel", episodes=EPISODES, seed=FIRST_SEED, greedy=False, baseline=True
    )
    if played.scheme != summary["scheme"] or played.baseline is None:
        raise RuntimeError(f"{path}: the last policy of the actors is {played.scheme}, not {summary['scheme']}")
    return {
        "env": played.env,
        "scheme": played.scheme,
        "seed": summary["seed"],
        "env_steps": played.env_steps,
        "training_return": summary["return_mean"],
        "compressed": played.episodes.returns.tolist(),
        "full": played.baseline.returns.tolist(),
        "machine": describe_machine(read_machine()),
    }


def render(runs: Mapping[str, Run]) -> str:
    """The page: a row for each environment and scheme; intervals are over runs."""
    rows = []
    for env, scheme in sorted({(run["env"], run["scheme"]) for run in runs.values()}):
        chosen = [run for run in runs.values() if (run["env"], run["scheme"]) == (env, scheme)]
        if len(chosen) > 1:
            full, compressed = ([mean(run[how]) for run in chosen] for how in ("full", "compressed"))
            lost = mean_interval([b - a for a, b in zip(full, compressed, strict=True)])
            trained = mean_interval([run["training_return"] for run in chosen])
            rows.append(
                f"| {env} | `{scheme}` | {len(chosen)} | {mean_interval(full)} | {mean_interval(compressed)} "
                f"| {lost} | {trained} |"
            )
    machines = sorted({f"{run['machine']['commit']}, {run['machine']['cpu']}" for run in runs.values()})
    return "\n".join(
        [_HEAD.format(episodes=EPISODES), *rows, "", *(f"- Commit and machine: {machine}." for machine in machines), ""]
    )


_HEAD = """# What acting with a compressed policy costs, apart from learning with it

`python scripts/evidence/acting_loss.py runs/CASE/SCHEME-s*`; every episode's return is in `runs.json`. The policy at
the end of each run plays {episodes} episodes as the artifact that its actors got last and {episodes} in full precision,
sampling, on the same seeds. Means over runs with Student's 95 % interval; the training's return is the mean of its last
`stop_window` episodes, of policies that were still learning.

| environment | scheme | runs | full precision | compressed | difference | in training |
|---|---|---:|---|---|---|---|"""


if __name__ == "__main__":
    sys.exit(main())
