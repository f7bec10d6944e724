"""The actor's loop against a learner's end that is held still: which policy acts when the learner is behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from accel.acting.processes import ActorProcesses
from accel.algorithms.catalogue import agree, make_algorithm
from accel.config import TrainConfig
from accel.config.actor import ActorConfig
from accel.experience.unroll import UnrollLayout
from accel.launch.actor import command
from accel.learning.handshake import wait_for_actors
from accel.publishing.publisher import Publisher
from accel.transport.base import TransportOptions
from accel.transport.launcher import LaunchInfo
from tests.accel.publishing.live_policies import config_for, payload_of

LIMIT_S = 500.0  # far beyond what anything takes: only a hang gets there


@contextmanager
def acting(config: TrainConfig) -> Iterator[tuple[ActorProcesses, dict[str, bytes], UnrollLayout]]:
    """An actor in a process of its own, which has the policy of version 1."""
    options = TransportOptions()
    learner = ActorProcesses(1, lambda number: command(LaunchInfo(number + 1, 2, number + 1, "local")), options)
    try:
        learner.welcome(ActorConfig.of(config).to_json())
        spec = wait_for_actors(learner, LIMIT_S, lambda: None).spec
        algorithm = make_algorithm(config, spec, torch.device("cpu"))
        publisher = Publisher(config, algorithm.network)
        agreement, layout = agree(config, algorithm)
        learner.welcome(agreement.to_json())
        learner.configure(layout.nbytes)
        payload = payload_of(publisher)
        learner.publish(1, payload)
        yield learner, payload, layout
    finally:
        learner.close()


def version_of_next(learner: ActorProcesses, layout: UnrollLayout) -> int:
    arrival = learner.receive(LIMIT_S)
    assert arrival is not None
    version = layout.view(arrival.buffer).oldest_version
    learner.release(arrival)
    return version


SMALL: dict[str, object] = {"env": "CartPole-v1", "actors": 1, "envs_per_actor": 4, "unroll_length": 8}


def test_an_actor_that_waited_for_the_learner_acts_with_the_policy_of_then() -> None:
    config = config_for("mlp:16x1", "fp32", **SMALL)
    with acting(config) as (learner, payload, layout):
        before, until = config.acting.unrolls_in_flight + 1, time.monotonic() + LIMIT_S
        while learner.under_way[0] < before:  # until it waits for a buffer
            learner.pump(0.1)
            assert time.monotonic() < until
        learner.publish(2, payload)
        versions = [version_of_next(learner, layout) for _ in range(6)]
    assert versions == [1] * before + [2] * (6 - before)


def test_an_actor_of_the_synchronous_schedule_waits_for_the_next_version() -> None:
    """Whatever else is said of the one that it has; the payload may be the same."""
    config = config_for("mlp:16x1", "fp32", algorithm="a2c", **SMALL)
    with acting(config) as (learner, payload, layout):
        for version in (1, 2, 3):
            assert version_of_next(learner, layout) == version
            learner.publish(version, payload)
            assert learner.receive(0.2) is None
            learner.publish(version + 1, payload)
