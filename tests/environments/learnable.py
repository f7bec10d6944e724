"""Environments that are learned in a second, whose best and whose random return are known in closed form."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

gymnasium.register("Targets-v0", entry_point="tests.environments.learnable:TargetEnv", kwargs={"box": False})
gymnasium.register(
    "RichTargets-v0", entry_point="tests.environments.learnable:TargetEnv", kwargs={"box": False, "pays": 2.0}
)
gymnasium.register("BoxTarget-v0", entry_point="tests.environments.learnable:TargetEnv", kwargs={"box": True})
gymnasium.register("Memory-v0", entry_point="tests.environments.learnable:MemoryEnv")

STEPS = 10
WAIT = 4


class TargetEnv(gymnasium.Env[Any, Any]):
    """Ten steps, each of which shows a target and pays for hitting it: the best return is 10.

    Discrete: two components of three choices each, half a point for each that is right; 10/3 at random.
    Box: 1 − |a − target|² of two; doing nothing gives 10/3. ``pays`` is a factor on all of it.
    """

    def __init__(self, box: bool, pays: float = 1.0) -> None:
        self.box, self.pays = box, pays
        self.observation_space = spaces.Box(-1, 1, (2 if box else 6,), np.float32)
        self.action_space = spaces.Box(-2, 2, (2,), np.float32) if box else spaces.MultiDiscrete([3, 3])
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        miss = np.square(action - self.target).sum() if self.box else (action != self.target).mean()
        self.t += 1
        return self._draw(), self.pays * float(1 - miss), self.t == STEPS, False, {}

    def _draw(self) -> Any:
        if self.box:
            self.target = self.np_random.uniform(-1, 1, 2).astype(np.float32)
            return self.target
        self.target = self.np_random.integers(0, 3, 2)
        return np.eye(3, dtype=np.float32)[self.target].reshape(6)


class MemoryEnv(gymnasium.Env[Any, Any]):
    """Shows −1 or 1 once, then nothing for some steps, then pays 1 for the action that belongs to what was shown.

    Whoever remembers returns 1, whoever does not 1/2, whatever it does.
    """

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        self.cue = int(self.np_random.integers(0, 2))
        return np.array([2 * self.cue - 1, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        over = self.t == WAIT
        reward = float(over and action == self.cue)
        return np.array([0, self.t / WAIT], np.float32), reward, over, False, {}
