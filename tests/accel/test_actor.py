"""The actor's loop against a learner's end that is held still: which policy acts when the learner is behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from accel.acting.actor import Actor, join
from accel.algorithms.catalogue import agree, make_algorithm
from accel.config import TrainConfig
from accel.config.actor import ActorConfig
from accel.experience.unroll import UnrollLayout
from accel.publishing.publisher import Publisher
from accel.transport.local import LocalLearner, LocalTransport
from tests.accel.live_policies import config_for

LIMIT_S = 500.0  # far beyond what anything takes: only a hang gets there


@contextmanager
def acting(config: TrainConfig, unrolls: int) -> Iterator[tuple[LocalLearner, dict[str, bytes], UnrollLayout]]:
    """An actor in a thread of its own, which makes so many unrolls, the first with the policy of version 1."""
    transport = LocalTransport(1, threaded=True)
    learner = transport.learner
    learner.welcome(ActorConfig.of(config).to_json())
    actor: Actor = join(transport.actor(0), 0.0)
    try:
        algorithm = make_algorithm(config, actor.spec, torch.device("cpu"))
        publisher = Publisher(config, algorithm.network)
        agreement, layout = agree(config, algorithm)
        learner.welcome(agreement.to_json())
        learner.configure(layout.nbytes)
        payloads = dict(publisher.payloads())
        learner.publish(1, payloads)
        actor.start()

        def act() -> None:
            for _ in range(unrolls):
                actor.step()

        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        yield learner, payloads, layout
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    finally:
        actor.close()


def version_of_next(learner: LocalLearner, layout: UnrollLayout) -> int:
    arrival = learner.receive(LIMIT_S)
    assert arrival is not None
    version = layout.view(arrival.buffer).oldest_version
    learner.release(arrival)
    return version


SMALL: dict[str, object] = {"env": "CartPole-v1", "actors": 0, "envs_per_actor": 4, "unroll_length": 8}


def test_an_actor_that_waited_for_the_learner_acts_with_the_policy_of_then() -> None:
    config = config_for("mlp:16x1", "fp32", **SMALL)
    with acting(config, 6) as (learner, payloads, layout):
        hub, before = learner.hub, config.acting.unrolls_in_flight + 1
        with hub.changed:  # until it waits for a buffer
            assert hub.changed.wait_for(lambda: hub.under_way[0] == before, LIMIT_S)
        learner.publish(2, payloads)
        versions = [version_of_next(learner, layout) for _ in range(6)]
    assert versions == [1] * before + [2] * (6 - before)


def test_an_actor_of_the_synchronous_schedule_waits_for_the_next_version() -> None:
    """Whatever else is said of the one that it has; the payload may be the same."""
    config = config_for("mlp:16x1", "fp32", algorithm="a2c", **SMALL)
    with acting(config, 3) as (learner, payloads, layout):
        for version in (1, 2, 3):
            assert version_of_next(learner, layout) == version
            learner.publish(version, payloads)
            assert learner.receive(0.2) is None
            learner.publish(version + 1, payloads)
