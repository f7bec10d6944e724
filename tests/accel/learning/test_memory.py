"""What does not fit into memory is refused with its sizes, and checks of large observations look at few."""

from __future__ import annotations

import re

import pytest
import torch
from gymnasium import spaces

from accel.config import TrainConfig
from accel.envs.observations import observation_layout
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.errors import ConfigError, EnvError, TransportError
from accel.launch.train import start
from accel.learning.memory import check_memory, check_network
from accel.publishing.inputs import MOST_BYTES, RecentInputs, rows_within
from accel.publishing.validation import ValidationInputs
from accel.runs.job import Job

ACTION = ActionSpec("categorical", (2,))
CPU = torch.device("cpu")
LARGE = EnvSpec((25_000_000,), "float32", ACTION)
"""Observations of 100 MB."""


def test_a_batch_that_does_not_fit_is_refused() -> None:
    config = TrainConfig.create(network="mlp:4x1", unroll_length=4096, envs_per_actor=64)
    with pytest.raises(ConfigError, match=r"needs [\d.]+ GiB of memory.*unrolls of 4096 steps of 64.*\(25000000,\)"):
        check_memory(config, LARGE, CPU)


def test_a_network_that_does_not_fit_is_refused_before_it_is_made() -> None:
    config = TrainConfig.create(network="mlp:65536x9", envs_per_actor=1, unroll_length=8)
    with pytest.raises(ConfigError, match="for the network 'mlp:65536x9'"):
        check_memory(config, EnvSpec((4,), "float32", ACTION), CPU)


def test_actors_of_this_host_need_memory_too() -> None:
    """A policy of 1 GB, for which a learner alone takes 70 GB."""
    config = TrainConfig.create(network="mlp:4096x16", envs_per_actor=1, unroll_length=8)
    found = []
    for actors_here in (10_000, 20_000):
        with pytest.raises(ConfigError, match=rf"in the learner and [\d.]+ GiB in {actors_here} actors") as error:
            check_memory(config, EnvSpec((4,), "float32", ACTION), CPU, actors_here)
        found.append(float(re.findall(r"([\d.]+) GiB in \d+ actors", str(error.value))[0]))
    assert found[1] == pytest.approx(2 * found[0], rel=1e-4)


@pytest.mark.parametrize(
    ("network", "weights"),
    [("mlp:16384x9", 8 * 2**28), ("mlp:65536-65536-8", 2**32 + 2**19), ("mlp:8x1+lstm:65536", 4 * 2**32)],
)
def test_a_network_that_nothing_holds_is_refused_before_anything_starts(network: str, weights: int) -> None:
    config = TrainConfig.create(network=network, actors=4096, device="cpu")
    with pytest.raises(ConfigError, match=rf"for the network .* whose weights are {weights / 2**28:.1f} GiB.*actors"):
        start(Job(config))


def test_an_unroll_beyond_what_can_be_sent_is_refused() -> None:
    config = TrainConfig.create(network="mlp:4x1", unroll_length=1 << 16, envs_per_actor=1 << 10)
    with pytest.raises((TransportError, ConfigError), match=r"unroll.* bytes cannot be sent, .*|needs .* unrolls"):
        check_memory(config, EnvSpec((4,), "float32", ACTION), CPU)


def test_what_fits_passes() -> None:
    check_network(TrainConfig.create(network="mlp:512x3+lstm:64"))
    check_memory(TrainConfig.create(network="nature-cnn"), EnvSpec((4, 84, 84), "uint8", ACTION), CPU)


def test_observations_beyond_any_use_are_the_environments_error() -> None:
    with pytest.raises(EnvError, match="100,000,000 numbers, more than 67,108,864: make them smaller"):
        observation_layout(spaces.Box(0, 255, (4, 5000, 5000), "uint8")).spec(ACTION, "next_step")


def test_checks_of_large_observations_look_at_few() -> None:
    recent = RecentInputs(rows_within(512, LARGE), 16, 0)
    found = ValidationInputs(LARGE, (), recent).full()
    assert all(2 <= len(rows) and rows.nbytes <= MOST_BYTES for rows in found.values())
    assert rows_within(512, EnvSpec((17,), "float32", ACTION)) == 512
