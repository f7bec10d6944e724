"""Quantisation-aware training: the learner's forward pass is what int8 actors compute; gradients flow; it learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from accel.config import TrainConfig
from accel.errors import ConfigError
from accel.launch import train
from accel.networks import PolicyNetwork
from accel.publisher import Publisher
from tests.accel.live_policies import (
    act_once,
    calibrate,
    config_for,
    make_batch,
    make_network,
    session_policy,
    torch_params,
    update_of,
)


def _rounding_network(network: str, scheme: str = "int8", **changes: object) -> tuple[PolicyNetwork, Publisher]:
    config = config_for(network, scheme, quantisation_aware=True, **changes)
    net = make_network(config)
    publisher = Publisher(config, net)
    assert net.rounding is None, "whole numbers until int8 is calibrated, as fp32 is published until then"
    calibrate(publisher, net)
    assert net.rounding is not None
    return net, publisher


@pytest.mark.parametrize(
    ("network", "scheme", "activation", "tolerance"),
    [
        ("mlp:64x2", "int8", "tanh", 0.02),
        ("mlp:64x3", "int8(reduce_range)", "relu", 0.02),
        ("mlp:64x2", "int8(per_channel)", "tanh", 0.02),
        ("mlp:64x2", "int8(s8s8)", "tanh", 0.02),
        ("nature-cnn:0.25", "int8", "tanh", 0.02),
        ("impala-resnet:0.5", "int8", "tanh", 0.15),
    ],
)
def test_the_learner_computes_what_actors_compute(network: str, scheme: str, activation: str, tolerance: float) -> None:
    net, publisher = _rounding_network(network, scheme, activation=activation)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.03).add_(0.002)
    batch = make_batch(net, seed=4)
    observations = batch.observations[0].numpy()
    actor = session_policy(net.spec, net)
    actor.load(update_of(publisher.payloads()[scheme]))
    acted = act_once(actor, net, observations)
    with torch.no_grad():
        learned = net(batch.observations[:1], batch.first[:1]).params[0].numpy()
    whole = torch_params(net, observations)

    def rms(difference: np.ndarray) -> float:
        return float(np.sqrt(np.mean(np.square(difference))))

    assert rms(learned - acted) < tolerance * rms(whole - acted)


def test_a_recurrent_network_rounds_alike_whether_episodes_end_or_not() -> None:
    """Two ways through the LSTM, one call or unrolled: both have the rounded weights and inputs."""
    net, publisher = _rounding_network("mlp:32x1+lstm:16")
    batch = make_batch(net, seed=4)
    state = net.initial_state(batch.first.shape[1])
    none, late = torch.zeros_like(batch.first), torch.zeros_like(batch.first)
    late[-1, 0] = True
    with torch.no_grad():
        together, unrolled = (net(batch.observations, first, state).params for first in (none, late))
    torch.testing.assert_close(unrolled[:-1], together[:-1], atol=2e-4, rtol=1e-3)
    actor = session_policy(net.spec, net)
    actor.load(update_of(publisher.payloads()["int8"]))
    acted = np.stack([act_once(actor, net, row.numpy()) for row in batch.observations])
    rounding, net.rounding = net.rounding, None
    with torch.no_grad():
        whole = net(batch.observations, none, state).params
    assert rounding is not None
    error, unaware = (float((p - torch.from_numpy(acted)).square().mean().sqrt()) for p in (together, whole))
    assert error < 0.6 * unaware


def test_the_critic_stays_whole_and_every_policy_weight_gets_a_gradient() -> None:
    net, _ = _rounding_network("mlp:32x2")
    batch = make_batch(net)
    rounded = net(batch.observations, batch.first)
    rounding, net.rounding = net.rounding, None
    whole = net(batch.observations, batch.first)
    torch.testing.assert_close(rounded.values, whole.values, rtol=0, atol=0)
    assert rounding is not None and not torch.equal(rounded.params, whole.params)
    (rounded.params * torch.randn(rounded.params.shape, generator=torch.Generator().manual_seed(0))).sum().backward()
    for name, parameter in net.acting_module().named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_the_difference_between_learner_and_actors_is_reported() -> None:
    net, publisher = _rounding_network("mlp:32x2", check_interval_updates=1)
    for update in range(3):
        publisher.observe(make_batch(net, seed=update))
        publisher.payloads()
    assert 0.0 <= publisher.metrics()["qat_differences/int8"] < 0.01


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compressor": "fp32"}, "not 'fp32'"),
        ({"compressor": "prune(0.5)+int8"}, r"not 'prune\(0.5\)\+int8'"),
        ({"compressor": "int8-dynamic"}, "not 'int8-dynamic'"),
        ({"mixed_precision": "bf16", "device": "cuda"}, "single precision"),
    ],
)
def test_it_goes_with_int8_alone(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig.create(**({"quantisation_aware": True} | changes))


def test_scales_that_matrices_share_are_refused_at_the_start() -> None:
    config = config_for("mlp:32x1+lstm:16", "int8(per_channel)", quantisation_aware=True)
    with pytest.raises(ConfigError, match="share scales"):
        Publisher(config, make_network(config))


@pytest.mark.learning
def test_cartpole_is_learned_through_rounding(tmp_path: Path) -> None:
    summary = train(
        TrainConfig.create(
            env="CartPole-v1", actors=0, envs_per_actor=16, unroll_length=20, network="mlp:64x2", compressor="int8",
            quantisation_aware=True, learning_rate=2e-3, lambda_=0.95, reward_scale=0.05, total_env_steps=250_000,
            stop_at_return=400.0, stop_window=50, seed=1, learner_threads=1, device="cpu", results_dir=tmp_path,
        )
    )  # fmt: skip
    assert summary.return_mean is not None and summary.return_mean >= 400.0
