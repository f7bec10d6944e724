"""Every publication is checked on a few rows: what goes bad between two whole checks reaches no actor."""

from __future__ import annotations

import dataclasses
import logging
import math
import weakref

import numpy as np
import pytest
import torch

from accel.envs.spaces import ActionSpec
from accel.networks import PolicyNetwork
from accel.publishing.check import ArtifactCheck, QuickCheck, greatest_mean
from accel.publishing.distillation import PolicyDivergence
from accel.publishing.inputs import RecentInputs
from accel.publishing.publisher import Publisher
from compressors.artifact import CompressedPolicy
from compressors.checks.probe import ArtifactProbe
from compressors.errors import VerificationError
from compressors.runtime import PolicySession
from tests.accel.live_policies import BOX, DISCRETE, calibrate, config_for, make_batch, make_network


def _publisher(level: str, network: str = "mlp:64x2", **changes: object) -> tuple[Publisher, PolicyNetwork]:
    """One that has published its level, with no whole check to come for long."""
    values: dict[str, object] = {
        "activation": "relu",
        "check_interval_updates": 1000,
        "reselect_interval_updates": 1000,
    }
    config = config_for(network, level, **(values | changes))
    publisher = Publisher(config, net := make_network(config))
    calibrate(publisher, net)
    assert _offered(publisher) == level
    return publisher, net


def _offered(publisher: Publisher) -> str:
    return "+".join(CompressedPolicy.from_bytes(payload).scheme for payload in publisher.payloads().values())


def _scale(parameter: torch.Tensor, factor: float) -> None:
    with torch.no_grad():
        parameter.mul_(factor)


def _jitter(net: PolicyNetwork, generator: torch.Generator) -> None:
    """Weights of another publication, and of the same worth."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.0 + 1e-3 * torch.randn(parameter.shape, generator=generator))


@pytest.mark.parametrize("compressor", ["int8", "int8(per_channel)", "int4", "prune(0.5)+int8", "lowrank(0.25)+int8"])
@pytest.mark.parametrize("part", ["torso.layers.0.weight", "torso.layers.1.weight", "policy_head.mean.weight"])
def test_a_policy_that_goes_bad_is_withheld_at_that_very_publication(
    compressor: str, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="accel")
    publisher, net = _publisher(compressor)
    generator, parameter = torch.Generator().manual_seed(0), net.get_parameter(part)
    for _ in range(3):
        _jitter(net, generator)
        assert _offered(publisher) == compressor
    good = parameter.detach().clone()
    _scale(parameter, 1e4)
    assert [_offered(publisher) for _ in range(3)] == ["fp32"] * 3
    assert publisher.metrics()[f"withheld/{compressor}"] == 3
    warnings = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1 and "is withheld, fp32 stands in" in warnings[0] and "over the bound" in warnings[0]
    with torch.no_grad():
        parameter.copy_(good)
    publisher.observe(make_batch(net, seed=2))
    assert _offered(publisher) == compressor
    assert [r for r in caplog.records if r.message == f"{compressor} is published again"]


@pytest.mark.parametrize("max_publish_kl", [0.5, None])
@pytest.mark.parametrize("network", ["mlp:64x2", "nature-cnn:0.25", "mlp:64x1+lstm:32"])
def test_outputs_that_overflow_reach_nobody_and_the_last_good_policy_stays(
    network: str, max_publish_kl: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Every weight is finite, what fp32 makes of them is not."""
    publisher, net = _publisher("int8", network, max_publish_kl=max_publish_kl)
    weight = next(p for name, p in net.policy_head.named_parameters() if name.endswith("weight"))
    good = weight.detach().clone()
    with torch.no_grad():
        weight.copy_(torch.where(torch.arange(weight.numel()).view_as(weight) % 2 == 0, 3e38, -3e38))
    assert torch.isfinite(weight).all() and _offered(publisher) == ""
    assert [r for r in caplog.records if "is withheld" in r.message and "not finite" in r.message]
    with torch.no_grad():
        weight.copy_(good)
    publisher.observe(make_batch(net, seed=2))
    assert _offered(publisher) == "int8"


def test_a_noisy_policy_within_the_bound_is_not_withheld_by_chance() -> None:
    """Few rows alone are over the bound time and again; the whole check decides then."""
    publisher, net = _publisher("int4", max_publish_kl=None)
    artifact = publisher.artifact(1, "int4")
    assert artifact is not None
    bound = 1.2 * publisher._check(artifact, net.acting_module())
    publisher, net = _publisher("int4", max_publish_kl=bound)
    generator, means = torch.Generator().manual_seed(0), []
    for update in range(60):
        _jitter(net, generator)
        assert _offered(publisher) == "int4", update
        artifact = publisher.artifact(1, "int4")
        assert artifact is not None
        few = publisher._check.few_inputs()["observations"]
        wanted = net.acting_module()(torch.from_numpy(few))[0].detach()
        means.append(_mean_kl(artifact, few, wanted))
    assert sum(mean > bound for mean in means) >= 3, "so that a check of few rows alone would raise false alarms"
    metrics = publisher.metrics()
    assert (
        metrics["withheld/int4"] == 0
        and metrics["inconclusive_checks/int4"] >= 3
        and metrics["quick_check_ms/int4"] > 0.0
    )


@pytest.mark.parametrize(
    ("compressor", "network", "few", "more"), [("int4", "mlp:64x2", 16, 64), ("int8", "nature-cnn:0.25", 4, 16)]
)
def test_a_doubt_is_settled_with_more_rows_in_the_open_session(
    compressor: str, network: str, few: int, more: int
) -> None:
    publisher, net = _publisher(compressor, network, max_publish_kl=None)
    artifact = publisher.artifact(1)
    assert artifact is not None
    of_few, of_more, first = min((_greatest_means(net, artifact, few, more, first) for first in range(16)), key=_excess)
    assert of_more < of_few, "first rows that are worse than the next ones, or else this shows nothing"

    def quick_check(bound: float) -> tuple[bool, int]:
        """Whether it passes, and at which of the newest rows it would go on; -1: it has read all of them."""
        recent = _recent(net, first=first)
        passes = QuickCheck(ArtifactCheck(net.spec, net.state_shapes, recent, bound))(artifact, net.acting_module())
        newest, next_ones = recent.newest(more)["observations"], recent.next_few(few)["observations"]
        return passes, next((i for i in range(0, more, few) if np.array_equal(newest[i : i + few], next_ones)), -1)

    assert quick_check(1.01 * of_few) == (True, more - 2 * few), "few were enough"
    assert quick_check(0.5 * (of_few + of_more)) == (True, -1)
    assert quick_check(0.99 * of_more) == (False, -1), "the whole check decides"


def _recent(net: PolicyNetwork, rows: int = 256, first: int = 0) -> RecentInputs:
    recent = RecentInputs(rows, 16, seed=0)
    for seed in (first, first + 1):
        recent.observe(make_batch(net, seed=seed))
    return recent


def _greatest_means(
    net: PolicyNetwork, artifact: CompressedPolicy, few: int, more: int, first: int
) -> tuple[float, float, int]:
    """Of the newest few rows and of the newest of more, in an actor's session."""
    observations = _recent(net, first=first).newest(more)["observations"]
    session = PolicySession(artifact, batch=more)
    session.inputs["observations"][...] = observations
    session.run()
    wanted = net.acting_module()(torch.from_numpy(observations))[0].detach()
    found = PolicyDivergence(net.spec.action).of_rows(torch.from_numpy(session.outputs["params"]), wanted).numpy()
    return greatest_mean(found[-few:]), greatest_mean(found), first


def _excess(means: tuple[float, float, int]) -> float:
    return means[1] / means[0]


def test_more_rows_are_others_and_none_where_too_few_are_kept() -> None:
    net = make_network(config_for("mlp:8x1", "int8"))
    recent = _recent(net, rows=63)
    assert ArtifactCheck(net.spec, (), recent, 0.5).more_inputs() is None
    assert ArtifactCheck(net.spec, (), RecentInputs(64, 16, seed=0), 0.5).more_inputs() is None
    check = ArtifactCheck(net.spec, (), _recent(net, rows=64), 0.5)
    few, more = check.few_inputs(), check.more_inputs()
    assert more is not None
    seen = np.concatenate([few["observations"], more["observations"]])
    assert seen.shape == (64, 6) and len(np.unique(seen, axis=0)) == len(
        np.unique(_recent(net, 64).every()["observations"], axis=0)
    )


def test_a_level_out_of_use_keeps_no_open_session_and_takes_up_checks_again() -> None:
    config = config_for("mlp:64x2", "int8", check_interval_updates=1000)
    publisher = Publisher(config, net := make_network(config), levels=("int8", "prune(0.5)", "fp32"))
    calibrate(publisher, net)
    generator = torch.Generator().manual_seed(0)
    sessions: list[weakref.ref[ArtifactProbe]] = []
    for level in ("int8", "prune(0.5)", "fp32", "int8"):
        publisher.set_levels([level])
        publisher.observe(make_batch(net, seed=2))
        for _ in range(2):
            _jitter(net, generator)
            assert _offered(publisher) == level
        assert "quick_check_ms/" + level in publisher.metrics()
        assert [session() is not None for session in sessions] == [False] * len(sessions), "bounded by levels in use"
        probe = publisher._bound[level]._examiner._quick_check._probe
        assert probe is not None
        sessions.append(weakref.ref(probe))
        del probe


def _mean_kl(artifact: CompressedPolicy, observations: np.ndarray, wanted: torch.Tensor) -> float:
    session = PolicySession(artifact, batch=len(observations))
    session.inputs["observations"][...] = observations
    session.run()
    return float(PolicyDivergence(BOX)(torch.from_numpy(session.outputs["params"]), wanted))


def test_what_did_not_change_is_not_checked_again() -> None:
    publisher, net = _publisher("int8")
    publisher.metrics()
    assert _offered(publisher) == "int8" and "quick_check_ms/int8" not in publisher.metrics()
    _jitter(net, torch.Generator().manual_seed(0))
    assert _offered(publisher) == "int8" and "quick_check_ms/int8" in publisher.metrics()


def test_a_student_that_the_policy_leaves_behind_is_withheld() -> None:
    """Its bytes stay the same, its distance does not."""
    publisher, net = _publisher("distill(32x2)", max_publish_kl=5.0, distill_interval_updates=1000)
    _scale(net.policy_head.mean.weight, 1e3)
    assert _offered(publisher) == "fp32"


def test_a_model_that_cannot_be_loaded_is_refused() -> None:
    publisher, net = _publisher("int8")
    artifact = publisher.artifact(1, "int8")
    assert artifact is not None
    check = QuickCheck(publisher._check)
    assert check(artifact, net.acting_module())
    broken = dataclasses.replace(artifact, model=artifact.model[:-40])
    with pytest.raises(VerificationError, match="cannot be loaded"):
        check(broken, net.acting_module())
    assert check(artifact, net.acting_module())


@pytest.mark.parametrize("action", [DISCRETE, ActionSpec("multi_categorical", (3, 2, 5))], ids=lambda a: a.kind)
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_no_row_exceeds_what_the_short_cut_says(action: ActionSpec, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    policy = 3.0 * torch.randn(4096, action.param_size, generator=generator)
    acting = policy + scale * torch.randn(policy.shape, generator=generator)
    divergence = PolicyDivergence(action)
    for rows in range(0, 4096, 4):
        mine, theirs = acting[rows : rows + 4], policy[rows : rows + 4]
        exact = float(divergence.of_rows(mine, theirs).max())
        assert exact <= divergence.at_most(mine.numpy(), theirs.numpy()) + 1e-6
    assert math.isnan(divergence.at_most(acting.numpy(), np.full_like(policy.numpy(), np.nan)))


def test_gaussians_have_no_short_cut() -> None:
    assert PolicyDivergence(BOX).at_most(np.zeros((4, 6), np.float32), np.zeros((4, 6), np.float32)) == math.inf


def test_the_greatest_mean_is_two_standard_errors_above() -> None:
    sample = np.random.default_rng(0).exponential(size=16).astype(np.float32)
    assert greatest_mean(sample) == pytest.approx(sample.mean() + 2.0 * sample.std(ddof=1) / 4.0, rel=1e-6)
    assert greatest_mean(sample[:1]) == math.inf and math.isnan(greatest_mean(np.array([1.0, np.nan], np.float32)))


def test_few_rows_are_the_newest_and_then_all_others_in_turn() -> None:
    net = make_network(config_for("mlp:8x1", "int8"))
    recent = RecentInputs(100, 16, seed=0)
    recent.observe(make_batch(net, seed=0))
    recent.observe(make_batch(net, seed=1))
    newest = recent.newest(7)["observations"]
    few = recent.next_few(7)["observations"].copy()
    np.testing.assert_array_equal(few, newest)
    seen = np.concatenate([few, *(recent.next_few(7)["observations"].copy() for _ in range(16))])
    assert all((recent.every()["observations"] == row).all(axis=1).any() for row in seen)
    assert len(np.unique(seen, axis=0)) == len(np.unique(recent.every()["observations"], axis=0))
    assert len(recent.next_few(1000)["observations"]) == 100
