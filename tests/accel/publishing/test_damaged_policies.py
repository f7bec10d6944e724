"""Actors and unfit policies: whatever arrives, they say so and keep acting with what they have."""

from __future__ import annotations

import dataclasses
from contextlib import closing

import numpy as np
import pytest
import torch

from accel.acting.joining import join
from accel.algorithms.catalogue import agree, make_algorithm
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.errors import ArtifactError
from accel.config.actor import ActorConfig
from accel.networks.policy import PolicyNetwork
from accel.publishing.publisher import Publisher
from accel.transport.local import LocalActor, LocalLearner
from tests.accel.acting.test_ready import Run
from tests.accel.publishing.live_policies import (
    act_once,
    calibrated,
    config_for,
    make_batch,
    make_network,
    payload_of,
    session_policy,
    update_of,
)


@pytest.fixture(scope="module")
def published() -> tuple[PolicyNetwork, bytes]:
    publisher, net = calibrated("mlp:32x2", "int8")
    return net, payload_of(publisher)


@pytest.mark.parametrize("network", ["mlp:32x2+lstm:16", "nature-cnn:0.25"])
def test_a_sound_policy_for_something_else_is_refused(network: str, published: tuple[PolicyNetwork, bytes]) -> None:
    net, payload = published
    policy = session_policy(net)
    policy.load(update_of(payload, version=3))
    observations = make_batch(net).observations[0].numpy()
    before = act_once(policy, net, observations)
    config = config_for(network, "fp32")
    other = Publisher(config, make_network(config))
    with pytest.raises(ArtifactError, match=r"another environment or network: .*(observations|state_0)"):
        policy.load(update_of(payload_of(other), version=4))
    artifact = CompressedPolicy.from_bytes(payload)
    renamed = dataclasses.replace(artifact, outputs=(dataclasses.replace(artifact.outputs[0], name="logits"),))
    with pytest.raises(ArtifactError, match="logits, params"):
        policy.load(update_of(renamed.to_bytes(), version=4))
    broken = dataclasses.replace(artifact, model=artifact.model[: len(artifact.model) // 2])
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        policy.load(update_of(broken.to_bytes(), version=4))
    with pytest.raises(ArtifactError):
        policy.load(update_of(payload[:-7], version=4))
    assert (policy.version, policy.scheme) == (3, "int8")
    np.testing.assert_array_equal(act_once(policy, net, observations), before)


def test_a_recurrent_state_survives_a_refused_policy_and_a_new_one() -> None:
    publisher, net = calibrated("mlp:32x1+lstm:16", "int8")
    payload = payload_of(publisher)
    policy = session_policy(net)
    policy.load(update_of(payload))
    observations = make_batch(net).observations[0].numpy()
    for _ in range(3):
        act_once(policy, net, observations)
    state = [part.copy() for part in policy.states()]
    assert np.abs(state[0]).max() > 0.01
    with pytest.raises(ArtifactError):
        policy.load(update_of(payload[:-1], version=2))
    policy.load(update_of(payload, version=2))
    for before, after in zip(state, policy.states(), strict=True):
        np.testing.assert_array_equal(before, after)


def test_an_actor_reports_a_damaged_policy_and_goes_on(published: tuple[PolicyNetwork, bytes]) -> None:
    run = Run(config_for("mlp:16x1", "int8", env="CartPole-v1", envs_per_actor=4, unroll_length=8))
    versions = []
    # what is sent twice is announced the second time, and still did not load
    sent = [run.payload[:-7], b"nonsense", published[1], published[1], run.payload]
    with closing(run.actor):
        for version, payload in enumerate(sent, start=2):
            run.learner.publish(version, payload)
            versions.append(run.step().oldest_version)
        warnings = [message["warning"] for _, message in run.learner.messages() if "warning" in message]
    assert versions == [1, 1, 1, 1, 6]
    assert len(warnings) == 3 and all("actor 0 keeps policy 1" in str(text) for text in warnings)


def test_an_actor_without_a_policy_ends_with_the_reason() -> None:
    """Another process takes its place: see ``supervision/test_supervised.py``."""
    config = config_for("mlp:16x1", "int8", env="CartPole-v1", actors=0, envs_per_actor=4, unroll_length=8)
    learner = LocalLearner()
    learner.welcome(ActorConfig.of(config, schemes=("fp32", "int8")).to_json())
    actor = join(LocalActor(learner, 0), 0.0)
    try:
        agreement, layout = agree(config, make_algorithm(config, actor.spec, torch.device("cpu")))
        learner.welcome(agreement.to_json())
        learner.configure(layout.nbytes)
        learner.publish(1, b"nonsense")
        with pytest.raises(ArtifactError):
            actor.start()
    finally:
        actor.close()
