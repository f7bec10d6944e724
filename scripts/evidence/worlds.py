"""CartPole without its velocities, for a training case of ``cases.toml``.

accel train --env scripts.evidence.worlds:PositionsOfCartPole-v0 --algorithm r2d2
"""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces

gymnasium.register("PositionsOfCartPole-v0", entry_point="scripts.evidence.worlds:make_positions")


def make_positions() -> gymnasium.Env[object, object]:
    """CartPole-v1 that shows the cart's place and the pole's angle alone: their velocities must be remembered."""
    env = gymnasium.make("CartPole-v1")
    shown = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    return gymnasium.wrappers.TransformObservation(env, lambda observation: observation[[0, 2]], shown)
