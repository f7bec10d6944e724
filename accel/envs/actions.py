"""Action spaces as an ActionSpec, and sampled actions as what the environment's own space takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from accel.envs.base import Actions
from accel.envs.spaces import ActionSpec
from accel.errors import EnvError

EnvActions = npt.NDArray[np.generic]
_SUPPORTED = "Discrete, one-dimensional MultiDiscrete and floating-point Box actions work; add a wrapper"


def action_spec(space: spaces.Space[object], *, squash: bool) -> ActionSpec:
    """The action space, as the rest of the pipeline describes it.

    Args:
        space: Discrete (any start), one-dimensional MultiDiscrete, or floating-point Box of any shape and bounds.
        squash: Box only: actions will be tanh(sample) rescaled to the bounds, which must be finite.
    Raises:
        EnvError: names the space and what would work.
    """
    if isinstance(space, spaces.Box):
        return _box_spec(space, squash)
    if squash:
        raise EnvError(
            f"squashed actions need a Box action space, and this environment has {space}: leave --squash-actions off; "
            "d4pg, sac and td3, which have it on, learn other environments"
        )
    if isinstance(space, spaces.Discrete):
        return ActionSpec("categorical", (int(space.n),))
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return ActionSpec("multi_categorical", tuple(int(n) for n in space.nvec))
    raise EnvError(f"the action space {space} is not supported: {_SUPPORTED}")


def _box_spec(space: spaces.Box, squash: bool) -> ActionSpec:
    if not np.issubdtype(space.dtype, np.floating):
        raise EnvError(f"the action space {space} has dtype {space.dtype}: {_SUPPORTED}")
    low, high = (bound.reshape(-1).astype(np.float64) for bound in (space.low, space.high))
    if not low.size:
        raise EnvError(f"the action space {space} holds no numbers")
    if squash and not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise EnvError(
            f"squashed actions need finite bounds, and this environment has {space}: leave --squash-actions off, or "
            "bound its actions with a wrapper for d4pg, sac and td3"
        )
    return ActionSpec("gaussian", (low.size,), tuple(low.tolist()), tuple(high.tolist()), squash)


def action_converter(space: spaces.Space[object]) -> Callable[[Actions], EnvActions]:
    """A function from actions [B, *ActionSpec.shape] to a fresh batch [B, *space.shape] in the space's own dtype.

    The space is one that ``action_spec`` takes. Fresh, because environments may clip or scale the action they are given
    in place.
    """
    if isinstance(space, spaces.Box):
        shape, dtype = (-1, *space.shape), space.dtype
        if dtype != np.float32:  # bounds that actions were clipped to are float32, rounded to either side
            return lambda actions: np.clip(actions.astype(dtype).reshape(shape), space.low, space.high)
        return lambda actions: actions.astype(dtype).reshape(shape)
    discrete = cast("spaces.Discrete | spaces.MultiDiscrete", space)
    start = np.asarray(discrete.start, dtype=discrete.dtype)
    if not start.any():
        return lambda actions: actions.astype(start.dtype)
    return lambda actions: cast(EnvActions, actions.astype(start.dtype) + start)
