"""``remove_faults``: a number that is not finite is junk where nothing reads it, and a fault where something does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from accel.envs.observations import observation_layout
from accel.experience.faults import remove_faults
from accel.experience.unroll import Unroll, UnrollLayout
from tests.contracts.episodes import SAME_STEP, VECTOR, Actor, Row

ROWS, ENVS = 12, 3
BAD = [np.nan, np.inf, -np.inf]


def make(same_step: bool = False) -> tuple[Unroll, list[list[Row]]]:
    """An unroll with endings of both kinds."""
    actor = Actor(SAME_STEP if same_step else VECTOR, ROWS, ENVS, longest=4)
    while True:
        unroll, rows = actor.unroll()
        if unroll["terminated"][:-1].any() and unroll["truncated"][:-1].any():
            return unroll, rows


def place(unroll: Unroll, name: str, row: int, env: int, value: float) -> None:
    """One bad number in a row's field."""
    array: Any = unroll[name]
    array[(row, env, *[0] * (array.ndim - 2))] = value


def where(flags: Any) -> tuple[int, int]:
    row, env = np.argwhere(flags)[0].tolist()
    return row, env


def unchanged(unroll: Unroll, same_step: bool = False) -> bool:
    clean, _ = make(same_step)
    return all(np.array_equal(unroll[name], array) for name, array in clean.arrays.items() if name != "rewards")


def test_finite_unrolls_are_left_alone() -> None:
    for same_step in (False, True):
        unroll, _ = make(same_step)
        assert remove_faults(unroll) == [] and unchanged(unroll, same_step)


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("name", ["rewards", "behaviour_log_prob", "behaviour_params"])
def test_an_automatic_resets_numbers_are_junk(name: str, value: float) -> None:
    unroll, _ = make()
    row, env = where(~unroll["valid"][:-1])
    place(unroll, name, row, env, value)
    assert remove_faults(unroll) == []
    assert np.isfinite(unroll[name]).all() and unchanged(unroll)


@pytest.mark.parametrize("value", BAD)
def test_what_a_terminated_episode_shows_at_its_end_is_junk(value: float) -> None:
    unroll, _ = make()
    row, env = where(unroll["terminated"][:-1])
    place(unroll, "observations", row + 1, env, value)
    assert remove_faults(unroll) == [] and np.isfinite(unroll["observations"]).all()
    unroll, _ = make(same_step=True)
    place(unroll, "final_observations", *where(unroll["terminated"]), value)
    assert remove_faults(unroll) == [] and np.isfinite(unroll["final_observations"]).all()


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("name", ["observations", "rewards", "behaviour_log_prob", "behaviour_params"])
def test_a_number_that_counts_costs_its_environment_the_unroll(name: str, value: float) -> None:
    unroll, _ = make()
    row, env = where(unroll["valid"][3:-1])
    row += 3
    place(unroll, name, row, env, value)
    valid = unroll["valid"].copy()
    (fault,) = remove_faults(unroll)
    assert (fault.environment, fault.field, fault.row) == (env, name.removesuffix("s"), row)
    text = fault.text(7)
    assert "actor 7" in text and f"environment {env}" in text and f"row {row}" in text
    assert ("an observation that" if name == "observations" else f"a {fault.field} that") in text
    assert not unroll["valid"][:, env].any()
    others = np.arange(ENVS) != env
    assert np.array_equal(unroll["valid"][:, others], valid[:, others])
    assert unroll.valid_steps == np.count_nonzero(unroll["valid"][:-1]) > 0
    assert np.isfinite(unroll[name]).all()


def test_a_truncated_episodes_last_observation_counts() -> None:
    """It is what the return bootstraps from."""
    unroll, _ = make()
    row, env = where(unroll["truncated"][:-1])
    place(unroll, "observations", row + 1, env, np.nan)
    (fault,) = remove_faults(unroll)
    assert (fault.environment, fault.field, fault.row) == (env, "observation", row + 1)
    unroll, _ = make(same_step=True)
    row, env = where(unroll["truncated"])
    place(unroll, "final_observations", row, env, np.nan)
    (fault,) = remove_faults(unroll)
    assert (fault.environment, fault.field, fault.row) == (env, "final_observation", row)


def test_the_bootstraps_row_counts() -> None:
    unroll, _ = make()
    env = int(np.flatnonzero(unroll["valid"][-1])[0])
    place(unroll, "observations", ROWS, env, np.nan)
    assert [(fault.environment, fault.row) for fault in remove_faults(unroll)] == [(env, ROWS)]


def test_each_environment_and_field_is_told_once() -> None:
    unroll, _ = make()
    unroll["valid"][...] = True
    for row in (2, 5):
        place(unroll, "rewards", row, 0, np.nan)
    place(unroll, "rewards", 4, 2, np.inf)
    place(unroll, "observations", 1, 2, np.inf)
    place(unroll, "behaviour_log_prob", 1, 2, np.nan)  # The policy's answer to the observation.
    found = {(fault.environment, fault.field, fault.row) for fault in remove_faults(unroll)}
    assert found == {(0, "reward", 2), (2, "reward", 4), (2, "observation", 1)}
    assert unroll.valid_steps == ROWS


def test_a_number_among_the_bytes_of_a_record_is_told_before_what_the_policy_made_of_it() -> None:
    space = spaces.Dict({"image": spaces.Box(0, 255, (8, 8), np.uint8), "speed": spaces.Box(-9, 9, (2,), np.float32)})
    spec = observation_layout(space).spec(VECTOR.action, "next_step")
    layout = UnrollLayout(spec, ROWS, ENVS)
    unroll = layout.view(np.full(layout.nbytes, 1, np.uint8))
    unroll["truncated"][...] = False
    numbers = unroll["observations"][..., : spec.float_bytes].view(np.float32)
    numbers[2, 1, 0] = np.nan
    for name in ("behaviour_params", "behaviour_log_prob"):
        place(unroll, name, 2, 1, np.nan)
    assert [(fault.environment, fault.field, fault.row) for fault in remove_faults(unroll, spec.float_bytes)] == [
        (1, "observation", 2)
    ]
    assert numbers[2, 1, 0] == 0.0
