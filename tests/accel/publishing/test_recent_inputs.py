"""The store of recent inputs: what it takes, how often, and in which order it gives."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from accel.publishing.inputs import RecentInputs, policy_inputs, replay_states
from tests.accel.publishing.live_policies import (
    calibrated,
    config_for,
    layout_of,
    make_batch,
    make_network,
    payload_of,
    rows_of,
    take,
)


def test_few_rows_are_the_newest_and_then_all_others_in_turn() -> None:
    net = make_network(config_for("mlp:8x1", "int8"))
    recent = RecentInputs(100, 16, seed=0)
    for seed in range(2):
        take(recent, rows_of(make_batch(net, seed=seed)))
    newest = recent.newest(7)["observations"]
    few = recent.next_few(7)["observations"].copy()
    np.testing.assert_array_equal(few, newest)
    seen = np.concatenate([few, *(recent.next_few(7)["observations"].copy() for _ in range(16))])
    assert all((recent.every()["observations"] == row).all(axis=1).any() for row in seen)
    assert len(np.unique(seen, axis=0)) == len(np.unique(recent.every()["observations"], axis=0))
    assert len(recent.next_few(1000)["observations"]) == 100


def _numbered(rows: int, first: int = 0) -> dict[str, np.ndarray]:
    numbers = np.arange(first, first + rows, dtype=np.float32)
    return {"observations": numbers[:, None], "state_0": -numbers[:, None]}


def test_it_fills_at_once_and_is_then_renewed_by_portions_at_an_interval() -> None:
    recent, taken = RecentInputs(64, renewal_updates=32, seed=0), []
    for update in range(1, 34):
        recent.tick()
        before = recent.every()["observations"] if update > 1 else np.full((64, 1), -1.0)
        for part in range(2):  # two unrolls arrive for each update
            take(recent, _numbered(40, 100 * update + 50 * part))
        after = recent.every()["observations"]
        taken.append(int((after != (before if len(before) == len(after) else 0)).sum()))
        assert recent.full and recent.wanted == 0
    assert taken[0] == 64 and taken[1:5] == [4, 0, 4, 0], "a sixteenth every other update renews all in 32"
    rows = recent.every()
    np.testing.assert_array_equal(rows["observations"], -rows["state_0"])
    assert rows["observations"].min() >= 200.0, "nothing is left of the first rows"


@pytest.mark.parametrize("rows", [3, 200])
def test_no_more_rows_are_chosen_than_are_wanted_or_there(rows: int) -> None:
    recent = RecentInputs(64, 16, seed=5)
    for update in range(40):
        recent.tick()
        assert len(recent.choose(rows)) == min(rows, recent.wanted)
        take(recent, _numbered(rows, 1000 * update))


@pytest.mark.parametrize("core", ["lstm:8", "gru:8", "transformer:8x1"])
def test_states_of_every_row_are_those_that_a_whole_unroll_goes_through(core: str) -> None:
    net = make_network(config_for(f"mlp:8x1+{core}", "int8"))
    batch = make_batch(net)
    batch.first[3, ::2] = True  # Episodes that begin within it, too.
    layout = layout_of(net)
    unroll = layout.view(np.zeros(layout.nbytes, np.uint8))
    unroll["observations"][...], unroll["first"][...] = batch.observations.numpy(), batch.first.numpy()
    for stored, state in zip(unroll.states, batch.states, strict=True):
        stored[...] = state.numpy()
    module = net.acting_module()
    inputs = policy_inputs(unroll, layout, replay=partial(replay_states, module))
    with torch.no_grad():
        stepped, *_ = module(*(torch.from_numpy(inputs[name]) for name in module.input_names))
        whole = net(batch.observations, batch.first, batch.states).params[:-1].flatten(0, 1)
    np.testing.assert_allclose(stepped.numpy(), whole.numpy(), rtol=1e-4, atol=1e-5)
    chosen = policy_inputs(unroll, layout, lambda rows: np.array([5, rows - 1]), partial(replay_states, module))
    np.testing.assert_array_equal(chosen["state_0"], inputs["state_0"][[5, -1]])


def test_a_recurrent_policy_is_calibrated_on_its_first_unrolls() -> None:
    """Of which only one row each has a recorded state."""
    publisher, _ = calibrated("mlp:8x1+gru:8", "int8")
    payload_of(publisher)
    assert publisher.scheme == "int8"
    publisher.close()
