"""Environments that wait for their test, in processes that it cannot reach otherwise."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium

GATE = "HELD_GATE"
HELD_AFTER = 300


class Held(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes no more steps after some until there is a file, whose path is in the process's environment."""

    steps = 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        while self.steps > HELD_AFTER and not Path(os.environ[GATE]).exists():
            time.sleep(0.02)
        return super().step(action)
