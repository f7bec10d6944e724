"""The actor's loop against a learner's end that is held still: which policy acts when the learner is behind."""

from __future__ import annotations

import threading
import time

from accel.actor import Actor
from accel.networks import build_network_from_config
from accel.publisher import Publisher
from accel.session import welcome
from accel.trajectory import UnrollLayout
from accel.transport.local import LocalTransport
from tests.accel.live_policies import config_for


def test_an_actor_that_waited_for_the_learner_acts_with_the_policy_of_then() -> None:
    config = config_for("mlp:16x1", "fp32", env="CartPole-v1", actors=0, envs_per_actor=4, unroll_length=8)
    transport = LocalTransport(1, threaded=True)
    learner = transport.learner
    learner.welcome(welcome(config, 0))
    end = transport.actor(0)
    actor = Actor(end.welcome(0.0), end)
    try:
        publisher = Publisher(config, build_network_from_config(config.to_json(), actor.spec))
        layout = UnrollLayout(actor.spec, 8, 4, ())
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
        before = -1
        while len(sent) > before or not sent:  # until it waits for a buffer
            before = len(sent)
            time.sleep(0.2)
        learner.publish(2, payloads)
        versions = []
        for _ in range(6):
            arrival = learner.receive(10.0)
            assert arrival is not None
            versions.append(layout.view(arrival.buffer).oldest_version)
            learner.release(arrival)
        thread.join(10.0)
    finally:
        actor.close()
    assert 0 < before < 6
    assert versions == [1] * before + [2] * (6 - before)
