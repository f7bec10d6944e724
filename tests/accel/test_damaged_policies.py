"""Actors and unfit policies: whatever arrives, they say so and keep acting with what they have."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import torch

from accel.acting.actor import join
from accel.algorithms.catalogue import agree, make_algorithm
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.errors import ArtifactError
from accel.config.actor import ActorConfig
from accel.networks.policy import PolicyNetwork
from accel.publishing.publisher import Publisher
from accel.transport.local import LocalTransport
from tests.accel.live_policies import (
    act_once,
    calibrate,
    config_for,
    make_batch,
    make_network,
    payload_of,
    session_policy,
    update_of,
)

DAMAGES = 3000


@pytest.fixture(scope="module")
def published() -> tuple[PolicyNetwork, bytes]:
    config = config_for("mlp:32x2", "int8")
    net = make_network(config)
    publisher = Publisher(config, net)
    calibrate(publisher, net)
    return net, payload_of(publisher)


def _damaged(payload: bytes, rng: random.Random) -> bytes:
    """Flipped bits, cuts, insertions, swapped pieces and noise."""
    data = bytearray(payload)
    kind = rng.randrange(6)
    at, to = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    if kind == 0:
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        data[at:at] = rng.randbytes(rng.randrange(1, 40))
    elif kind == 3:
        del data[at : to + 1]
    elif kind == 4:
        data[at:to] = rng.randbytes(to - at)
    else:
        data = bytearray(rng.randbytes(rng.randrange(200)))
    return bytes(data)


def test_damaged_artifacts_are_refused_and_the_old_policy_acts_on(published: tuple[PolicyNetwork, bytes]) -> None:
    net, payload = published
    policy = session_policy(net)
    policy.load(update_of(payload, version=3))
    observations = make_batch(net).observations[0].numpy()
    before = act_once(policy, net, observations)
    rng = random.Random(0)
    refused = 0
    for _ in range(DAMAGES):
        data = _damaged(payload, rng)
        if data == payload:
            continue
        with pytest.raises(ArtifactError):
            policy.load(update_of(data, version=4))
        refused += 1
    assert refused > 0.9 * DAMAGES and (policy.version, policy.scheme) == (3, "int8")
    np.testing.assert_array_equal(act_once(policy, net, observations), before)


def test_resealed_damage_is_refused_or_acts(published: tuple[PolicyNetwork, bytes]) -> None:
    """Damage inside the model under checksums that are right again."""
    net, payload = published
    policy = session_policy(net)
    policy.load(update_of(payload, version=3))
    artifact = CompressedPolicy.from_bytes(payload)
    observations = make_batch(net).observations[0].numpy()
    params = act_once(policy, net, observations)
    rng = random.Random(1)
    refused = acted = 0
    for _ in range(DAMAGES):
        broken = dataclasses.replace(artifact, model=_damaged(artifact.model, rng) or b"no model")
        try:
            policy.load(update_of(broken.to_bytes(), version=4))
        except ArtifactError:
            refused += 1
            continue
        try:
            policy.infer(observations, None, params)
        except ArtifactError:
            continue
        acted += 1
    assert refused > 0.5 * DAMAGES and acted > 0
    policy.load(update_of(payload, version=5))
    assert np.isfinite(act_once(policy, net, observations)).all()


@pytest.mark.parametrize("network", ["mlp:32x2+lstm:16", "nature-cnn:0.25"])
def test_a_sound_policy_for_something_else_is_refused(network: str, published: tuple[PolicyNetwork, bytes]) -> None:
    net, payload = published
    policy = session_policy(net)
    policy.load(update_of(payload, version=3))
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
    assert policy.version == 3
    act_once(policy, net, make_batch(net).observations[0].numpy())


def test_a_recurrent_state_survives_a_refused_policy_and_a_new_one() -> None:
    config = config_for("mlp:32x1+lstm:16", "int8")
    net = make_network(config)
    publisher = Publisher(config, net)
    calibrate(publisher, net)
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
    config = config_for("mlp:16x1", "int8", env="CartPole-v1", actors=0, envs_per_actor=4, unroll_length=8)
    transport = LocalTransport(1)
    learner = transport.learner
    learner.welcome(ActorConfig.of(config, schemes=("fp32", "int8")).to_json())
    actor = join(transport.actor(0), 0.0)
    try:
        algorithm = make_algorithm(config, actor.spec, torch.device("cpu"))
        publisher = Publisher(config, algorithm.network)
        agreement, layout = agree(config, algorithm)
        learner.welcome(agreement.to_json())
        learner.configure(layout.nbytes)
        good = payload_of(publisher)
        learner.publish(1, good)
        actor.start()
        versions = []
        # what is sent twice is announced the second time, and still did not load
        sent = [good[:-7], b"nonsense", published[1], published[1], good]
        for version, payload in enumerate(sent, start=2):
            learner.publish(version, payload)
            actor.step()
            arrival = learner.receive()
            assert arrival is not None
            versions.append(layout.view(arrival.buffer).oldest_version)
            learner.release(arrival)
        warnings = [message["warning"] for _, message in learner.messages() if "warning" in message]
    finally:
        actor.close()
    assert versions == [1, 1, 1, 1, 6]
    assert len(warnings) == 3 and all("actor 0 keeps policy 1" in str(text) for text in warnings)


def test_an_actor_without_a_policy_ends_with_the_reason() -> None:
    """Another process takes its place: see ``supervision/test_supervised.py``."""
    config = config_for("mlp:16x1", "int8", env="CartPole-v1", actors=0, envs_per_actor=4, unroll_length=8)
    transport = LocalTransport(1)
    learner = transport.learner
    learner.welcome(ActorConfig.of(config, schemes=("fp32", "int8")).to_json())
    actor = join(transport.actor(0), 0.0)
    try:
        agreement, layout = agree(config, make_algorithm(config, actor.spec, torch.device("cpu")))
        learner.welcome(agreement.to_json())
        learner.configure(layout.nbytes)
        learner.publish(1, b"nonsense")
        with pytest.raises(ArtifactError):
            actor.start()
    finally:
        actor.close()
