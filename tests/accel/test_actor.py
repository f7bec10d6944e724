"""The actor's loop against a learner's end that is held still: which policy acts when the learner is behind."""

from __future__ import annotations

import threading

import torch

from accel.acting.actor import join
from accel.algorithms.catalogue import agree, make_algorithm
from accel.config.actor import ActorConfig
from accel.publishing.publisher import Publisher
from accel.transport.local import LocalTransport
from tests.accel.live_policies import config_for

LIMIT_S = 500.0  # far beyond what anything takes: only a hang gets there


def test_an_actor_that_waited_for_the_learner_acts_with_the_policy_of_then() -> None:
    config = config_for("mlp:16x1", "fp32", env="CartPole-v1", actors=0, envs_per_actor=4, unroll_length=8)
    transport = LocalTransport(1, threaded=True)
    learner = transport.learner
    learner.welcome(ActorConfig.of(config).to_json())
    actor = join(transport.actor(0), 0.0)
    try:
        algorithm = make_algorithm(config, actor.spec, torch.device("cpu"))
        publisher = Publisher(config, algorithm.network)
        agreement, layout = agree(config, algorithm)
        learner.welcome(agreement.to_json())
        learner.configure(layout.nbytes)
        payloads = dict(publisher.payloads())
        learner.publish(1, payloads)
        actor.start()
        sent: list[None] = []

        def act() -> None:
            while len(sent) < 6:
                actor.step()
                sent.append(None)

        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        hub, before = learner._hub, config.acting.unrolls_in_flight + 1
        with hub.changed:  # until it waits for a buffer
            assert hub.changed.wait_for(lambda: hub.under_way[0] == before, LIMIT_S)
        learner.publish(2, payloads)
        versions = []
        for _ in range(6):
            arrival = learner.receive(LIMIT_S)
            assert arrival is not None
            versions.append(layout.view(arrival.buffer).oldest_version)
            learner.release(arrival)
        thread.join(LIMIT_S)
    finally:
        actor.close()
    assert versions == [1] * before + [2] * (6 - before)
