"""Quantisation-aware training: the learner's forward pass is what int8 actors compute; gradients flow."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from accel.errors import ConfigError
from accel.networks import PolicyNetwork
from accel.publishing.level import INTERVALS, Intervals
from accel.publishing.publisher import Publisher
from accel.tuning.choice import parse_choice
from accel.tuning.mismatch_copies import PolicyCopies
from tests.accel.publishing.live_policies import (
    act_once,
    calibrate,
    make_batch,
    observe,
    payload_of,
    published,
    publisher_of,
    session_policy,
    torch_params,
    update_of,
)


def _rounding_network(
    network: str, scheme: str = "qat", intervals: Intervals = INTERVALS, **changes: object
) -> tuple[PolicyNetwork, Publisher]:
    publisher, net = publisher_of(network, scheme, intervals, **changes)
    assert net.fake_quantisation is None, "whole numbers until qat is calibrated, as fp32 is published until then"
    calibrate(publisher, net)
    assert net.fake_quantisation is not None
    return net, publisher


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("network", "scheme", "activation"),
    [
        ("mlp:64x2", "qat", "tanh"),
        ("mlp:64x3", "qat(reduce_range)", "relu"),
        ("mlp:64x2", "qat(s8s8)", "tanh"),
        ("mlp:64x2", "prune(0.5)+qat", "tanh"),
        ("nature-cnn:0.25", "qat", "tanh"),
        ("nature-cnn:0.5", "prune(0.5)+qat", "tanh"),
        ("impala-resnet:0.5", "qat", "tanh"),
        ("mlp:32x1+lstm:16", "qat", "tanh"),
        ("mlp:32x1+lstm:32", "prune(0.5)+qat", "tanh"),
        ("mlp:32x1+gru:16", "qat", "tanh"),
        ("mlp:32x1+gru:16", "prune(0.5)+qat", "tanh"),
        ("mlp:32x1+transformer:16x1", "qat", "tanh"),
    ],
)
def test_the_learner_computes_what_actors_compute(network: str, scheme: str, activation: str) -> None:
    net, publisher = _rounding_network(network, scheme, activation=activation)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.03).add_(0.002)
    batch = make_batch(net, seed=4)
    observe(publisher, net, make_batch(net, seed=2))
    observations = batch.observations[0].numpy()
    actor = session_policy(net)
    actor.load(update_of(payload_of(publisher)))
    acted = act_once(actor, net, observations)
    with torch.no_grad():
        state = tuple(torch.zeros(batch.first.shape[1], *s) for s in net.state_shapes)
        learned = net(batch.observations[:1], batch.first[:1], state).params[0].numpy()
    whole = torch_params(net, observations)

    def rms(difference: np.ndarray) -> float:
        return float(np.sqrt(np.mean(np.square(difference))))

    assert rms(learned - acted) < 0.02 * rms(whole - acted)


def test_the_critic_stays_whole_and_every_policy_weight_gets_a_gradient() -> None:
    net, _ = _rounding_network("mlp:32x2")
    batch = make_batch(net)
    rounded = net(batch.observations, batch.first)
    rounding, net.fake_quantisation = net.fake_quantisation, None
    whole = net(batch.observations, batch.first)
    torch.testing.assert_close(rounded.values, whole.values, rtol=0, atol=0)
    assert rounding is not None and not torch.equal(rounded.params, whole.params)
    (rounded.params * torch.randn(rounded.params.shape, generator=torch.Generator().manual_seed(0))).sum().backward()
    for name, parameter in net.acting_module().named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_the_difference_between_learner_and_actors_is_reported() -> None:
    net, publisher = _rounding_network("mlp:32x2", intervals=Intervals(check=1))
    for update in range(3):
        observe(publisher, net, make_batch(net, seed=update))
        payload_of(publisher)
    assert publisher.metrics()["publish_kl/qat"] < 1e-6, "held against what the learner computes, which is the same"


@pytest.mark.parametrize("network", ["mlp:32x2", "nature-cnn:0.25"])
def test_pruning_is_for_good(network: str) -> None:
    """The learner's own weights lose the units, whatever its optimiser does; the artifact is what is left."""
    net, publisher = _rounding_network(network, "prune(0.5)+qat", Intervals(reselect=1, check=1))
    layer = net.torso.layers[0].weight if network.startswith("mlp") else net.torso.hidden.weight
    gone = (layer == 0).flatten(1).all(1)
    assert 0.3 < gone.float().mean() < 0.7
    for update in range(3, 6):
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(0.02 * torch.randn(parameter.shape))
        observe(publisher, net, make_batch(net, seed=update))
        assert torch.equal((layer == 0).flatten(1).all(1), gone)
        assert published(publisher) == "prune(0.5)+qat" == publisher.scheme
    assert publisher.metrics()["publish_kl/prune(0.5)+qat"] < 1e-6


def test_a_schedule_rounds_while_it_is_at_qat() -> None:
    levels = ("fp32", "qat", "prune(0.5)+qat")
    publisher, net = publisher_of("mlp:32x2", "fp32", levels=levels)
    calibrate(publisher, net, updates=3)
    rounded, batch = [], make_batch(net, seed=9)
    for level in (*levels, "fp32"):
        publisher.use(level)
        observe(publisher, net, batch)
        rounded.append(net.fake_quantisation is not None)
        actor = session_policy(net)
        actor.load(update_of(payload_of(publisher)))
        params = torch.from_numpy(act_once(actor, net, batch.observations[0].numpy()))
        with torch.no_grad():
            torch.testing.assert_close(
                net(batch.observations[:1], batch.first[:1]).params[0], params, atol=1e-4, rtol=0
            )
    assert rounded == [False, True, True, False]


def test_copies_of_versions_are_rounded_as_the_learner_is() -> None:
    net, _ = _rounding_network("mlp:32x2")
    batch, copies = make_batch(net, seed=4), PolicyCopies(net, 2)
    copies.keep(1)
    of_version, of_now = (copies.act(version, batch.observations, batch.first, ()) for version in (1, None))
    torch.testing.assert_close(of_version, of_now, rtol=0, atol=1e-6)


def test_it_is_no_level_of_auto() -> None:
    with pytest.raises(ConfigError, match=r"use prune\(0.5\)\+int8 here, or compressor = 'prune\(0.5\)\+qat'"):
        parse_choice("auto(fp32;prune(0.5)+qat)")
