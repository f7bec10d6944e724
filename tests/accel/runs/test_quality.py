"""What the bar compares: greedy actions by hand, random actions among a policy's, rows that no other use has seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from accel.config import TrainConfig
from accel.envs.spaces import MASKED, ActionSpec
from accel.imports.policy import ImportedPolicy, import_policy
from accel.runs.finishing import finish
from accel.runs.player import RandomActions
from accel.runs.playing import collect_inputs, play
from accel.runs.quality import OFF, OWN, calibration_inputs, compare_actions, judged_inputs

SEED = (0, 1)
BOX = ActionSpec("gaussian", (2,), (-1.0, -2.0), (1.0, 6.0))


@pytest.fixture(scope="module")
def policy() -> ImportedPolicy:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    return import_policy(module, TrainConfig.create(env="CartPole-v1"))


def test_a_share_of_the_actions_is_uniformly_random_and_allowed() -> None:
    params = np.tile(np.array([9.0, MASKED, 0.0, 1.0], np.float32), (4000, 1))
    action = ActionSpec("categorical", (4,), masked=True)
    assert RandomActions(action, 0.0, SEED).mixed(params) is params
    chosen = RandomActions(action, 0.2, SEED).mixed(params).argmax(1)
    counts = np.bincount(chosen, minlength=4) / len(chosen)
    np.testing.assert_allclose(counts, [0.8 + 0.2 / 3, 0.0, 0.2 / 3, 0.2 / 3], atol=0.02)


@pytest.mark.parametrize("squash", [False, True])
def test_random_numbers_fill_the_bounds(squash: bool) -> None:
    mixed = RandomActions(replace(BOX, squash=squash), 1.0, SEED).mixed(np.zeros((4000, 4), np.float32))
    means = np.tanh(mixed[:, :2]) * [1.0, 4.0] + [0.0, 2.0] if squash else mixed[:, :2]
    np.testing.assert_allclose(means.mean(0), [0.0, 2.0], atol=0.15)
    np.testing.assert_allclose(np.quantile(means, (0.01, 0.99), axis=0), [[-0.98, -1.92], [0.98, 5.92]], atol=0.06)
    assert (mixed[:, 2:] < -10).all(), "as good as no noise around them"


def test_agreement_and_the_value_that_is_given_up(policy: ImportedPolicy) -> None:
    full = np.array([[1.0, 0.0], [3.0, 1.0], [0.0, 1.0], [0.0, 4.0]])
    ours = np.array([[1.0, 0.0], [1.0, 3.0], [0.0, 1.0], [0.0, 9.0]])
    found = compare_actions(policy, full, ours, OWN)
    assert (found.rows, found.agreement, found.lost_value) == (4, 0.75, 2.0 / 8.0)
    assert found.excess == pytest.approx(25.0) and not found.holds
    assert compare_actions(policy, full, full + 100.0, OWN).holds


def test_errors_are_shares_of_each_actions_range(policy: ImportedPolicy) -> None:
    continuous = replace(policy, spec=replace(policy.spec, action=BOX))
    full = np.zeros((100, 4))
    ours = full + np.array([0.02, 0.0, 0.0, 0.0])
    ours[0, 1] = 80.0  # clipped to 6
    found = compare_actions(continuous, full, ours, OWN)
    assert found.agreement is None and found.greatest_error == pytest.approx(6.0 / 8.0)
    assert found.mean_error == pytest.approx((100 * 0.01 + 0.75) / 200)
    assert found.tail_error == pytest.approx(0.01, abs=1e-3) and found.holds


def test_no_row_that_is_judged_calibrates(policy: ImportedPolicy) -> None:
    calibration, judged = calibration_inputs(policy, "int8", 0), judged_inputs(policy, 0)
    assert set(judged) == {OWN, OFF}
    seen = {row.tobytes() for row in calibration["observations"]}
    for rows in judged.values():
        assert not seen & {row.tobytes() for row in rows["observations"]}
    assert not np.array_equal(judged[OWN]["observations"], judged[OFF]["observations"])


def test_random_play_repeats_and_is_not_the_policys(policy: ImportedPolicy) -> None:
    full = policy.compress("fp32")
    games = [play(full, policy, episodes=8, random_share=1.0).returns for _ in range(2)]
    np.testing.assert_array_equal(*games)
    assert not np.array_equal(games[0], play(full, policy, episodes=8).returns)
    rows = [collect_inputs(policy, 32, steps=32, stream=stream)["observations"] for stream in (0, 1)]
    assert not np.array_equal(*rows)


def test_a_finished_policys_encoding_and_shares_are_in_its_artifact(policy: ImportedPolicy) -> None:
    inputs = calibration_inputs(policy, "int8", 0)
    found = finish(policy, "int8", inputs)
    metadata = found.artifact.metadata
    layers = (4 * 32, 32 * 32, 32 * 2)  # the first reads observations, in floats as it is small
    floats = "module.4=float" in str(metadata["encoding"])
    inside = 1.0 - floats * layers[2] / sum(layers[1:])
    assert metadata["integer_share_after_observations"] == pytest.approx(inside)
    assert metadata["integer_share"] == pytest.approx(1.0 - (layers[0] + floats * layers[2]) / sum(layers))
    assert "bytes against" in found.cost and f"{inside:.0%} of the multiply-adds after the observations" in found.cost
    assert "encoding" not in finish(policy, "fp16", inputs).artifact.metadata


@pytest.mark.parametrize(("width", "name"), [(4, "mixed"), (512, "int8")])
def test_what_is_neither_faster_nor_smaller_is_not_called_int8(width: int, name: str) -> None:
    """Four units gain nothing on any machine; of 512 a fourth of the bytes is left. Tried again where a busy machine
    mistakes the times."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
    policy = import_policy(module, TrainConfig.create(env="CartPole-v1"))
    few = {key: array[:3] for key, array in calibration_inputs(policy, "int8", 0).items()}
    found = finish(policy, "int8", few)
    for _ in range(4):
        if found.artifact.scheme != name:
            found = finish(policy, "int8", few)
    assert found.artifact.scheme == name
    assert ("int8 does not pay here" in found.cost) == (name == "mixed")
