"""Names, units and bounds of observations and actions in a bundle's contract, as the environment states them."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from accel.envs.factory import make_vector_env
from accel.errors import ExportError
from accel.exporting.contract import element_labels

STATED = {
    "observation_names": ["cos angle", "sin angle", "angular velocity"],
    "observation_units": ["", "", "rad/s"],
    "action_names": ["torque"],
    "action_units": ["N m"],
}


def labels(kind: Any, env: str, stated: dict[str, list[str]] | None = None) -> Any:
    with closing(make_vector_env(env, 1)) as environment:
        environment.metadata = {**environment.metadata, **(stated or {})}
        return element_labels(kind, environment, environment.spec)


def test_what_the_environment_states_is_taken() -> None:
    observation = labels("observation", "Pendulum-v1", STATED)
    assert observation["names"] == STATED["observation_names"]
    assert observation["units"] == STATED["observation_units"]
    assert labels("action", "Pendulum-v1", STATED) == {"names": ["torque"], "units": ["N m"]}


def test_indices_are_the_names_of_what_is_not_stated() -> None:
    observation = labels("observation", "CartPole-v1")
    assert observation["names"] == [f"observation[{i}]" for i in range(4)] and observation["units"] == [""] * 4
    assert len(observation["low"]) == len(observation["high"]) == 4
    assert {type(bound) for bound in observation["low"]} <= {float, str}
    assert labels("action", "CartPole-v1") == {"names": ["action[0]", "action[1]"], "units": ["", ""]}


def test_a_list_of_another_length_is_refused() -> None:
    with pytest.raises(ExportError, match=r"observation_names.*list of 3 texts"):
        labels("observation", "Pendulum-v1", {"observation_names": ["cos angle", "sin angle"]})
