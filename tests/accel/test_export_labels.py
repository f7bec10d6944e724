"""Names, units and bounds of observations and actions in a bundle's contract, as the environment states them."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import pytest

from accel.envs.factory import make_vector_env
from accel.errors import ExportError
from accel.exporting.contract import element_labels


class Labelled(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Says what its numbers are."""

    stated: ClassVar[dict[str, list[str]]] = {
        "observation_names": ["cos angle", "sin angle", "angular velocity"],
        "observation_units": ["", "", "rad/s"],
        "action_names": ["torque"],
        "action_units": ["N m"],
    }

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.metadata = {**env.metadata, **self.stated}


class Mislabelled(Labelled):
    """Names one observation too few."""

    stated: ClassVar[dict[str, list[str]]] = {"observation_names": ["cos angle", "sin angle"]}


def _labels(kind: Any, env: str, *wrappers: str) -> Any:
    environment = make_vector_env(env, 1, wrappers=tuple(f"tests.accel.test_export_labels:{name}" for name in wrappers))
    try:
        return element_labels(kind, environment, environment.spec)
    finally:
        environment.close()


def test_what_the_environment_states_is_taken() -> None:
    observation = _labels("observation", "Pendulum-v1", "Labelled")
    assert observation["names"] == Labelled.stated["observation_names"]
    assert observation["units"] == ["", "", "rad/s"]
    assert _labels("action", "Pendulum-v1", "Labelled") == {"names": ["torque"], "units": ["N m"]}


def test_indices_are_the_names_of_what_is_not_stated() -> None:
    observation = _labels("observation", "CartPole-v1")
    assert observation["names"] == [f"observation[{i}]" for i in range(4)] and observation["units"] == [""] * 4
    assert len(observation["low"]) == len(observation["high"]) == 4
    assert {type(bound) for bound in observation["low"]} <= {float, str}
    assert _labels("action", "CartPole-v1") == {"names": ["action[0]", "action[1]"], "units": ["", ""]}


def test_a_list_of_another_length_is_refused() -> None:
    with pytest.raises(ExportError, match=r"observation_names.*list of 3 texts"):
        _labels("observation", "Pendulum-v1", "Mislabelled")
