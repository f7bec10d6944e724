"""What environments whose steps take unequal time cost one actor, and what actors of their own give.

    python scripts/evidence/uneven_steps.py        (seven minutes)

Four environments sleep at every step, 20 ms in the mean: equally long, or exponentially distributed. One actor steps
all four, itself or by a worker process each (``--env-workers``); or four actors one each, with a policy of their own,
or with the one of an inference rank (``--inference central``), which answers whoever is ready in one batch. Sleeping
takes no core, so that two suffice. Environment steps per second of training, variants in turns; writes
``results/uneven-steps/rows.json``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gymnasium
import numpy as np
import numpy.typing as npt

MEAN_S, ENVS, STEPS, REPETITIONS = 0.02, 4, 1200, 2
PROJECT = Path(__file__).resolve().parents[2]
OUT = PROJECT / "results" / "uneven-steps" / "rows.json"
VARIANTS = {
    "one actor": ["--actors", "1", "--envs-per-actor", str(ENVS)],
    "one actor, a worker each": ["--actors", "1", "--envs-per-actor", str(ENVS), "--env-workers", str(ENVS)],
    "an actor each": ["--actors", str(ENVS), "--envs-per-actor", "1"],
    "an actor each, central inference": ["--actors", str(ENVS), "--envs-per-actor", "1", "--inference", "central"],
}
OPTIONS = (
    "--algorithm", "impala", "--compressor", "fp32", "--network", "mlp:64x2", "--unroll-length", "25",
    "--total-env-steps", str(STEPS), "--env", "scripts.evidence.uneven_steps:Sleeping-v0",
)  # fmt: skip

Floats = npt.NDArray[np.float32]


class Sleeping(gymnasium.Env[Floats, np.int64]):
    """Sleeps at every step; episodes of 50 steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, uneven: bool) -> None:
        self._uneven = uneven

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Floats, dict[str, object]]:
        """See gymnasium."""
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: np.int64) -> tuple[Floats, float, bool, bool, dict[str, object]]:
        """See gymnasium."""
        time.sleep(self.np_random.exponential(MEAN_S) if self._uneven else MEAN_S)
        return np.zeros(4, np.float32), float(action), False, False, {}


def main() -> None:
    """Measure all variants in turns."""
    from accel.bench.rows import provenance

    rows = []
    for repetition in range(REPETITIONS):
        for uneven in (False, True):
            for name, words in VARIANTS.items():
                measured = steps_per_s([*words, "--env-arg", f"uneven={uneven}", "--seed", str(repetition)])
                rows.append({"variant": name, "uneven": uneven, "repetition": repetition, "env_steps_per_s": measured})
                print(rows[-1], flush=True)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"rows": rows, **provenance()}, indent=1) + "\n")


def steps_per_s(words: list[str]) -> float:
    """Of one run."""
    with tempfile.TemporaryDirectory() as directory:
        command = [
            sys.executable,
            "-m",
            "accel",
            "train",
            *OPTIONS,
            *words,
            "--results-dir",
            directory,
            "--name",
            "run",
        ]
        subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
        return float(json.loads((Path(directory) / "run" / "summary.json").read_text())["env_steps_per_s"])


if __name__ == "__main__":
    main()
else:
    gymnasium.register("Sleeping-v0", entry_point=Sleeping, max_episode_steps=50)
