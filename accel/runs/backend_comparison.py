"""Whether EnvPool steps a run's environments faster than the backend it used: both timed in turns on this machine.

Only environments that EnvPool has by the same id, with the same spaces, are compared, and only where the run gives them
neither arguments nor wrappers, which EnvPool does not know: nobody's own environment is started for a suggestion.
"""

from __future__ import annotations

import importlib.util
from contextlib import closing
from statistics import median
from time import perf_counter

import numpy as np

from accel.envs.base import Actions, VectorEnvironment
from accel.envs.factory import make_vector_env
from accel.envs.spaces import ActionSpec
from accel.errors import AccelError
from accel.runs.summary import BackendComparison

ROUNDS = 15
ROUND_S = 0.02
_LARGEST_ACTION = 1.0


def compare_backends(env: str, batch: int, *, squash_actions: bool = False) -> BackendComparison | None:
    """Time an environment on gymnasium and on EnvPool; takes about three seconds, most of them EnvPool's import.

    Args:
        env: its id. batch: environments stepped together. squash_actions: see ``make_vector_env``.
    Returns:
        None where EnvPool is not installed, lacks the environment, or has other spaces.
    """
    if importlib.util.find_spec("envpool") is None:
        return None
    try:
        pool = make_vector_env(env, batch, backend="envpool", squash_actions=squash_actions)
    except AccelError:
        return None
    with closing(pool), closing(make_vector_env(env, batch, squash_actions=squash_actions)) as plain:
        if _spaces(plain) != _spaces(pool):
            return None
        actions = _random_actions(plain.spec.action, batch)
        samples: dict[VectorEnvironment, list[float]] = {plain: [], pool: []}
        for environment in samples:
            environment.reset()
            _step_us(environment, actions)
        for turn in range(ROUNDS):
            for environment in (plain, pool) if turn % 2 else (pool, plain):
                samples[environment].append(_step_us(environment, actions))
        return BackendComparison(batch, median(samples[plain]), median(samples[pool]))


def _spaces(environment: VectorEnvironment) -> tuple[object, ...]:
    spec = environment.spec
    return spec.observation_shape, spec.observation_dtype, spec.action.kind, spec.action.sizes


def _random_actions(action: ActionSpec, batch: int) -> Actions:
    rng = np.random.default_rng(0)
    if action.kind == "gaussian":
        low, high = (np.clip(bounds, -_LARGEST_ACTION, _LARGEST_ACTION) for bounds in (action.low, action.high))
        return rng.uniform(low, high, (64, batch, *action.shape)).astype(np.float32)
    sizes = action.sizes[0] if action.kind == "categorical" else action.sizes
    return rng.integers(0, sizes, (64, batch, *action.shape))


def _step_us(environment: VectorEnvironment, actions: Actions) -> float:
    steps, began = 0, perf_counter()
    while perf_counter() - began < ROUND_S:
        environment.step(actions[steps % len(actions)])
        steps += 1
    return 1e6 * (perf_counter() - began) / steps
