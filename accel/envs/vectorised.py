"""An environment's own vector implementation, which resets in gymnasium's NEXT_STEP or SAME_STEP mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode as GymnasiumMode
from gymnasium.vector import VectorEnv

from accel.envs.actions import action_converter, action_spec
from accel.envs.base import (
    Actions,
    Flags,
    Implementation,
    Observations,
    Seed,
    StepResult,
    VectorEnvironment,
    check_numbers,
)
from accel.envs.observations import ObservationLayout, observation_layout, settle_masks
from accel.envs.seeding import env_seeds
from accel.envs.spaces import AutoresetMode, FrameFill
from accel.errors import EnvError

NativeEnv: TypeAlias = VectorEnv[object, object, npt.NDArray[np.generic]]


class VectorisedEnv(VectorEnvironment):
    """Adapts a ``gymnasium.vector.VectorEnv``.

    Args:
        env: the vector environment; its metadata must declare ``autoreset_mode``.
        seed: of the first reset. squash_actions: see ``make_vector_env``. frame_stack, frame_fill: see ``EnvSpec``.
    Raises:
        EnvError: a space is not supported or the autoreset mode is not declared.
    """

    def __init__(
        self,
        env: NativeEnv,
        *,
        seed: Seed,
        squash_actions: bool = False,
        frame_stack: int = 1,
        frame_fill: FrameFill = "zero",
        implementation: Implementation = "vector",
    ) -> None:
        self.num_envs = env.num_envs
        self.implementation = implementation
        self._env = env
        self._seed = seed
        action = action_spec(env.single_action_space, squash=squash_actions)
        self.layout: ObservationLayout = observation_layout(env.single_observation_space, action)
        self.action_space, self.observation_space = env.single_action_space, env.single_observation_space
        self.metadata = env.metadata
        self._to_env = action_converter(env.single_action_space)
        self.spec = self.layout.spec(action, autoreset_of(env), frame_stack, frame_fill)
        self._observations = self.layout.empty(self.num_envs)
        if self.spec.autoreset == "same_step":
            self._final = self.layout.empty(self.num_envs)
        self._is_checked = self._is_closed = False

    def reset(self, seed: Seed | None = None) -> Observations:
        """New episodes everywhere; see VectorEnvironment."""
        observations = self._reset_native(self._take_seed(seed))
        self._check(observations)
        rows = self._convert(observations)
        settle_masks(self.spec, rows, np.ones(self.num_envs, np.bool_))
        return rows

    def step(self, actions: Actions) -> StepResult:
        """One action everywhere; see VectorEnvironment."""
        observations, rewards, terminated, truncated, infos = self._env.step(self._to_env(actions))
        ends, cuts = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        if self._final is not None and (ends | cuts).any():
            self._keep_final(infos, ends | cuts, self._final)
        if not self._is_checked:
            self._check(observations)
            check_numbers(np.atleast_1d(np.asarray(rewards))[0])
            self._is_checked = True
        rows = self._convert(observations)
        settle_masks(self.spec, rows, np.logical_not(ends | cuts) if self._final is None else np.ones_like(ends))
        return rows, np.asarray(rewards, np.float32), ends, cuts

    def close(self) -> None:
        """Close the vector environment; more calls do nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._env.close()

    def _reset_native(self, seed: Seed | None) -> object:
        """Gymnasium's interface takes one integer, from which the vector environment seeds all of its rows."""
        observations, _ = self._env.reset(seed=None if seed is None else env_seeds(seed, self.num_envs)[0])
        return observations

    def _check(self, observations: object) -> None:
        for i in range(self.num_envs):
            self.layout.check(select(observations, i))

    def _convert(self, observations: object) -> Observations:
        view = self.layout.view_batch(observations)
        if view is not None:
            return view
        self.layout.write(observations, self._observations)
        return self._observations

    def _keep_final(self, infos: Mapping[str, object], finished: Flags, final: Observations) -> None:
        """Store the finished episodes' last observations."""
        if "final_obs" not in infos:
            raise EnvError(
                f"the vector environment {self._env} declares SAME_STEP but gives no infos['final_obs'] for a finished "
                "episode, so that truncated episodes cannot be bootstrapped: correct it, or use single environments"
            )
        for i in np.flatnonzero(finished):
            self.layout.write(select(infos["final_obs"], int(i)), final[i])
        settle_masks(self.spec, final, np.zeros(self.num_envs, np.bool_))


def autoreset_of(env: NativeEnv) -> AutoresetMode:
    """How a vector environment resets. Raises EnvError: it does not say, or does not do so itself."""
    declared = env.metadata.get("autoreset_mode")
    if declared not in (GymnasiumMode.NEXT_STEP, GymnasiumMode.SAME_STEP):
        raise EnvError(
            f"the vector environment {env} has metadata['autoreset_mode'] = {declared!r}, and must declare "
            "gymnasium.vector.AutoresetMode.NEXT_STEP or SAME_STEP: correct it, or use single environments"
        )
    return "next_step" if declared == GymnasiumMode.NEXT_STEP else "same_step"


def select(observations: object, i: int) -> object:
    """Environment i's observation out of a batch, in which Dict and Tuple are structures of batches or of objects."""
    if isinstance(observations, Mapping):
        return {key: select(value, i) for key, value in observations.items()}
    if isinstance(observations, tuple):
        return tuple(select(value, i) for value in observations)
    return cast(npt.NDArray[np.generic], observations)[i]
