#!/usr/bin/env python
"""One curve for each algorithm, as its page in docs/algorithms shows it: one seed, default options.

All run in one process, but for those whose actors ask another one for actions: they have two actors; a3c and gorila
have two learners as well.

    python scripts/evidence/algorithm_curves.py
    python scripts/evidence/algorithm_curves.py --algorithm sac

A curve shows what to expect of a first run and how its returns are spread; one seed compares no algorithms.
results/evidence/algorithm-curves keeps the samples; docs/algorithms/NAME.svg is drawn from them and put on its page. A
run that is there is not made again: remove it from the file for that.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from accel.system.machine import describe_machine, read_machine, read_source  # noqa: E402
from scripts.evidence.samples import EVIDENCE, read_samples, write_samples  # noqa: E402
from scripts.evidence.samples import train as train_run  # noqa: E402

SAMPLES = EVIDENCE / "algorithm-curves" / "runs.json.gz"
PICTURES = PROJECT / "docs" / "algorithms"
WINDOW = 20  # episodes that a point of the curve covers


@dataclass(frozen=True)
class Case:
    """An environment, and steps that take less than a minute on two cores."""

    env: str
    steps: int
    actors: int = 0
    learners: int = 1


CASES: Mapping[str, Case] = {
    "impala": Case("CartPole-v1", 100_000),
    "seed": Case("CartPole-v1", 100_000, actors=2),
    "ga3c": Case("CartPole-v1", 100_000, actors=2),
    "a2c": Case("CartPole-v1", 100_000),
    "a3c": Case("CartPole-v1", 100_000, actors=2, learners=2),
    "ppo": Case("CartPole-v1", 50_000),
    "dppo": Case("CartPole-v1", 50_000),
    "impact": Case("CartPole-v1", 100_000),
    "ptr-ppo": Case("CartPole-v1", 50_000),
    "dqn": Case("CartPole-v1", 30_000),
    "gorila": Case("CartPole-v1", 30_000, actors=2, learners=2),
    "apex": Case("CartPole-v1", 30_000),
    "r2d2": Case("CartPole-v1", 20_000),
    "d4pg": Case("Pendulum-v1", 10_000),
    "sac": Case("Pendulum-v1", 8_000),
    "td3": Case("Pendulum-v1", 10_000),
}
Run = dict[str, object]


def main() -> int:
    """Make the runs that are missing and draw all that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", action="append", choices=list(CASES), help="default: all")
    for algorithm in parser.parse_args().algorithm or CASES:
        runs = _read()
        if algorithm not in runs:
            runs[algorithm] = train(algorithm)
            document = {"machine": describe_machine(read_machine()), "runs": runs}
            write_samples(SAMPLES, document)
        draw(algorithm, runs[algorithm], PICTURES / f"{algorithm}.svg")
        show(algorithm, str(runs[algorithm]["env"]))
    return 0


def _read() -> dict[str, Run]:
    return dict(read_samples(SAMPLES).get("runs", {}))


def train(algorithm: str) -> Run:
    """One run; of its records the environment steps and the mean return of the last episodes."""
    case = CASES[algorithm]
    words = [
        "--algorithm", algorithm, "--env", case.env, "--actors", str(case.actors), "--seed", "0",
        "--total-env-steps", str(case.steps), "--stop-window", str(WINDOW), "--log-interval-s", "0.2",
        *(["--learners", str(case.learners)] if case.learners > 1 else []),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        command = train_run(words, Path(scratch, "run"))
        records = [json.loads(line) for line in Path(scratch, "run", "metrics.jsonl").read_text().splitlines()]
    points = [(r["env_steps"], r["return_mean"]) for r in records if r.get("return_mean") is not None]
    return {
        "env": case.env,
        "command": command,
        "commit": read_source()["commit"],
        "env_steps": [steps for steps, _ in points],
        "return_mean": [value for _, value in points],
    }


def draw(algorithm: str, run: Run, path: Path) -> None:
    """The curve as a small picture, equal bytes for equal samples."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = algorithm
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.0, 2.6), layout="constrained")
    axes.plot(cast("list[float]", run["env_steps"]), cast("list[float]", run["return_mean"]), color="#1f6fb4")
    axes.set_xlabel("environment steps")
    axes.set_ylabel(f"return, mean of {WINDOW}")
    axes.set_title(f"{run['env']}, one seed, default options", fontsize=10)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)


def show(algorithm: str, env: str) -> None:
    """Put the picture on the algorithm's page, before its options, unless it is there."""
    page = PICTURES / f"{algorithm}.md"
    text = page.read_text()
    if f"]({algorithm}.svg)" not in text:
        line = f"![Returns of a run with default options, {env}]({algorithm}.svg)"
        page.write_text(text.replace("\n## Options\n", f"\n{line}\n\n## Options\n", 1))


if __name__ == "__main__":
    sys.exit(main())
