#!/usr/bin/env python
"""What torch.compile would do for the learner's update on a CPU: what it costs at the start and gives afterwards.

    python scripts/evidence/learner_compile.py        (some ten minutes; needs a C++ compiler)

Each case is an algorithm with its defaults but for what stands in CASES, on random experience, one thread. Its parts of
an update, those that CUDA graphs would record, run as they are and through ``torch.compile``, in turns. Backward pass
and optimiser step stand outside of what is compiled, as torch.compile takes in neither here. Compiling is
the first updates' time less that of as many later ones, with torch's caches on disk empty. OUT/rows.json has every
update's time; a case that is in it is not measured again. Recurrent networks are left out: compiling unrolls their
steps, and for `ppo` with `mlp:64x1+lstm:64` had not ended after five minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

# torch reads it when it is imported: nothing compiled before is used again
os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()

import numpy as np
import torch

from accel.algorithms.base import GradientAlgorithm
from accel.algorithms.catalogue import agree, make_algorithm, make_store
from accel.algorithms.graphs import PlainSteps
from accel.bench.learner import random_experience
from accel.bench.rows import provenance
from accel.config import TrainConfig
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.experience.batch import Batcher
from accel.experience.rewards import RewardTransform
from accel.experience.stores.base import Experience

Result = TypeVar("Result")

CPU = torch.device("cpu")
WARM_UPDATES = 4
CARTPOLE = EnvSpec((4,), "float32", ActionSpec("categorical", (2,)))
CHEETAH = EnvSpec((17,), "float32", ActionSpec("gaussian", (6,), (-1.0,) * 6, (1.0,) * 6, squash=True))
PONG = EnvSpec((4, 84, 84), "uint8", ActionSpec("categorical", (6,)))
CASES: Mapping[str, tuple[EnvSpec, dict[str, Any]]] = {
    "impala, 64×2": (CARTPOLE, {"algorithm": "impala", "network": "mlp:64x2"}),
    "dppo, 256×2": (CHEETAH, {"algorithm": "dppo", "network": "mlp:256x2", "envs_per_actor": 8}),
    "ppo, 512×3": (CHEETAH, {"algorithm": "ppo", "network": "mlp:512x3", "envs_per_actor": 8}),
    "impala, nature-cnn": (PONG, {"algorithm": "impala", "network": "nature-cnn", "envs_per_actor": 8}),
    "dqn, nature-cnn": (PONG, {"algorithm": "dqn", "network": "nature-cnn"}),
    "dqn, 256×2": (CARTPOLE, {"algorithm": "dqn", "network": "mlp:256x2"}),
    "sac, 256×2": (CHEETAH, {"algorithm": "sac", "network": "mlp:256x2"}),
    "d4pg, 256×2": (CHEETAH, {"algorithm": "d4pg", "network": "mlp:256x2"}),
}


class CompiledSteps:
    """Runs the parts of an update through ``torch.compile``; a ``StepRunner``."""

    fixed_shapes = True
    outcome = "compiled"

    def __init__(self) -> None:
        self._compiled: dict[str, Callable[..., object]] = {}

    def run(self, step: Callable[..., Result], mark: Callable[[str], None], *inputs: object) -> Result:
        """See ``StepRunner``."""
        if step.__name__ not in self._compiled:
            self._compiled[step.__name__] = torch.compile(step, dynamic=False)
        return self._compiled[step.__name__](_unmarked, *inputs)  # type: ignore[return-value]


class Learner:
    """An algorithm and a store of random experience."""

    def __init__(self, spec: EnvSpec, options: Mapping[str, Any], compiled: bool) -> None:
        changed = {"learning_rate": 1e-7, "device": "cpu", "actors": 1} | dict(options)
        if options["algorithm"] in ("dqn", "sac", "d4pg"):
            changed |= {"learning_starts": 512, "replay_capacity": 20_000}
        config = TrainConfig.create(**changed)
        self.algorithm = make_algorithm(config, spec, CPU, runner=CompiledSteps() if compiled else PlainSteps())
        if compiled and isinstance(self.algorithm, GradientAlgorithm):
            self.algorithm.step = torch._dynamo.disable(self.algorithm.step)  # type: ignore[method-assign, no-untyped-call]
        _, self._layout = agree(config, self.algorithm)
        rewards = RewardTransform(config.rewards, config.algorithm.discount)
        self._store = make_store(config, self._layout, CPU, Batcher(spec, CPU), rewards)
        self._seed = self._steps = 0

    def update(self) -> float:
        """Its seconds, sampling left out."""
        while (sample := self._store.sample()) is None:
            self._insert()
        start = time.perf_counter()
        update = self.algorithm.update(sample, 0.0, _unmarked)
        seconds = time.perf_counter() - start
        self._store.feedback(sample, update.priorities)
        return seconds

    def _insert(self) -> None:
        unroll = random_experience(self._layout, self._seed % 64)
        if "priority" in unroll:
            unroll["priority"][...] = 1.0
        valid = int(np.count_nonzero(unroll["valid"][:-1]))
        unroll["header"][:3] = self._seed, 0, valid
        self._seed, self._steps = self._seed + 1, self._steps + valid
        self._store.insert(Experience(0, unroll, lambda: None))


def _unmarked(_phase: str) -> None:
    """Phases are not told apart."""


def measure(spec: EnvSpec, options: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Seconds of every update by way, of which the first ``WARM_UPDATES`` compile; how often a compiled one breaks."""
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    learners = {"eager": Learner(spec, options, False), "compiled": Learner(spec, options, True)}
    found: dict[str, Any] = {}
    for name, learner in learners.items():
        found[f"{name}_first_s"] = [learner.update() for _ in range(WARM_UPDATES)]
        found[f"{name}_s"] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found["compiled_s"]) < 5:
        for name, learner in learners.items():
            found[f"{name}_s"].append(learner.update())
    return found | {"breaks": dict(counters["graph_break"]), "options": dict(options)}


def page(rows: Mapping[str, Mapping[str, Any]], facts: Mapping[str, Any]) -> str:
    """The table."""
    lines = [
        "# torch.compile and the learner's update on a CPU",
        "",
        "`python scripts/evidence/learner_compile.py`; every update's time is in `rows.json`. Medians in milliseconds,",
        "[10th, 90th percentile]; one thread. Where a compiled update is faster, the last columns say after how many",
        "updates, and how long a time of nothing but updates, compiling has paid.",
        "",
        "| algorithm, network | as it is | compiled | ratio | compiling, s | pays after updates | that is, s |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    for name, row in rows.items():
        if "failed" in row:
            lines.append(f"| {name} | – | fails: {row['failed']} | – | – | – | – |")
            continue
        eager, compiled = (median(row[f"{way}_s"]) for way in ("eager", "compiled"))
        cost = sum(row["compiled_first_s"]) - len(row["compiled_first_s"]) * compiled
        pays = cost / (eager - compiled) if compiled < eager else None
        after = ["never", "–"] if pays is None else [f"{pays:,.0f}", f"{pays * eager:,.0f}"]
        cells = [_cell(row["eager_s"]), _cell(row["compiled_s"]), f"{eager / compiled:.2f}", f"{cost:.0f}", *after]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    machine = f"{facts['cpu']}, torch {torch.__version__}, commit {facts['commit']}"
    return "\n".join([*lines, "", f"{machine}.", ""])


def _cell(seconds: list[float]) -> str:
    low, middle, high = (1e3 * float(np.percentile(seconds, q)) for q in (10, 50, 90))
    return f"{middle:.3g} [{low:.3g}, {high:.3g}]"


def main() -> None:
    """Measure every case and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/learner-compile"))
    parser.add_argument("--case", action="append", choices=list(CASES), help="default: all")
    parser.add_argument("--seconds", type=float, default=15.0, help="of updates in turns, for each case")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    facts, samples = provenance(), options.out / "rows.json"
    rows = json.loads(samples.read_text())["rows"] if samples.exists() else {}
    for case in options.case or CASES:
        if case in rows:
            continue
        try:
            rows[case] = measure(*CASES[case], options.seconds)
        except RuntimeError as error:
            rows[case] = {"failed": str(error).splitlines()[0]}
        print(page(rows, facts).splitlines()[-3], flush=True)
        samples.write_text(json.dumps({"machine": facts, "rows": rows}) + "\n")
        (options.out / "README.md").write_text(page(rows, facts))


if __name__ == "__main__":
    main()
