"""Images of floats or booleans as the bytes that convolutional networks take here: a wrapper for ``--wrapper``."""

from __future__ import annotations

from typing import cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from accel.errors import EnvError

_LEAST_SIDE = 32  # of an array of two dimensions that counts as an image


def looks_like_image(space: spaces.Space[object]) -> bool:
    """Whether ``space`` is an image by its shape but not of bytes: three dimensions, or two long ones."""
    if not isinstance(space, spaces.Box) or space.dtype == np.uint8:
        return False
    return len(space.shape) > 2 or (len(space.shape) == 2 and min(space.shape) >= _LEAST_SIDE)


class ImageBytes(gymnasium.ObservationWrapper[object, object, object]):
    """Shows Box observations, or those of a Dict that look like images, as uint8: ``low`` is 0 and ``high`` 255.

    accel train --env ID --wrapper accel.envs.images:ImageBytes

    Raises:
        EnvError: there is nothing to convert, or a bound is not finite.
    """

    def __init__(self, env: gymnasium.Env[object, object]) -> None:
        super().__init__(env)
        space = env.observation_space
        entries = dict(space.spaces) if isinstance(space, spaces.Dict) else {"": space}
        self._images = {name: cast(spaces.Box, entry) for name, entry in entries.items() if looks_like_image(entry)}
        if not self._images:
            raise EnvError(f"ImageBytes finds no image in the observation space {space}: leave the wrapper out")
        for image in self._images.values():
            if not image.is_bounded():
                raise EnvError(
                    f"ImageBytes maps [low, high] to [0, 255], and {image} has no finite bounds: "
                    "give it some, with gymnasium.wrappers.TransformObservation"
                )
        shown = entries | {name: spaces.Box(0, 255, image.shape, np.uint8) for name, image in self._images.items()}
        self.observation_space = spaces.Dict(shown) if isinstance(space, spaces.Dict) else shown[""]

    def observation(self, observation: object) -> object:
        """The observation with its images as bytes."""
        if "" in self._images:
            return _as_bytes(observation, self._images[""])
        parts = dict(cast("dict[str, object]", observation))
        return parts | {name: _as_bytes(parts[name], image) for name, image in self._images.items()}


def _as_bytes(values: object, space: spaces.Box) -> npt.NDArray[np.uint8]:
    low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    scaled = (np.asarray(values, np.float32) - low) * (255.0 / np.maximum(high - low, np.finfo(np.float32).tiny))
    image: npt.NDArray[np.uint8] = np.clip(np.rint(scaled), 0, 255).astype(np.uint8)
    return image
