"""EnvPool's C++ environments, whose automatic resets are gymnasium's NEXT_STEP: together, or each as it is ready.

One difference to gymnasium remains: EnvPool reports a step that both terminates and reaches the time limit as truncated
only.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from accel.envs.base import Actions, AsyncEnvironments, EnvRequest, Observations, Seed
from accel.envs.lookup import created, import_module, suggestion
from accel.envs.observations import settle_masks
from accel.envs.seeding import env_seeds
from accel.envs.vectorised import NativeEnv, VectorisedEnv, select
from accel.errors import AccelError, EnvError

_REFUSED = {"batch_size", "env_seed", "env_type", "gym_reset_return_info", "task_id"}
_CLOSE_S = 5.0

_Array: TypeAlias = npt.NDArray[np.generic]
_State: TypeAlias = tuple[object, _Array, _Array, _Array, Mapping[str, Any]]


class EnvPoolEnv(VectorisedEnv):
    """An EnvPool, synchronous and on one thread unless ``num_threads`` says otherwise.

    EnvPool takes seeds only when it is made, so that reseeding makes a new pool.

    Args:
        request: its arguments are EnvPool's configuration of this environment. Of its id a namespace that EnvPool does
            not use (``ALE/Pong-v5``) is left out. It has no wrappers, and draws nothing.
        threads: step in EnvPool's asynchronous mode, on so many threads, for ``AsyncEnvPool``; 0: all together.
    Raises:
        MissingExtraError: envpool is not installed.
        EnvError: EnvPool lacks the id, refuses an argument, a wrapper or pictures, or the environment has an
            unsupported space.
    """

    def __init__(self, request: EnvRequest, threads: int = 0) -> None:
        if request.wrappers or request.render:
            what = "wrappers apply to" if request.wrappers else "pictures are drawn by"
            raise EnvError(f"{what} single environments, and EnvPool has none: use backend gymnasium")
        who = f"environment {request.id!r}"
        self._envpool = import_module("envpool", f"{who} with backend envpool")
        self._task = _task(request.id, self._envpool.list_all_envs())
        if refused := sorted(_REFUSED & request.args.keys()):
            raise EnvError(f"{who}: EnvPool's {refused} are set by the pipeline: leave them out")
        how = {"num_threads": threads, "batch_size": 1} if threads else {}
        self._settings = {"num_threads": 1, **request.args, "num_envs": request.num_envs, **how}
        self._is_fresh = True
        pool = self._make_pool(request.seed)
        stack = _frame_stack(cast(Mapping[str, object], pool.config))  # type: ignore[attr-defined]
        try:
            super().__init__(
                pool,
                seed=request.seed,
                squash_actions=request.squash_actions,
                frame_stack=stack,
                frame_fill="repeat" if stack > 1 else "zero",
                implementation="envpool",
            )
        except AccelError as error:
            pool.close()
            raise type(error)(f"{who}: {error}") from error
        self._pool_seed = request.seed

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

        def make() -> NativeEnv:
            pool: NativeEnv = self._envpool.make_gymnasium(self._task, seed=seeds, **self._settings)
            _ = pool.single_observation_space, pool.single_action_space
            return pool

        with warnings.catch_warnings():
            # Its spaces are float64 bounds cast to float32, about which gymnasium warns.
            warnings.simplefilter("ignore")
            what = f"environment {self._task!r} with backend envpool cannot be made"
            return cast(NativeEnv, created(what, make, self._settings))


class AsyncEnvPool(AsyncEnvironments):
    """EnvPool's asynchronous mode: every environment is a group of its own.

    EnvPool's ``recv`` waits for as many environments as it was made to return, and cannot be asked whether it would.
    So it returns one at a time (``batch_size=1``) to a thread of its own, and the actor takes all that this thread has:
    the policy runs on more rows at once the longer it takes. With a larger ``batch_size``, the last environments of an
    unroll would never be received, as the others wait for them.

    A step that never ends is ``receive``'s, and noticed by whoever watches the actor's activity.

    Args:
        request: as for ``EnvPoolEnv``. threads: that step the environments.
    Raises:
        MissingExtraError, EnvError: as for ``EnvPoolEnv``.
    """

    rows = 1

    def __init__(self, request: EnvRequest, threads: int) -> None:
        self._vector = vector = EnvPoolEnv(request, threads)
        num_envs = request.num_envs
        self._pool: Any = vector._env
        self._layout, self._to_env = vector.layout, vector._to_env
        self.spec, self.groups = vector.spec, num_envs
        self.observations, self.rewards = vector.layout.empty(num_envs), np.zeros(num_envs, np.float32)
        self.terminated, self.truncated = np.zeros(num_envs, np.bool_), np.zeros(num_envs, np.bool_)
        self._asked: SimpleQueue[bool] = SimpleQueue()
        self._states: SimpleQueue[_State | Exception] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="envpool", daemon=True)
        self._reader.start()

    def reset(self) -> Observations:
        """First episodes everywhere; see ``AsyncEnvironments``."""
        self._pool.async_reset()
        self._expect(self.groups)
        for _ in range(self.groups):
            self._take(self._states.get(), is_first=True)
        return self.observations

    def send(self, groups: Sequence[int], actions: Actions) -> None:
        """Actions for some environments; see ``AsyncEnvironments``."""
        self._pool.send(self._to_env(actions), np.asarray(groups, np.int32))
        self._expect(len(groups))

    def receive(self) -> list[int]:
        """Environments that have taken their step, one at least; see ``AsyncEnvironments``."""
        ready = [self._take(self._states.get())]
        while not self._states.empty():
            ready.append(self._take(self._states.get()))
        return ready

    def close(self) -> None:
        """Release the environments, unless one of them hangs; more calls do nothing."""
        self._asked.put(False)
        self._reader.join(_CLOSE_S)
        if not self._reader.is_alive():
            self._vector.close()

    def _expect(self, states: int) -> None:
        for _ in range(states):
            self._asked.put(True)

    def _read(self) -> None:
        while self._asked.get():
            try:
                self._states.put(self._pool.recv(reset=False))
            except Exception as error:  # noqa: BLE001 - raised where it is taken
                self._states.put(error)

    def _take(self, state: _State | Exception, is_first: bool = False) -> int:
        """Store what one environment's step, or its reset, gave; returns its number."""
        if isinstance(state, Exception):
            raise EnvError(f"EnvPool failed: {type(state).__name__}: {state}") from state
        observations, rewards, terminated, truncated, info = state
        number = int(info["env_id"][0])
        row = slice(number, number + 1)
        if is_first:
            self._layout.check(select(observations, 0))
        self._layout.write(observations, self.observations[row])
        self.rewards[row], self.terminated[row], self.truncated[row] = rewards, terminated, truncated
        if self.spec.action.masked:
            acts = np.logical_not(self.terminated[row] | self.truncated[row])
            settle_masks(self.spec, self.observations[row], acts)
        return number


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
    hint = suggestion(name, known, "backend gymnasium takes any gymnasium id")
    raise EnvError(f"EnvPool has no environment {id!r}: {hint}")
