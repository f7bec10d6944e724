"""Images that are not of bytes are told, and the wrapper makes bytes of them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from accel.envs.images import ImageBytes
from accel.envs.observations import observation_layout
from accel.errors import EnvError
from tests.environments.given import Given

FLOATS = spaces.Box(-1, 1, (8, 9, 3), np.float32)
FLAGS = spaces.Box(0.0, 1.0, (10, 10, 4), bool)  # type: ignore[arg-type]
GREY = spaces.Box(0, 1, (84, 84), np.float32)
HISTORY = spaces.Box(-np.inf, np.inf, (4, 60), np.float32)


def shows(space: spaces.Space[Any]) -> Given:
    """Shows the samples of a space."""
    return Given(first=(space.sample(), {}), space=space)


@pytest.mark.parametrize("space", [FLOATS, FLAGS, GREY, spaces.Dict({"camera": FLOATS, "speed": HISTORY})])
def test_an_image_that_is_not_of_bytes_is_never_flattened(space: spaces.Space[Any]) -> None:
    with pytest.raises(EnvError, match=r"--wrapper accel\.envs\.images:ImageBytes"):
        observation_layout(space)
    wrapped = ImageBytes(shows(space))
    observation, _ = wrapped.reset()
    layout = observation_layout(wrapped.observation_space)
    layout.check(observation)
    assert layout.dtype == "uint8"
    assert observation_layout(gymnasium.wrappers.FlattenObservation(shows(space)).observation_space).shape == (
        spaces.flatdim(space),
    )


def test_a_history_of_vectors_is_a_vector() -> None:
    assert observation_layout(HISTORY).shape == (240,)


def test_low_becomes_0_and_high_255() -> None:
    env = ImageBytes(shows(spaces.Dict({"camera": FLOATS, "speed": HISTORY})))
    camera = np.linspace(-1, 1, FLOATS.shape[0] * FLOATS.shape[1] * FLOATS.shape[2], dtype=np.float32)
    shown = env.observation({"camera": camera.reshape(FLOATS.shape), "speed": np.full((4, 60), 7.0)})
    assert isinstance(shown, dict)
    assert (shown["camera"].min(), shown["camera"].max(), shown["camera"].dtype) == (0, 255, np.uint8)
    np.testing.assert_allclose(shown["camera"].reshape(-1) / 127.5 - 1, camera, atol=1 / 255)
    np.testing.assert_array_equal(shown["speed"], np.full((4, 60), 7.0))
    flags = np.zeros(FLAGS.shape, bool)
    flags[0, 0, 0] = True
    assert ImageBytes(shows(FLAGS)).observation(flags)[0, 0].tolist() == [255, 0, 0, 0]  # type: ignore[index]


@pytest.mark.parametrize(
    ("space", "named"),
    [
        (HISTORY, "finds no image"),
        (spaces.Box(-np.inf, np.inf, (8, 9, 3), np.float32), "no finite bounds"),
    ],
)
def test_what_cannot_be_converted_is_refused(space: spaces.Space[Any], named: str) -> None:
    with pytest.raises(EnvError, match=named):
        ImageBytes(shows(space))
