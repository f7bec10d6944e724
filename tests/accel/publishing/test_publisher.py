"""The publisher: what reaches actors, at every level, for every network, with real sessions."""

from __future__ import annotations

import copy
import logging

import numpy as np
import pytest
import torch

from accel.acting.torch_policy import TorchPolicy, make_module
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.checks.verify import relative_error
from accel.compressors.errors import ArtifactError
from accel.errors import ConfigError
from accel.networks import PolicyNetwork
from accel.publishing import level as publishing_level
from accel.publishing.level import Intervals
from accel.publishing.publisher import Publisher
from tests.accel.publishing.live_policies import (
    act_once,
    acting_error,
    begun_sampler,
    calibrate,
    calibrated,
    config_for,
    layout_of,
    make_batch,
    make_network,
    observe,
    offered,
    payload_of,
    published,
    publisher_of,
    scale,
    session_policy,
    torch_params,
    update_of,
)

PAIRS = [
    ("mlp:32x2", "int8", 0.04),
    ("mlp:32x2", "fp16", 0.002),
    ("mlp:32x2", "int4", 0.25),
    ("mlp:64x2", "prune(0.25)+int8", 0.15),
    ("mlp:64x2", "lowrank(0.25)", 0.2),
    ("mlp:64x2", "lowrank(0.25)+int8", 0.2),
    ("mlp:32x2", "distill(16x2)", 0.5),
    ("mlp:32x1+lstm:16", "int8", 0.06),
    ("mlp:32x1+lstm:16", "prune(0.25)+int8", 0.15),
    ("nature-cnn:0.25", "int8", 0.12),
    ("nature-cnn:0.5", "prune(0.5)+int8", 0.8),
    ("impala-resnet:0.5", "int8", 0.7),
]


@pytest.mark.few(6)
@pytest.mark.parametrize(("network", "scheme", "tolerance"), PAIRS, ids=[f"{n}-{s}" for n, s, _ in PAIRS])
def test_actors_get_fp32_first_and_the_level_once_calibrated(network: str, scheme: str, tolerance: float) -> None:
    publisher, net = publisher_of(network, scheme, max_publish_kl=None)
    actor = session_policy(net)
    observations = make_batch(net, seed=9).observations[0].numpy()
    first = payload_of(publisher)
    actor.load(update_of(first))
    assert (actor.scheme, publisher.scheme) == ("fp32", "fp32")
    np.testing.assert_allclose(act_once(actor, net, observations), torch_params(net, observations), atol=1e-4)
    calibrate(publisher, net)
    scale(net, 1.05)
    actor = session_policy(net)
    actor.load(update_of(payload_of(publisher)))
    assert actor.scheme == publisher.scheme == scheme and actor.scheme in publisher.schemes
    wanted = torch_params(net, observations)
    assert relative_error(act_once(actor, net, observations), wanted) < tolerance
    wrong = np.zeros_like(wanted), np.broadcast_to(wanted.mean(0), wanted.shape), _shuffled(net, observations)
    assert min(relative_error(output, wanted) for output in wrong) > 1.2 * tolerance, "the tolerance tells them apart"
    artifact = publisher.artifact(version=7)
    assert artifact is not None and (artifact.version, artifact.scheme) == (7, scheme)
    assert publisher.full_precision(7).scheme == "fp32"


def test_a_payload_without_a_change_is_the_same_bytes_under_any_version() -> None:
    publisher, net = calibrated("mlp:32x2", "int8")
    before = payload_of(publisher)
    assert payload_of(publisher) == before
    with torch.no_grad():
        net.policy_head.log_std.add_(0.01)
    assert payload_of(publisher) != before


@pytest.mark.parametrize(
    ("features", "needed", "greatest"), [({"vnni", "avx2"}, ("vnni",), 127), ({"avx2"}, (), 64), (set(), (), 64)]
)
def test_int8_follows_the_cpus_of_the_actors(features: set[str], needed: tuple[str, ...], greatest: int) -> None:
    import onnx

    config = config_for("mlp:32x2", "int8")
    net = make_network(config)
    publisher = Publisher(config, net, cpu_features=frozenset(features))
    calibrate(publisher, net)
    artifact = CompressedPolicy.from_bytes(payload_of(publisher))
    assert artifact.cpu_features == needed
    weights = [onnx.numpy_helper.to_array(t) for t in onnx.load_from_string(artifact.model).graph.initializer]
    assert max(int(np.abs(w.astype(int)).max()) for w in weights if w.dtype == np.int8 and w.ndim == 2) == greatest


def test_levels_take_each_others_place_and_are_bound_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="accel")
    publisher, net = publisher_of("mlp:32x2", "int8", levels=("fp32", "int8", "prune(0.5)+int8"))
    assert publisher.schemes == ("fp32", "int8", "prune(0.5)+int8")
    assert published(publisher) == "fp32"
    publisher.use("int8", prepare=publisher.levels)
    assert published(publisher) == "fp32"
    calibrate(publisher, net)
    sizes = []
    for level in publisher.levels * 2:
        publisher.use(level)
        assert published(publisher) == level
        sizes.append(len(payload_of(publisher)))
    assert sizes[2] < sizes[1] < sizes[0] and sizes[3:] == sizes[:3]
    bound = [record.message for record in caplog.records if record.message.startswith("bound")]
    assert len(bound) == 3 and all("ms" in message for message in bound)
    with pytest.raises(ConfigError, match="none of fp32, int8"):
        publisher.use("fp16")
    assert published(publisher) == "prune(0.5)+int8"


def test_a_level_that_does_not_suit_the_network_is_refused_at_the_start() -> None:
    config = config_for("mlp:8x2", "prune(0.5)+int8")
    with pytest.raises(ConfigError, match=r"'prune\(0\.5\)\+int8' does not suit network 'mlp:8x2'"):
        Publisher(config, make_network(config))


def test_a_network_whose_graph_differs_on_real_observations_is_refused() -> None:
    publisher, net = publisher_of("tests.accel.imports.foreign_policies:rare_torso", "int8")
    calibrate(publisher, net, updates=1)
    observe(publisher, net, make_batch(net, seed=1, scale=100.0))
    with pytest.raises(
        ConfigError, match=r"'tests.accel.imports.foreign_policies:rare_torso': the exported graph is not"
    ):
        payload_of(publisher)


def test_drift_widens_ranges_long_before_the_next_calibration() -> None:
    publisher, net = calibrated("mlp:32x2", "int8(x8)", Intervals(calibration=10_000, drift=4))
    payload_of(publisher)
    calm = publisher.metrics()
    assert calm["calibrations/int8(x8)"] == 1 and calm["drifted_activations/int8(x8)"] == 0
    for update in range(700):
        observe(publisher, net, make_batch(net, seed=update, scale=30.0))
        if publisher.metrics()["drifted_activations/int8(x8)"]:
            break
    assert publisher.metrics()["calibrations/int8(x8)"] == 2
    wide = make_batch(net, seed=5, scale=30.0).observations[0].numpy()
    assert acting_error(payload_of(publisher), net, wide) < 0.1


@pytest.mark.parametrize(("passes", "follows"), [(5, True), (1, False)])
def test_ranges_follow_the_optimisers_steps_however_many_an_update_has(passes: int, follows: bool) -> None:
    # Forty steps an update, as the preset of HalfCheetah has: 500 updates would be more than its whole run.
    publisher, net = calibrated(
        "mlp:32x2", "int8(x8)", algorithm="ppo", passes=passes, minibatches=1 if passes == 1 else 8
    )
    payload_of(publisher)
    for update in range(4):
        observe(publisher, net, make_batch(net, seed=update, scale=30.0))
    wide = make_batch(net, seed=5, scale=30.0).observations[0].numpy()
    error = acting_error(payload_of(publisher), net, wide)
    assert bool(publisher.metrics()["drifted_activations/int8(x8)"]) is follows
    assert (error < 0.1) is follows


def test_pruned_channels_are_selected_again_on_a_schedule() -> None:
    publisher, net = calibrated("mlp:32x2", "prune(0.5)", Intervals(reselect=8), max_publish_kl=None)
    before = payload_of(publisher)
    torso = net.torso.layers
    with torch.no_grad():  # the same policy with its units in reverse order: other ones are kept
        for layer in torso:
            layer.weight.copy_(layer.weight.flip(0))
            layer.bias.copy_(layer.bias.flip(0))
        torso[1].weight.copy_(torso[1].weight.flip(1))
        net.policy_head.mean.weight.copy_(net.policy_head.mean.weight.flip(1))
    stale = acting_error(payload_of(publisher), net)
    for update in range(8):
        observe(publisher, net, make_batch(net, seed=update))
    assert publisher.metrics()["reselections/prune(0.5)"] == 1
    fresh = acting_error(payload_of(publisher), net)
    assert fresh < 0.3 and stale > 1.0
    assert before != payload_of(publisher)


def test_a_student_is_trained_as_often_as_the_policy_moves() -> None:
    """A step for every two of the optimiser, of which this algorithm has eight an update."""
    level = "distill(16x2)"
    publisher, net = calibrated("mlp:32x2", level, algorithm="ppo", passes=2, minibatches=4, max_publish_kl=None)
    before = publisher.metrics()[f"distill_steps/{level}"]
    observe(publisher, net, make_batch(net))
    assert publisher.metrics()[f"distill_steps/{level}"] == before + 4


def test_a_student_follows_the_policy() -> None:
    level = "distill(32x2)"
    publisher, net = publisher_of(
        "mlp:64x2", level, Intervals(distill=1), normalise_observations=True, max_publish_kl=2.0
    )
    net.normaliser.update(make_batch(net).observations.flatten(0, 1) + 1.0)
    calibrate(publisher, net)
    assert publisher.metrics()[f"distill_kl/{level}"] < 0.05, "trained before it acts"
    with torch.no_grad():
        net.policy_head.mean.weight.copy_(net.policy_head.mean.weight.roll(7, 1))
        net.normaliser.mean.add_(0.3)
    observe(publisher, net, make_batch(net))
    behind, distance = publisher.metrics()[f"distill_kl/{level}"], acting_error(payload_of(publisher), net)
    for update in range(150):
        observe(publisher, net, make_batch(net, seed=update))
    assert publisher.metrics()[f"distill_kl/{level}"] < 0.3 * behind
    payload = payload_of(publisher)
    assert (
        distance > 1.0
        and acting_error(payload, net) < 0.5
        and len(payload) < 0.5 * len(publisher.full_precision(0).to_bytes())
    )


def test_every_metric_is_documented_and_belongs_to_a_level() -> None:
    publisher, net = publisher_of("mlp:32x2", "prune(0.5)+int8", Intervals(reselect=1))
    calibrate(publisher, net, updates=6)
    metrics = publisher.metrics()
    names = {name.partition("/") for name in metrics}
    assert {level for _, _, level in names} == {"prune(0.5)+int8"}
    assert all(name in (publishing_level.__doc__ or "") for name, _, _ in names)
    assert {
        "refresh_ms",
        "withheld",
        "payload_bytes",
        "publish_kl",
        "reselections",
    } <= {name for name, _, _ in names}
    assert "refresh_ms/prune(0.5)+int8" not in publisher.metrics(), "means are over one record's publications"


def test_the_torch_runtime_gets_weights_and_keeps_its_own_when_they_are_unfit() -> None:
    config = config_for("mlp:32x2", "fp32", actor_runtime="torch")
    net = make_network(config)
    publisher = Publisher(config, net)
    observe(publisher, net, make_batch(net))
    payload = payload_of(publisher)
    assert publisher.artifact(3) is None and publisher.metrics() == {}
    policy = TorchPolicy(make_module(config.to_json(), net.spec), layout_of(net), begun_sampler(net.spec))
    policy.load(update_of(payload, version=4))
    observations = make_batch(net).observations[0].numpy()
    before = act_once(policy, net, observations)
    np.testing.assert_allclose(before, torch_params(net, observations), atol=1e-5)
    other = make_network(config_for("mlp:16x2", "fp32", actor_runtime="torch"))
    foreign = payload_of(Publisher(config_for("mlp:16x2", "fp32", actor_runtime="torch"), other))
    for bad in (foreign, payload[:-5], b"", payload[:40] + bytes(40) + payload[80:][:200]):
        with pytest.raises(ArtifactError):
            policy.load(update_of(bad, version=5))
        assert policy.version == 4
    np.testing.assert_array_equal(act_once(policy, net, observations), before)
    with torch.no_grad():
        net.torso.layers[0].weight[0, 0] = float("nan")
    assert offered(publisher) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: a machine with a GPU runs it")
@pytest.mark.parametrize(
    "compressor", ["qat", "prune(0.5)+qat", "prune(0.5)+int8", "lowrank(0.25)+int8", "distill(16x2)+int8"]
)
@pytest.mark.parametrize("network", ["mlp:64x2", "nature-cnn:0.5"])
def test_a_learner_on_cuda_publishes_what_one_on_the_cpu_does(network: str, compressor: str) -> None:
    config = config_for(network, compressor)
    artifacts = {}
    for device in ("cpu", "cuda"):
        net = make_network(config).to(device)
        publisher = Publisher(config, net, intervals=Intervals(check=1))
        for update in range(40):
            batch = make_batch(net, seed=update)
            observe(publisher, net, batch)
            payload_of(publisher)
        assert publisher.scheme == compressor and publisher.metrics()[f"withheld/{compressor}"] == 0
        artifacts[device] = publisher.artifact(1)
        params = net(batch.observations.to(device), batch.first.to(device)).params
        assert torch.isfinite(params).all()
    if compressor == "qat":  # selections, bases and students differ a little on another device
        ours, theirs = (np.frombuffer(a.model, np.uint8) for a in artifacts.values() if a is not None)
        assert ours.shape == theirs.shape and np.mean(ours != theirs) < 0.01


def _shuffled(net: PolicyNetwork, observations: np.ndarray) -> np.ndarray:
    """What the same weights give in another order."""
    broken, generator = copy.deepcopy(net), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in broken.parameters():
            weight.copy_(weight.flatten()[torch.randperm(weight.numel(), generator=generator)].view_as(weight))
    return torch_params(broken, observations)
