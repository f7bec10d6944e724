"""Does `auto` do right by levels whose worth is known? Runs under mpirun with a level that is made so on purpose.

    python scripts/evidence/planted.py a --runs 20        thrice as fast, equal policy: taken within 30 s?
    python scripts/evidence/planted.py b --runs 20        thrice as fast, a quarter as much a step: left within 10 min?
    python scripts/evidence/planted.py ceiling --runs 20  thrice as fast, converges to less: left within half of 20 min?
    python scripts/evidence/planted.py c --runs 5         as fast as fp32: how many steps, beside fp32 fixed?

The level is int8 of a small network, whose policy is full precision's. Both are paced by sleeping in each call of the
policy. What a level teaches is changed in the environment of actors that act with it, where no divergence sees it: an
episode pays each step's reward one step late, or pays for a wrong action and takes that back at its end. Every episode
returns what it is worth, and the discount is near zero, so that only credit differs; Adam's ε is so large that a step
of the optimiser is as long as its gradient. Advantages are normalised as always, so that what a level teaches is about
what is planted; decisions say what was measured. A run ends once its case is decided. It takes two fifths of a core, so
that a few may share the machine. Each run is added to ``OUT/CASE.json.gz``; given again, the command goes on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel.acting.policy import SessionPolicy
from accel.bench.rows import provenance
from accel.json_object import Json
from accel.monitor.decisions import read_decisions
from scripts.evidence.samples import PROJECT, arguments, read_samples, write_samples

FULL = "fp32"
Floats = npt.NDArray[np.float32]
STEPS, CONTEXTS = 10, 10
BIASED = (0, 5)
"""Contexts for which a biased level pays action 0 instead of their own."""
STEP_S = 0.008
"""Of a level's vector step, environments and all."""
POLL_S = 0.5

gymnasium.register("Planted-v0", entry_point="scripts.evidence.planted:PlantedEnv")


@dataclass(frozen=True)
class Case:
    """What is planted, and what ends a run.

    Attributes:
        slow: full precision's time of a vector step over the level's.
        late: share of a level's episodes that pay late. Of their ten steps the last alone earns credit: with 5/6, steps
            teach about a quarter as much. bias: share of those that pay for action 0 in a fifth of the contexts.
        learning_rate: such that a run learns as long as it lasts in b, and for its first 90 s in ``ceiling``.
        kind: of the decision that is waited for; empty: none is. limit_s: of a run.
        within_s: in which the decision is right, after the run's directory was made.
    """

    slow: float
    late: float
    bias: float
    learning_rate: float
    kind: str
    limit_s: float
    within_s: float


CASES = {
    "a": Case(3.0, 0.0, 0.0, 2e-4, "take", 40.0, 30.0),
    "b": Case(3.0, 5 / 6, 0.0, 2e-4, "leave", 600.0, 600.0),
    "ceiling": Case(3.0, 0.0, 1.0, 1.5e-3, "leave", 1200.0, 600.0),
    "c": Case(1.0, 0.0, 0.0, 2e-4, "", 90.0, 90.0),
}


class PlantedEnv(gymnasium.Env[Floats, Floats]):
    """Ten steps, each of which shows one of ten contexts and pays 1 less the distance from the action that belongs to
    it, 1 or -1. So little noise that learning shows within a block of 20 s.

    Args:
        slow, late, bias: see ``Case``.
    """

    observation_space = spaces.Box(0.0, 1.0, (CONTEXTS,), np.float32)
    action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)
    level = FULL
    """Of the policy that acts in this process."""

    def __init__(self, slow: float, late: float, bias: float) -> None:
        self._late, self._bias = late, bias
        _watch_policies(slow)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        """An episode, which may be one that pays late."""
        super().reset(seed=seed)
        self._t, self._owed = 0, 0.0
        self._is_late, self._is_biased = self.np_random.random(2) < (self._late, self._bias)
        return self._show(), {}

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Pays what the level's plant says."""
        place, aim = float(action[0]), 1.0 if self._context % 2 else -1.0
        reward = paid = 1.0 - abs(place - aim)
        if PlantedEnv.level != FULL and self._is_late:
            paid, self._owed = self._owed, reward
        elif PlantedEnv.level != FULL and self._is_biased and self._context in BIASED:
            paid = 1.0 - abs(place)
            self._owed += reward - paid
        self._t += 1
        over = self._t == STEPS
        return self._show(), paid + self._owed * over, over, False, {}

    def _show(self) -> Floats:
        self._context = int(self.np_random.integers(CONTEXTS))
        return np.eye(CONTEXTS, dtype=np.float32)[self._context]


def _watch_policies(slow: float) -> None:
    """Have this process's policies say which level acts, and take their time, once."""
    if hasattr(SessionPolicy, "planted"):
        return
    act, infer, next_s = SessionPolicy.act, SessionPolicy.infer, 0.0

    @wraps(act)
    def saying(self: SessionPolicy, *rest: Any) -> None:  # noqa: ANN401
        PlantedEnv.level = self.scheme
        act(self, *rest)

    @wraps(infer)
    def slowly(self: SessionPolicy, *rest: Any) -> None:  # noqa: ANN401
        nonlocal next_s
        time.sleep(max(next_s - time.monotonic(), 0.0))
        next_s = time.monotonic() + STEP_S * (slow if self.scheme == FULL else 1.0)
        infer(self, *rest)

    SessionPolicy.act, SessionPolicy.infer = saying, slowly  # type: ignore[method-assign]
    SessionPolicy.planted = True  # type: ignore[attr-defined]


def command(case: Case, compressor: str, seed: int, directory: Path) -> list[str]:
    """Of a run of one actor, whose learner is hardly busy."""
    planted = [f"--env-arg={name}={getattr(case, name)}" for name in ("slow", "late", "bias")]
    return [
        sys.executable, "-m", "accel", "train", "--env", "scripts.evidence.planted:Planted-v0", *planted,
        "--algorithm", "impala", "--actors", "1", "--envs-per-actor", "64", "--unroll-length", "20",
        "--launcher", "mpirun", "--network", "mlp:32x1", "--discount", "0.01", "--lambda", "0.01",
        "--learning-rate", str(case.learning_rate), "--optimizer-epsilon", "1", "--max-gradient-norm", "none",
        "--initial-log-std=-2", "--learner-threads", "1", "--calibration-size", "128",
        "--total-env-steps", "1000000000", "--max-seconds", str(case.limit_s),
        "--compressor", compressor, "--seed", str(seed), "--results-dir", str(directory), "--name", "run",
    ]  # fmt: skip


def run(case: Case, compressor: str, seed: int) -> Json:
    """One run until it is decided or over: when, its decisions, steps per second, and the last returns."""
    with tempfile.TemporaryDirectory() as name:
        path, began = Path(name) / "run", time.time()
        environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
        words = command(case, compressor, seed, Path(name))
        with (Path(name) / "output.txt").open("w") as log:
            process = subprocess.Popen(words, env=environment, stdout=log, stderr=log, cwd=PROJECT)
        decided = None
        while process.poll() is None and not path.exists():
            began = time.time()
            time.sleep(POLL_S / 10)
        while process.poll() is None and decided is None:
            time.sleep(POLL_S)
            made = read_decisions(path)[0] if path.exists() else []
            decided = next((d.unix_time_s - began for d in made if d.kind == case.kind), None)
        process.terminate()
        process.wait()
        if not (path / "metrics.jsonl").exists():
            raise SystemExit((Path(name) / "output.txt").read_text())
        records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        return {
            "compressor": compressor,
            "seed": seed,
            "decided_s": decided,
            "env_steps_per_s": records[-1]["env_steps"] / records[-1]["elapsed_s"],
            "returns": [[record["elapsed_s"], record["return_mean"]] for record in records],
            "figures": {name: value for name, value in records[-1].items() if name.startswith("tuning/")},
            "decisions": [[d.unix_time_s - began, d.kind, d.reason] for d in read_decisions(path)[0]],
        }


def main() -> None:
    """Run what is missing, and say how it went."""
    parser = arguments(__doc__, "planted")
    parser.add_argument("case", choices=list(CASES))
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=1, help="how many share the machine (default: %(default)s)")
    options = parser.parse_args()
    case, out = CASES[options.case], options.out / f"{options.case}.json.gz"
    rows = read_samples(out).get("rows", [])
    done = {(row["compressor"], row["seed"]) for row in rows}
    arms = ("auto",) if case.kind else ("auto", FULL)
    missing = [(arm, seed) for seed in range(options.runs) for arm in arms if (arm, seed) not in done]
    with ThreadPoolExecutor(options.at_once) as pool:
        for row in pool.map(lambda asked: run(case, *asked) | provenance(), missing):
            rows.append(row)
            write_samples(out, {"case": asdict(case), "rows": rows})
            names = ("seed", "compressor", "decided_s", "env_steps_per_s")
            print(*(row[name] for name in names), *row["decisions"], sep="\n  ")
    if case.kind:
        right = sum(row["decided_s"] is not None and row["decided_s"] <= case.within_s for row in rows)
        print(f"{case.kind} within {case.within_s:g} s in {right} of {len(rows)} runs")
    else:
        rates = [np.mean([row["env_steps_per_s"] for row in rows if row["compressor"] == c]) for c in ("auto", FULL)]
        print(f"{rates[0] / rates[1]:.3f} times the steps per second of {FULL}, {len(rows) // 2} runs of each")


if __name__ == "__main__":
    main()
