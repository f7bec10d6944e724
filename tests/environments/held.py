"""Environments that wait for their test, in processes that it cannot reach otherwise."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

GATE = "HELD_GATE"
HELD_AFTER = 300
EPISODE = 10

gymnasium.register("Paying-v0", entry_point="tests.environments.held:PayingEnv", kwargs={"pay": 1.0})
gymnasium.register("Miserly-v0", entry_point="tests.environments.held:PayingEnv", kwargs={"pay": 0.0})


class Held(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes no more steps after some until there is a file, whose path is in the process's environment."""

    steps = 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        while self.steps > HELD_AFTER and not Path(os.environ[GATE]).exists():
            time.sleep(0.02)
        return super().step(action)


class PayingEnv(gymnasium.Env[Any, Any]):
    """Episodes of ten steps that all pay the same, whatever is done.

    One that pays nothing takes no more steps after some until a signal has come.

    Attributes:
        signals: this process's: where they are read from, and those that were.
    """

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    signals: ClassVar[list[int]] = []

    def __init__(self, pay: float) -> None:
        self.pay = pay
        self.t = self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.steps += 1
        if not self.pay:
            self._hold()
        return np.zeros(2, np.float32), self.pay, self.t == EPISODE, False, {}

    def _hold(self) -> None:
        """Signals that this process handles are noted from the first step on; their handlers are called as ever."""
        if not self.signals:
            reading, writing = os.pipe()
            os.set_blocking(writing, False)
            signal.set_wakeup_fd(writing)
            self.signals.append(reading)
        if self.steps > HELD_AFTER and len(self.signals) == 1:
            self.signals += os.read(self.signals[0], 1)
