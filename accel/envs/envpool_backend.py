"""EnvPool's C++ environments, whose automatic resets are gymnasium's NEXT_STEP.

One difference remains: EnvPool reports a step that both terminates and reaches the time limit as truncated only.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping
from typing import Protocol, cast

from accel.envs.base import Seed
from accel.envs.lookup import creation_error, import_module
from accel.envs.seeding import env_seeds
from accel.envs.vectorised import NativeEnv, VectorisedEnv
from accel.errors import AccelError, EnvError

_REFUSED = {"batch_size", "env_seed", "env_type", "gym_reset_return_info", "task_id"}


class _EnvPoolModule(Protocol):
    def list_all_envs(self) -> list[str]: ...

    def make_gymnasium(self, task_id: str, **settings: object) -> NativeEnv: ...


class EnvPoolEnv(VectorisedEnv):
    """An EnvPool, synchronous and on one thread unless ``num_threads`` says otherwise.

    EnvPool takes seeds only when it is made, so that reseeding makes a new pool.

    Args:
        id: EnvPool's id; a namespace that EnvPool does not use (``ALE/Pong-v5``) is left out.
        num_envs: B.
        env_args: EnvPool's configuration of this environment.
        seed: of the first reset.
        squash_actions: whether Box actions arrive squashed to the bounds.
    Raises:
        MissingExtraError: envpool is not installed.
        EnvError: EnvPool lacks the id, refuses an argument, or the environment has an unsupported space.
    """

    def __init__(
        self, id: str, num_envs: int, *, env_args: Mapping[str, object], seed: Seed, squash_actions: bool = False
    ) -> None:
        self._envpool = cast(_EnvPoolModule, import_module("envpool", f"environment {id!r} with backend envpool"))
        self._task = _task(id, self._envpool.list_all_envs())
        if refused := sorted(_REFUSED & env_args.keys()):
            raise EnvError(f"environment {id!r}: EnvPool's {refused} are set by the pipeline: leave them out")
        self._settings = {"num_threads": 1, **env_args, "num_envs": num_envs}
        self._is_fresh = True
        pool = self._make_pool(seed)
        stack = _frame_stack(cast(Mapping[str, object], pool.config))  # type: ignore[attr-defined]
        try:
            super().__init__(
                pool,
                seed=seed,
                squash_actions=squash_actions,
                frame_stack=stack,
                frame_fill="repeat" if stack > 1 else "zero",
                implementation="envpool",
            )
        except AccelError as error:
            pool.close()
            raise type(error)(f"environment {id!r}: {error}") from error
        self._pool_seed = seed

    def _reset_native(self, seed: Seed | None) -> object:
        if seed is not None and not (self._is_fresh and seed == self._pool_seed):
            self._env.close()
            self._env = self._make_pool(seed)
            self._pool_seed = seed
        self._is_fresh = False
        observations, _ = self._env.reset()
        return observations

    def _make_pool(self, seed: Seed) -> NativeEnv:
        seeds = env_seeds(seed, cast(int, self._settings["num_envs"]))
        try:
            with warnings.catch_warnings():
                # Its spaces are float64 bounds cast to float32, about which gymnasium warns.
                warnings.simplefilter("ignore")
                pool = self._envpool.make_gymnasium(self._task, seed=seeds, **self._settings)
                _ = pool.single_observation_space, pool.single_action_space
        except Exception as error:
            what = f"environment {self._task!r} with backend envpool cannot be made"
            raise creation_error(what, error, f"making it with {self._settings}") from error
        return pool


def _frame_stack(config: Mapping[str, object]) -> int:
    """How many frames an observation stacks, where its resets fill the stack with the first frame.

    That holds for EnvPool's Atari, unless ``episodic_life``: after the loss of a life older frames stay in the stack.
    """
    is_atari = {"stack_num", "noop_max", "episodic_life"} <= config.keys()
    return cast(int, config["stack_num"]) if is_atari and not config["episodic_life"] else 1


def _task(id: str, known: list[str]) -> str:
    name = id if id in known else id.rpartition("/")[2]
    if name in known:
        return name
    matches = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(matches)}?" if matches else "backend gymnasium takes any gymnasium id"
    raise EnvError(f"EnvPool has no environment {id!r}: {hint}")
