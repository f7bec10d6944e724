"""Action masks that environments give in ``info``, or by sb3-contrib's method ``action_masks``: moved into the
observation, where they travel with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from accel.envs.spaces import ACTION_MASK

Env = gymnasium.Env[object, object]
Space = spaces.Space[object]
_OBSERVATION = "observations"


class MaskFromInfo(gymnasium.Wrapper[object, object, object, object]):
    """A Dict of the observation, as ``observations`` or with its own entries, and ``info["action_mask"]``, or what
    the environment's ``action_masks()`` gives."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._masks = _method(env)
        self.observation_space = masked_space(env.observation_space, env.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[object, dict[str, Any]]:
        """The first observation with its mask."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(observation, info), info

    def step(self, action: object) -> tuple[object, Any, bool, bool, dict[str, Any]]:
        """The next observation with its mask."""
        observation, reward, ends, cuts, info = self.env.step(action)
        return self._with_mask(observation, info), reward, ends, cuts, info

    def _with_mask(self, observation: object, info: Mapping[str, object]) -> object:
        if self._masks is not None:
            info = {ACTION_MASK: np.asarray(self._masks()).reshape(-1), **info}
        return with_mask(observation, info, self.env.observation_space, self.env.action_space)


def _method(env: Env) -> Callable[[], npt.ArrayLike] | None:
    try:
        found: object = env.get_wrapper_attr("action_masks")
    except AttributeError:
        return None
    return cast("Callable[[], npt.ArrayLike]", found) if callable(found) else None


class _WithoutMasks(gymnasium.Wrapper[object, object, object, object]):
    action_masks = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[object, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, {key: value for key, value in info.items() if key != ACTION_MASK}


without_masks = _WithoutMasks
"""A wrapper: masks in ``info`` or by a method are not looked at, and the observation stays as it is."""


def masked_space(observation: Space, action: Space) -> Space:
    """The space of what ``with_mask`` gives."""
    entries = observation.spaces if isinstance(observation, spaces.Dict) else {_OBSERVATION: observation}
    return cast(Space, spaces.Dict({**entries, ACTION_MASK: spaces.MultiBinary(_actions(action))}))


def with_mask(observation: object, info: Mapping[str, object], space: Space, action: Space) -> object:
    """The observation with the mask of its info; without one, as some environments are at an episode's end, zeros."""
    mask = info.get(ACTION_MASK)
    if mask is None:
        mask = np.zeros(_actions(action), np.int8)
    elif isinstance(mask, tuple):
        mask = np.concatenate([np.reshape(part, -1) for part in mask])
    named = cast("Mapping[str, object]", observation) if isinstance(space, spaces.Dict) else {_OBSERVATION: observation}
    return {**named, ACTION_MASK: mask}


def announces_masks(env: Env, seed: int) -> bool:
    """Whether its first info, or a method, has a mask of its discrete actions, and its observation has none.

    One reset more than an actor needs; the next one has the same seed, so that nothing else changes.
    """
    observation = env.observation_space
    has_its_own = isinstance(observation, spaces.Dict) and ACTION_MASK in observation.spaces
    if has_its_own or not isinstance(env.action_space, spaces.Discrete | spaces.MultiDiscrete):
        return False
    try:
        return _method(env) is not None or ACTION_MASK in env.reset(seed=seed)[1]
    except Exception:  # noqa: BLE001 - the environment's own; the reset that counts raises it again
        return False


def _actions(space: Space) -> int:
    return int(space.n) if isinstance(space, spaces.Discrete) else int(np.sum(cast(spaces.MultiDiscrete, space).nvec))
