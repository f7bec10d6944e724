"""Central inference without ranks: an actor's policy that asks, and the batches that answer it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from accel.acting.central import CentralPolicy, PolicyBatcher, message_bytes, open_message, row_of
from accel.acting.policy import SessionPolicy
from accel.acting.torch_policy import TorchBatcher, serialise_module
from accel.compressors.errors import ArtifactError
from accel.errors import TransportError
from accel.networks import PolicyNetwork
from accel.publishing.publisher import Publisher
from accel.transport.base import Bytes
from tests.accel.publishing.live_policies import (
    LENGTH,
    begun_sampler,
    calibrate,
    config_for,
    layout_of,
    make_batch,
    make_network,
    payload_of,
    update_of,
)

ENVS = 4
CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a machine with a CUDA device")
)


class Exchange:
    """The actor's end: what asks is answered in one batch with another actor's question."""

    def __init__(self, batcher: PolicyBatcher, before: Callable[[], None] = lambda: None) -> None:
        self.batcher, self._before = batcher, before
        self._other = np.empty(0, np.uint8)

    def open_inference(self, question_bytes: int, answer_bytes: int) -> tuple[Bytes, Bytes]:
        self.question, self.answer = np.zeros(question_bytes, np.uint8), np.zeros(answer_bytes, np.uint8)
        return self.question, self.answer

    def ask(self, timeout_s: float) -> None:
        self._before()
        asked = [(0, self._other), (1, self.question)] if self._other.size else [(1, self.question)]
        self.answer[...] = dict(self.batcher.answer(asked))[1]
        self._other = self.question.copy()


def compressed(network: PolicyNetwork, name: str, scheme: str) -> bytes:
    publisher = Publisher(config_for(name, scheme), network)
    calibrate(publisher, network)
    return payload_of(publisher)


def central(network: PolicyNetwork, exchange: Exchange) -> CentralPolicy:
    return CentralPolicy(layout_of(network, envs=ENVS), begun_sampler(network.spec, ENVS), exchange, 1.0)


def played(policy: SessionPolicy, network: PolicyNetwork) -> tuple[np.ndarray, np.ndarray]:
    """Actions and outputs of an unroll, in which environments begin episodes."""
    observations, first = make_batch(network).observations[:, :ENVS].numpy(), np.zeros((LENGTH, ENVS), np.bool_)
    first[3, 1] = first[5] = True
    spec = network.spec
    actions = np.zeros((LENGTH, ENVS, *spec.action.shape), spec.action.dtype)
    params = np.zeros((LENGTH, ENVS, spec.action.param_size), np.float32)
    for t in range(LENGTH):
        policy.act(observations[t], first[t] if first[t].any() else None, t, actions[t], params[t])
    return actions, params


@pytest.mark.parametrize("scheme", ["fp32", "int8"])
@pytest.mark.parametrize("name", ["mlp:16x2", "mlp:16x1+lstm:8", "nature-cnn:0.1"])
def test_an_actor_that_asks_acts_as_with_a_policy_of_its_own(name: str, scheme: str) -> None:
    network = make_network(config_for(name, scheme))
    update = update_of(compressed(network, name, scheme), version=3)
    own = SessionPolicy(layout_of(network, envs=ENVS), begun_sampler(network.spec, ENVS), ("fp32", "int8"))
    own.load(update)
    batcher = PolicyBatcher(("fp32", "int8"))
    batcher.load(update)
    asking = central(network, Exchange(batcher))
    actions, params = played(own, network)
    asked_actions, asked_params = played(asking, network)
    assert np.ptp(params) > 0.1
    np.testing.assert_allclose(asked_params, params, atol=1e-4)
    assert np.allclose(asked_actions, actions, atol=1e-4)
    for mine, theirs in zip(own.states(), asking.states(), strict=True):
        assert np.abs(mine).max() > 1e-3
        np.testing.assert_allclose(theirs, mine, atol=1e-4)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("name", ["mlp:16x2", "mlp:16x1+lstm:8", "nature-cnn:0.1"])
def test_torch_answers_as_the_compressed_policy_does(name: str, device: str) -> None:
    """Batches of 4 and of 8 rows; the second policy is loaded into the first one's place."""
    config = config_for(name, "fp32", actor_runtime="torch", normalise_observations=True)
    batcher = TorchBatcher(config, torch.device(device))
    for version in (3, 4):
        network = make_network(config, seed=version)
        own = SessionPolicy(layout_of(network, envs=ENVS), begun_sampler(network.spec, ENVS), ("fp32",))
        own.load(update_of(compressed(network, name, "fp32"), version))
        batcher.load(update_of(serialise_module(network.acting_module(), network.spec), version))
        asking = central(network, Exchange(batcher))
        params, asked = played(own, network)[1], played(asking, network)[1]
        assert np.ptp(params) > 0.01
        np.testing.assert_allclose(asked, params, atol=1e-4)
        for mine, theirs in zip(own.states(), asking.states(), strict=True):
            np.testing.assert_allclose(theirs, mine, atol=1e-4)
    with pytest.raises(ArtifactError, match="no weights"):
        batcher.load(update_of(b"nothing", 5))
    assert batcher.version == 4


def test_each_row_names_the_version_and_the_scheme_that_chose_its_actions() -> None:
    name = "mlp:16x2"
    network = make_network(config_for(name, "fp32"))
    updates = [update_of(compressed(network, name, s), v) for v, s in ((4, "fp32"), (5, "int8"))]
    updates.append(update_of(None, 6))
    batcher = PolicyBatcher(("fp32", "int8"))
    turns = iter([updates[0], None, updates[1], None, None, updates[2], None, None])

    def arrive() -> None:
        if (update := next(turns)) is not None:
            batcher.load(update)

    policy = central(network, Exchange(batcher, arrive))
    played(policy, network)
    layout = layout_of(network, envs=ENVS)
    unroll = layout.view(np.zeros(layout.nbytes, np.uint8))
    policy.sign(unroll)
    assert unroll["policy_version"].tolist() == [[v] * ENVS for v in (4, 4, 5, 5, 5, 6, 6, 6)]
    assert unroll["scheme_id"].tolist() == [[s] * ENVS for s in (0, 0, 1, 1, 1, 1, 1, 1)]


def test_a_policy_that_does_not_load_leaves_the_old_one_acting() -> None:
    name = "mlp:16x2"
    network = make_network(config_for(name, "fp32"))
    payload = compressed(network, name, "fp32")
    batcher = PolicyBatcher(("fp32",))
    batcher.load(update_of(payload, 1))
    policy = central(network, Exchange(batcher))
    before = played(policy, network)[1]
    with pytest.raises(ArtifactError):
        batcher.load(update_of(payload[:-9] + b"\0" * 9, 2))
    batcher.load(update_of(None, 3))
    assert batcher.version == 1, "an update without a payload is the refused policy's"
    assert np.array_equal(played(policy, network)[1], before)
    batcher.load(update_of(payload, 4))
    assert batcher.version == 4


def test_a_question_for_another_policy_is_refused() -> None:
    name = "mlp:16x2"
    batcher = PolicyBatcher(("fp32",))
    batcher.load(update_of(compressed(make_network(config_for(name, "fp32")), name, "fp32"), 1))
    row = row_of({"observations": ("float32", (7,))})  # its network takes six numbers
    question = np.zeros(message_bytes(row, 2), np.uint8)
    open_message(question, row, 2)[0][...] = 2, 0
    with pytest.raises(TransportError, match="other policies"):
        batcher.answer([(0, question)])
    with pytest.raises(TransportError, match="no header"):
        batcher.answer([(0, np.zeros(8, np.uint8))])
