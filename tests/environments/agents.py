"""Parallel environments in PettingZoo's form, whose agents share a policy: what it stores can be told exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

STEPS = 6


class Guides:
    """Three agents; each is shown a bit and paid 1 for the action that equals it. Agent 2 is gone after two steps.

    The best return is 6 for agents 0 and 1, and 2 for agent 2. The first observation of agent i begins with i.
    """

    possible_agents = ("a", "b", "c")

    def __init__(self, mask: str = "", odd: bool = False) -> None:
        self.mask, self.odd = mask, odd
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        plain = spaces.Box(-1, 3, (3 if self.odd and agent == "b" else 2,), np.float32)
        return spaces.Dict({"x": plain, "action_mask": spaces.MultiBinary(3)}) if self.mask == "observation" else plain

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3 if self.mask else 2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.t, self.agents = 0, list(self.possible_agents)
        return self._draw()

    def step(self, actions: dict[str, Any]) -> Any:
        assert set(actions) == set(self.agents)
        for agent, action in actions.items():
            if self.mask and action == 2:
                raise ValueError(f"agent {agent} was not allowed to take action 2")
        rewards = {agent: float(action == self.bits[agent]) for agent, action in actions.items()}
        self.t += 1
        ends = {agent: agent == "c" and self.t == 2 for agent in self.agents}
        cuts = dict.fromkeys(self.agents, self.t == STEPS)
        observations, infos = self._draw()
        self.agents = [agent for agent in self.agents if not (ends[agent] or cuts[agent])]
        return observations, rewards, ends, cuts, infos

    def _draw(self) -> Any:
        self.bits = {agent: int(self.rng.integers(0, 2)) for agent in self.agents}
        plain = {a: np.array([self.possible_agents.index(a), 2 * b - 1], np.float32) for a, b in self.bits.items()}
        mask = np.array([1, 1, 0], np.int8)
        if self.mask == "observation":
            return {a: {"x": x, "action_mask": mask} for a, x in plain.items()}, {a: {} for a in plain}
        return plain, {a: {"action_mask": mask} if self.mask else {} for a in plain}

    def close(self) -> None:
        """Nothing to close."""


def parallel_env(mask: str = "", odd: bool = False) -> Guides:
    """Makes one."""
    return Guides(mask, odd)
