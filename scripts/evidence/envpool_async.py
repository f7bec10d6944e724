"""EnvPool's environments stepped together, and acted on as each is ready (``--env-workers``), in turns.

    python scripts/evidence/envpool_async.py        (one minute)

Eight environments on two of EnvPool's threads both ways; actions are constant, and before each step two products of
256×256 stand for a policy. Environment steps per second; writes ``results/envpool-async/rows.json``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from accel.bench.rows import provenance  # noqa: E402
from accel.envs.factory import make_async_envpool, make_vector_env  # noqa: E402
from accel.envs.spaces import EnvSpec  # noqa: E402

ENVS, THREADS, WARM_UP, REPETITIONS = 8, 2, 20, 5
STEPS = {"CartPole-v1": 8000, "Humanoid-v4": 4000, "Pong-v5": 3000}
OUT = PROJECT / "results" / "envpool-async" / "rows.json"


def main() -> None:
    """Measure both ways in turns."""
    rows = []
    for env, steps in STEPS.items():
        for repetition in range(REPETITIONS):
            for way, measure in (("together", together), ("as each is ready", as_ready)):
                rows.append({"env": env, "way": way, "repetition": repetition, "env_steps_per_s": measure(env, steps)})
                print(rows[-1], flush=True)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"rows": rows, **provenance()}, indent=1) + "\n")


def together(env: str, steps: int) -> float:
    """Every step waits for all environments."""
    environments = make_vector_env(env, ENVS, backend="envpool", env_args={"num_threads": THREADS})
    try:
        environments.reset()
        actions = some_actions(environments.spec)
        for _ in range(WARM_UP):
            environments.step(actions)
        start = time.perf_counter()
        for _ in range(steps // ENVS):
            policy(ENVS)
            environments.step(actions)
        return steps / (time.perf_counter() - start)
    finally:
        environments.close()


def as_ready(env: str, steps: int) -> float:
    """Those that have stepped are acted on while others still step."""
    environments = make_async_envpool(env, ENVS, THREADS)
    try:
        environments.reset()
        actions = some_actions(environments.spec)
        ready, done = list(range(ENVS)), 0
        start = time.perf_counter()
        while done < steps:
            policy(len(ready))
            environments.send(ready, actions[ready])
            ready = environments.receive()
            done += len(ready)
        return done / (time.perf_counter() - start)
    finally:
        environments.close()


def some_actions(spec: EnvSpec) -> np.ndarray:
    """One for each environment."""
    generator = np.random.default_rng(0)
    if spec.action.kind == "categorical":
        return generator.integers(0, spec.action.sizes[0], ENVS)
    return generator.uniform(-0.5, 0.5, (ENVS, *spec.action.shape)).astype(np.float32)


WEIGHTS = [np.random.default_rng(1).normal(size=(256, 256)).astype(np.float32) for _ in range(2)]


def policy(rows: int) -> None:
    """The time of a small network."""
    hidden = np.ones((rows, 256), np.float32)
    for weights in WEIGHTS:
        hidden = np.tanh(hidden @ weights)


if __name__ == "__main__":
    main()
