"""Small environments with Dict observations and with action masks, in which a mistake is certain to be noticed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

STEPS = 10
ACTIONS = 12

gymnasium.register("DictTarget-v0", entry_point="tests.environments.structured:DictTargetEnv")
gymnasium.register("Masked-v0", entry_point="tests.environments.structured:MaskedEnv", kwargs={"where": "observation"})
gymnasium.register("InfoMasked-v0", entry_point="tests.environments.structured:MaskedEnv", kwargs={"where": "info"})
gymnasium.register("MultiMasked-v0", entry_point="tests.environments.structured:MultiMaskedEnv")
gymnasium.register("MaskedMemory-v0", entry_point="tests.environments.structured:MaskedMemoryEnv")

Step = tuple[Any, float, bool, bool, dict[str, Any]]


class DictTargetEnv(gymnasium.Env[Any, Any]):
    """Ten steps; the right one of four actions is told by an image, whose left or right half is bright, with a vector.

    The best return is 10. Who sees only one of the two returns 5, who sees nothing 2.5.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "camera": spaces.Box(0, 255, (8, 6, 1), np.uint8),
                "goal": spaces.Dict({"side": spaces.Discrete(2), "noise": spaces.Box(-1, 1, (3,), np.float64)}),
            }
        )
        self.action_space = spaces.Discrete(4, start=1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._draw(), {}

    def step(self, action: Any) -> Step:
        reward = float(action == 1 + 2 * self.half + self.side)
        self.t += 1
        return self._draw(), reward, self.t == STEPS, False, {}

    def _draw(self) -> Any:
        self.half, self.side = (int(bit) for bit in self.np_random.integers(0, 2, 2))
        image = self.np_random.integers(0, 60, (8, 6, 1)).astype(np.uint8)
        image[:, 3 * self.half : 3 * self.half + 3] += 180
        return {"camera": image, "goal": {"side": self.side, "noise": self.np_random.uniform(-1, 1, 3)}}


class MaskedEnv(gymnasium.Env[Any, Any]):
    """Ten steps; one even and one odd action are allowed, which only the mask tells, and the observation says which of
    the two pays 1. Any other action is an error, so that no policy gets through an episode without the mask."""

    action_space: spaces.Space[Any] = spaces.Discrete(ACTIONS)
    size = ACTIONS

    def __init__(self, where: str = "observation") -> None:
        self.in_info = where == "info"
        plain = spaces.Box(-1, 1, (1,), np.float32)
        masked = spaces.Dict({"state": plain, "action_mask": spaces.Box(0, 1, (self.size,), np.int8)})
        self.observation_space = plain if self.in_info else masked

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._draw()

    def step(self, action: Any) -> Step:
        reward = self._reward(action)
        self.t += 1
        over = self.t == STEPS
        observation, info = self._draw(over)
        return observation, reward, over, False, info

    def _reward(self, action: Any) -> float:
        if not self.mask[action]:
            raise ValueError(f"action {action} is masked: {self.mask}")
        return float(action % 2 == self.parity)

    def _draw_mask(self) -> None:
        self.mask = np.zeros(ACTIONS, np.int8)
        self.mask[2 * self.np_random.integers(0, ACTIONS // 2)] = 1
        self.mask[2 * self.np_random.integers(0, ACTIONS // 2) + 1] = 1

    def _draw(self, over: bool = False) -> tuple[Any, dict[str, Any]]:
        """An observation; at the end nothing is allowed any more, and info says nothing."""
        self.parity = int(self.np_random.integers(0, 2))
        self._draw_mask()
        state = np.array([2 * self.parity - 1], np.float32)
        if self.in_info:
            return state, {} if over else {"action_mask": self.mask}
        return {"state": state, "action_mask": np.zeros_like(self.mask) if over else self.mask}, {}


class MultiMaskedEnv(MaskedEnv):
    """The same with two components of 4 and 6 choices: one even and one odd choice of each is allowed."""

    action_space = spaces.MultiDiscrete([4, 6])
    size = 10

    def _reward(self, action: Any) -> float:
        for part, choice in zip(np.split(self.mask, [4]), action, strict=True):
            if not part[choice]:
                raise ValueError(f"choice {choice} is masked: {part}")
        return float(np.mean(np.asarray(action) % 2 == self.parity))

    def _draw_mask(self) -> None:
        self.mask = np.zeros(10, np.int8)
        for start, size in ((0, 4), (4, 6)):
            self.mask[start + 2 * self.np_random.integers(0, size // 2)] = 1
            self.mask[start + 2 * self.np_random.integers(0, size // 2) + 1] = 1


class MaskedMemoryEnv(MaskedEnv):
    """Four steps; the parity that pays is shown in the first only, so that a policy needs a memory, and the mask."""

    def _draw(self, over: bool = False) -> tuple[Any, dict[str, Any]]:
        if self.t == 0:
            self.cue = int(self.np_random.integers(0, 2))
        observation, info = super()._draw(over)
        self.parity = self.cue
        observation["state"][:] = (2 * self.cue - 1) * (self.t == 0)
        return observation, info
