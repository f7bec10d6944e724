"""Unfit policies never reach actors: withheld, logged once, counted; fp32 stands in."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import accel
from accel.config import TrainConfig
from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError
from accel.networks import PolicyNetwork
from accel.publishing.level import Intervals
from accel.publishing.publisher import Publisher
from tests.accel.publishing.live_policies import (
    act_once,
    calibrate,
    calibrated,
    make_batch,
    observe,
    payload_of,
    published,
    publisher_of,
    scale,
    session_policy,
    torch_params,
    update_of,
)

LEVEL = "prune(0.95)"


def nan_torso(spec: EnvSpec) -> nn.Module:
    torso = nn.Linear(*spec.observation_shape, 8)
    nn.init.constant_(torso.weight, math.nan)
    return torso


def _publish(publisher: Publisher, net: PolicyNetwork, updates: int) -> list[str]:
    """What actors are offered after each of so many updates: a scheme, or "" where nothing is."""
    offered = []
    for update in range(updates):
        observe(publisher, net, make_batch(net, seed=update))
        offered.append(published(publisher))
    return offered


def _scale_means(net: PolicyNetwork, factor: float) -> None:
    """Multiply the means: by much, no pruned policy comes near; 1/factor undoes it."""
    scale(net.policy_head.mean.weight, factor)


def test_activations_beyond_their_ranges_widen_them_at_that_very_publication() -> None:
    publisher, net = calibrated("mlp:32x2", "int8", Intervals(calibration=10_000), activation="relu")
    assert published(publisher) == "int8"
    scale(net.torso.layers[0].weight, 5.0)
    payload = payload_of(publisher)
    assert publisher.metrics()["withheld/int8"] == 0 and publisher.metrics()["calibrations/int8"] == 2
    actor, rows = session_policy(net), make_batch(net).observations[0].numpy()
    actor.load(update_of(payload))
    wanted = torch_params(net, rows)
    assert float(np.abs(act_once(actor, net, rows) - wanted).max()) < 0.05 * float(np.abs(wanted).max())


def test_fp32_stands_in_at_once_for_a_level_that_was_never_fit() -> None:
    publisher, net = publisher_of("mlp:64x2", LEVEL, max_publish_kl=1e-3)
    assert set(_publish(publisher, net, 12)) == {"fp32"}
    assert publisher.metrics()[f"withheld/{LEVEL}"] > 0


def test_a_level_withheld_gets_another_chance_each_time_it_comes_into_use() -> None:
    publisher, net = publisher_of("mlp:64x2", LEVEL, Intervals(check=4), max_publish_kl=0.5, max_policy_lag=24)
    _scale_means(net, 1e-3)  # no pruned policy differs much from it
    calibrate(publisher, net)
    assert published(publisher) == LEVEL
    _scale_means(net, 1e7)
    assert set(_publish(publisher, net, 3)) == {"fp32"} and not publisher.offers(LEVEL)
    publisher.use("fp32")
    assert publisher.offers(LEVEL), "a verdict is on the policy that was checked, and out of use none is"
    publisher.use(LEVEL)
    assert _publish(publisher, net, 1) == ["fp32"], "no artifact goes unchecked"
    assert not publisher.offers(LEVEL)
    publisher.use("fp32")
    _scale_means(net, 1e-7)
    publisher.use(LEVEL)
    assert _publish(publisher, net, 1) == [LEVEL]
    assert publisher.offers(LEVEL)


def test_without_a_bound_every_finite_policy_is_published() -> None:
    publisher, net = publisher_of("mlp:64x2", LEVEL, Intervals(check=1), max_publish_kl=None)
    _scale_means(net, 1e3)
    calibrate(publisher, net)
    assert set(_publish(publisher, net, 6)) == {LEVEL}
    assert publisher.metrics()[f"publish_kl/{LEVEL}"] > 10.0 and publisher.metrics()[f"withheld/{LEVEL}"] == 0


@pytest.mark.parametrize("algorithm", ["dppo", "impala"])
def test_a_run_without_a_first_policy_ends_at_once(algorithm: str, tmp_path: Path) -> None:
    """Actors have none to go on with."""
    network = f"{nan_torso.__module__}:{nan_torso.__name__}"
    options = {"algorithm": algorithm, "env": "CartPole-v1", "network": network, "actors": 0, "results_dir": tmp_path}
    with pytest.raises(ConfigError, match="first policy fails its check before publication"):
        accel.train(TrainConfig.create(**options))


@pytest.mark.parametrize("compressor", ["int8", "fp32", "prune(0.5)", "lowrank(0.25)+int8"])
def test_weights_that_are_not_finite_are_never_published(compressor: str, caplog: pytest.LogCaptureFixture) -> None:
    publisher, net = calibrated("mlp:64x2", compressor, Intervals(reselect=1), max_publish_kl=None)
    assert published(publisher) == compressor
    whole = {name: p.detach().clone() for name, p in net.named_parameters()}
    with torch.no_grad():
        net.torso.layers[1].weight.fill_(float("nan"))
        net.policy_head.mean.bias[1] = float("nan")
    assert set(_publish(publisher, net, 5)) == {""}
    assert len([r for r in caplog.records if "is withheld" in r.message]) == 1
    assert publisher.metrics()[f"withheld/{compressor}"] == 5
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(whole[name])
    assert _publish(publisher, net, 3)[-1] == compressor
