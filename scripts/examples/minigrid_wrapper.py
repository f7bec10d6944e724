"""A wrapper that turns MiniGrid's observation, whose mission is a text, into one that a network can take.

    pip install minigrid
    accel train --env minigrid:MiniGrid-Empty-5x5-v0 --wrapper minigrid_wrapper:view --network impala-resnet

with this folder on ``PYTHONPATH``. ``minigrid.wrappers:ImgObsWrapper`` does with the image alone.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

KINDS, COLOURS, STATES = 11, 6, 3


class View(gymnasium.ObservationWrapper[Any, Any, Any]):
    """The objects of MiniGrid's 7 by 7 view one-hot in 20 planes of an image, and the direction as a vector.

    MiniGrid gives each field as three small numbers (object, colour, state), which are no brightnesses.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        height, width, _ = env.observation_space["image"].shape  # type: ignore[index]
        self.observation_space = spaces.Dict(
            {
                "view": spaces.Box(0, 255, (KINDS + COLOURS + STATES, height, width), np.uint8),
                "direction": env.observation_space["direction"],  # type: ignore[index]
            }
        )

    def observation(self, observation: dict[str, Any]) -> dict[str, object]:
        """Drop the mission, spread the numbers over planes."""
        planes = [
            np.eye(size, dtype=np.uint8)[observation["image"][..., i]] * 255
            for i, size in enumerate((KINDS, COLOURS, STATES))
        ]
        view = np.moveaxis(np.concatenate(planes, axis=-1), -1, 0)
        return {"view": view, "direction": observation["direction"]}


def view(env: gymnasium.Env[Any, Any]) -> View:
    """What ``--wrapper minigrid_wrapper:view`` calls."""
    return View(env)
