"""An environment that gives what a test says, of whatever form."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
ZEROS = np.zeros(3, np.float32)


class Given(gymnasium.Env[Any, Any]):
    """Gives ``first`` at a reset and ``result`` in each step, or raises it."""

    action_space = spaces.Discrete(2)

    def __init__(self, result: object = None, first: object = (ZEROS, {}), space: spaces.Space[Any] = VECTOR) -> None:
        self.observation_space, self.first, self.result = space, first, result

    def reset(self, **_: object) -> Any:
        return self.first

    def step(self, _: object) -> Any:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def shown(observation: object) -> tuple[object, float, bool, bool, dict[str, Any]]:
    """A step's result with this observation."""
    return observation, 1.0, False, False, {}
