"""A wrapper that keeps one actor from ever answering while another one fails."""

from __future__ import annotations

import time
from typing import Any

import gymnasium

from tests.environments.troubled import SLOW_RANK, rank


class Speechless(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Is never made in one actor, and cannot be made in others."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        if rank() == SLOW_RANK:
            time.sleep(3600)
        raise ValueError("the simulator is out of order")
