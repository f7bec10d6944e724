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
gymnasium.register(
    "Bandit-v0", entry_point="tests.environments.learnable:GambleEnv",
    kwargs={"certain": 10.0, "prize": 24.0, "odds": 0.5, "steps": 1},
)  # fmt: skip
gymnasium.register(
    "Sure-v0", entry_point="tests.environments.learnable:GambleEnv",
    kwargs={"certain": 11.0, "prize": 40.0, "odds": 0.25, "steps": 1},
)  # fmt: skip
gymnasium.register(
    "Gamble-v0", entry_point="tests.environments.learnable:GambleEnv",
    kwargs={"certain": 6.0, "prize": 40.0, "odds": 0.25, "steps": 4},
)  # fmt: skip

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


class GambleEnv(gymnasium.Env[Any, Any]):
    """Action 0 ends an episode with a certain pay; action 1, so many times, with a prize at odds, of higher mean.

    Observations are the step and a random number.
    """

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, certain: float, prize: float, odds: float, steps: int) -> None:
        self.certain, self.prize, self.odds, self.steps = certain, prize, odds, steps
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == 0:
            return self._observation(), self.certain, True, False, {}
        self.t += 1
        over = self.t == self.steps
        reward = self.prize * float(over and self.np_random.random() < self.odds)
        return self._observation(), reward, over, False, {}

    def _observation(self) -> Any:
        return np.array([self.t / self.steps, self.np_random.uniform(-1, 1)], np.float32)
