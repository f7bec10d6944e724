"""Validation: what goes bad between two full checks reaches no actor, and chance withholds nothing."""

from __future__ import annotations

import dataclasses
import logging
import math
import weakref
from collections.abc import Mapping

import numpy as np
import pytest
import torch

from accel.algorithms.distributions import PolicyDivergence
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.checks.probe import ArtifactProbe
from accel.compressors.errors import VerificationError
from accel.envs.spaces import ActionSpec
from accel.networks import PolicyNetwork
from accel.publishing.inputs import RecentInputs
from accel.publishing.level import Intervals
from accel.publishing.publisher import Publisher
from accel.publishing.validation import ValidationInputs, Validator, upper_limit_of_mean
from tests.accel.publishing.live_policies import (
    BOX,
    DISCRETE,
    calibrate,
    calibrated,
    config_for,
    make_batch,
    make_network,
    observe,
    published,
    publisher_of,
    rows_of,
    scale,
    take,
)
from tests.compressors.policies import run_artifact

RARE = Intervals(check=1000)


def _publisher(
    level: str, network: str = "mlp:64x2", intervals: Intervals = RARE, **changes: object
) -> tuple[Publisher, PolicyNetwork]:
    """One that has published its level, with no full check to come for long."""
    publisher, net = calibrated(network, level, intervals, **{"activation": "relu", **changes})
    assert published(publisher) == level
    return publisher, net


def _jitter(net: PolicyNetwork, generator: torch.Generator) -> None:
    """Weights of another publication, and of the same worth."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.0 + 1e-3 * torch.randn(parameter.shape, generator=generator))


@pytest.mark.few(4)
@pytest.mark.parametrize("compressor", ["int8", "int4", "prune(0.5)+int8", "lowrank(0.25)+int8"])
@pytest.mark.parametrize("part", ["torso.layers.0.weight", "torso.layers.1.weight", "policy_head.mean.weight"])
def test_a_policy_that_goes_bad_is_withheld_at_that_very_publication(
    compressor: str, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="accel")
    publisher, net = _publisher(compressor)
    generator, parameter = torch.Generator().manual_seed(0), net.get_parameter(part)
    for _ in range(3):
        _jitter(net, generator)
        assert published(publisher) == compressor
    good = parameter.detach().clone()
    scale(parameter, 1e4)
    assert [published(publisher) for _ in range(3)] == ["fp32"] * 3
    assert publisher.metrics()[f"withheld/{compressor}"] == 3
    warnings = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1 and "is withheld, fp32 stands in" in warnings[0] and "over the bound" in warnings[0]
    with torch.no_grad():
        parameter.copy_(good)
    observe(publisher, net, make_batch(net, seed=2))
    assert published(publisher) == compressor
    assert [r for r in caplog.records if r.message == f"{compressor} is published again"]


@pytest.mark.few(2)
@pytest.mark.parametrize("max_publish_kl", [0.5, None])
@pytest.mark.parametrize("network", ["mlp:64x2", "nature-cnn:0.25", "mlp:64x1+lstm:128"])
def test_outputs_that_overflow_reach_nobody_and_the_last_good_policy_stays(
    network: str, max_publish_kl: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Every weight is finite, what fp32 makes of them is not."""
    publisher, net = _publisher("int8", network, max_publish_kl=max_publish_kl)
    weight = next(p for name, p in net.policy_head.named_parameters() if name.endswith("weight"))
    good = weight.detach().clone()
    with torch.no_grad():
        weight.copy_(torch.where(torch.arange(len(weight))[:, None] % 2 == 0, 3e38, -3e38).expand_as(weight))
    assert torch.isfinite(weight).all() and published(publisher) == ""
    assert [r for r in caplog.records if "is withheld" in r.message and "not finite" in r.message]
    with torch.no_grad():
        weight.copy_(good)
    observe(publisher, net, make_batch(net, seed=2))
    assert published(publisher) == "int8"


def test_a_noisy_policy_within_the_bound_is_not_withheld_by_chance() -> None:
    """Few rows alone are over the bound time and again; a full check decides then."""
    publisher, net = _publisher("int4", max_publish_kl=None)
    artifact = publisher.artifact(1, "int4")
    bound = 1.2 * _validator(net, _recent(net)).check_fully(artifact, net.acting_module())
    publisher, net = _publisher("int4", max_publish_kl=bound)
    generator, means, recent = torch.Generator().manual_seed(0), [], _recent(net)
    for update in range(60):
        _jitter(net, generator)
        assert published(publisher) == "int4", update
        artifact = publisher.artifact(1, "int4")
        few = recent.next_few(16)["observations"]
        wanted = net.acting_module()(torch.from_numpy(few))[0].detach()
        acting = run_artifact(artifact, {"observations": few})[0]
        means.append(float(PolicyDivergence(BOX).of_rows(wanted.numpy(), acting).mean()))
    assert sum(mean > bound for mean in means) >= 3, "so that a check of few rows alone would raise false alarms"
    metrics = publisher.metrics()
    assert metrics["withheld/int4"] == 0 and metrics["check_ms/int4"] > 0.0


@pytest.mark.parametrize(
    ("compressor", "network", "few", "more"), [("int4", "mlp:64x2", 16, 64), ("int8", "nature-cnn:0.25", 4, 16)]
)
def test_an_unclear_quick_check_takes_further_rows_in_the_open_session(
    compressor: str, network: str, few: int, more: int
) -> None:
    publisher, net = _publisher(compressor, network, max_publish_kl=None)
    artifact = publisher.artifact(1)
    of_few, of_more, first = min(
        (_upper_limits(net, artifact, few, more, first) for first in range(16)), key=lambda m: m[1] / m[0]
    )
    assert of_more < of_few, "first rows that are worse than the next ones, or else this shows nothing"

    def quick_check(bound: float) -> tuple[bool, int]:
        """Whether it passes, and at which of the newest rows it would go on; -1: it has read all of them."""
        recent = _recent(net, first=first)
        passes = _validator(net, recent, bound).check_quickly(artifact, net.acting_module())
        newest, next_ones = recent.newest(more)["observations"], recent.next_few(few)["observations"]
        return passes, next((i for i in range(0, more, few) if np.array_equal(newest[i : i + few], next_ones)), -1)

    assert quick_check(1.01 * of_few) == (True, more - 2 * few), "few were enough"
    assert quick_check(0.5 * (of_few + of_more)) == (True, -1)
    assert quick_check(0.9 * of_more) == (False, -1), "a full check decides"


def _recent(net: PolicyNetwork, rows: int = 256, first: int = 0) -> RecentInputs:
    recent = RecentInputs(rows, 16, seed=0)
    for seed in (first, first + 1):
        recent.tick()
        take(recent, rows_of(make_batch(net, seed=seed)))
    return recent


def _validator(net: PolicyNetwork, recent: RecentInputs, bound: float | None = None) -> Validator:
    inputs = ValidationInputs(net.spec, net.state_shapes, recent)
    return Validator(inputs, PolicyDivergence(net.spec.action), bound)


def _upper_limits(
    net: PolicyNetwork, artifact: CompressedPolicy, few: int, more: int, first: int
) -> tuple[float, float, int]:
    """Of the newest few rows and of the newest of more, in an actor's session."""
    observations = _recent(net, first=first).newest(more)["observations"]
    wanted = net.acting_module()(torch.from_numpy(observations))[0].detach()
    found = PolicyDivergence(net.spec.action).of_rows(
        wanted.numpy(), run_artifact(artifact, {"observations": observations})[0]
    )
    return upper_limit_of_mean(found[-few:]), upper_limit_of_mean(found), first


def test_further_rows_are_others_and_none_where_too_few_are_kept() -> None:
    net = make_network(config_for("mlp:8x1", "int8"))
    assert ValidationInputs(net.spec, (), _recent(net, rows=63)).further() is None
    assert ValidationInputs(net.spec, (), RecentInputs(64, 16, seed=0)).further() is None
    inputs = ValidationInputs(net.spec, (), _recent(net, rows=64))
    few, more = inputs.quick(), inputs.further()
    seen = np.concatenate([few["observations"], more["observations"]])
    assert seen.shape == (64, 6) and len(np.unique(seen, axis=0)) == len(
        np.unique(_recent(net, 64).every()["observations"], axis=0)
    )


def test_a_level_out_of_use_keeps_no_open_session_and_is_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[weakref.ref[ArtifactProbe]] = []
    make = ArtifactProbe.open

    def recorded(artifact: CompressedPolicy, inputs: Mapping[str, np.ndarray]) -> ArtifactProbe:
        probe = make(artifact, inputs)
        opened.append(weakref.ref(probe))
        return probe

    monkeypatch.setattr(ArtifactProbe, "open", recorded)
    publisher, net = publisher_of("mlp:64x2", "int8", RARE, levels=("int8", "prune(0.5)", "fp32"))
    calibrate(publisher, net)
    generator = torch.Generator().manual_seed(0)
    for level in ("int8", "prune(0.5)", "fp32", "int8"):
        publisher.use(level)
        observe(publisher, net, make_batch(net, seed=2))
        for _ in range(2):
            _jitter(net, generator)
            assert published(publisher) == level
        assert "check_ms/" + level in publisher.metrics()
        assert [probe() is not None for probe in opened] == [False] * (len(opened) - 1) + [True], "one for each in use"
    assert len(opened) == 4


def test_what_did_not_change_is_not_checked_again() -> None:
    publisher, net = _publisher("int8")
    publisher.metrics()
    assert published(publisher) == "int8" and "check_ms/int8" not in publisher.metrics()
    _jitter(net, torch.Generator().manual_seed(0))
    assert published(publisher) == "int8" and "check_ms/int8" in publisher.metrics()


def test_a_student_that_the_policy_leaves_behind_is_withheld() -> None:
    """Its bytes stay the same, its distance does not."""
    publisher, net = _publisher("distill(32x2)", intervals=Intervals(check=1000, distill=1000), max_publish_kl=5.0)
    scale(net.policy_head.mean.weight, 1e3)
    assert published(publisher) == "fp32"


def test_a_model_that_cannot_be_loaded_is_refused() -> None:
    publisher, net = _publisher("int8")
    artifact = publisher.artifact(1, "int8")
    check = _validator(net, _recent(net)).check_quickly
    assert check(artifact, net.acting_module())
    broken = dataclasses.replace(artifact, model=artifact.model[:-40])
    with pytest.raises(VerificationError, match="cannot be loaded"):
        check(broken, net.acting_module())
    assert check(artifact, net.acting_module())


@pytest.mark.parametrize("action", [DISCRETE, ActionSpec("multi_categorical", (3, 2, 5))], ids=lambda a: a.kind)
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_no_row_exceeds_the_upper_bound(action: ActionSpec, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3.0 * torch.randn(4096, action.param_size, generator=generator)
    policy, acting = logits.numpy(), (logits + scale * torch.randn(logits.shape, generator=generator)).numpy()
    divergence = PolicyDivergence(action)
    for rows in range(0, 4096, 4):
        mine, theirs = acting[rows : rows + 4], policy[rows : rows + 4]
        exact = float(divergence.of_rows(theirs, mine).max())
        assert exact <= divergence.upper_bound(theirs, mine) + 1e-6
    assert math.isnan(divergence.upper_bound(np.full_like(policy, np.nan), acting))


def test_the_upper_limit_of_a_mean_is_two_standard_errors_above() -> None:
    sample = np.random.default_rng(0).exponential(size=16).astype(np.float32)
    assert upper_limit_of_mean(sample) == pytest.approx(sample.mean() + 2.0 * sample.std(ddof=1) / 4.0, rel=1e-6)
    assert upper_limit_of_mean(sample[:1]) == math.inf and math.isnan(
        upper_limit_of_mean(np.array([1.0, np.nan], np.float32))
    )


def test_an_artifact_that_needs_another_cpu_is_checked_but_not_held_to_the_bound() -> None:
    """A learner without the actors' CPU features still sees shapes and finiteness."""
    publisher, net = _publisher("int8")
    artifact = publisher.artifact(1, "int8")
    validator = _validator(net, _recent(net), 1e-9)
    with pytest.raises(VerificationError, match="over the bound"):
        validator.check_fully(artifact, net.acting_module())
    foreign = dataclasses.replace(artifact, cpu_features=("a feature of tomorrow",))
    assert 0.0 < validator.check_fully(foreign, net.acting_module()) < 0.1


def test_the_age_of_the_divergence_is_recorded_with_it() -> None:
    publisher, net = _publisher("int8", intervals=Intervals(check=4))
    first = publisher.metrics()
    assert first["publish_kl_age_updates/int8"] == 0.0
    scale(net.policy_head.mean.weight, 2.0)
    ages = []
    for update in range(6):
        observe(publisher, net, make_batch(net, seed=update))
        assert published(publisher) == "int8"
        metrics = publisher.metrics()
        ages.append(metrics["publish_kl_age_updates/int8"])
        assert (metrics["publish_kl/int8"] == first["publish_kl/int8"]) == (update < 1)
    assert ages == [1.0, 0.0, 1.0, 2.0, 3.0, 0.0]


class ActionDifference(PolicyDivergence):
    """The greatest difference of two deterministic policies' actions, which are the means; deviations do not matter."""

    def __init__(self) -> None:
        super().__init__(BOX)

    def __call__(self, student: torch.Tensor, policy: torch.Tensor) -> torch.Tensor:
        return (student - policy)[:, :3].square().mean()

    def of_rows(self, reference: np.ndarray, acting: np.ndarray) -> np.ndarray:
        return np.abs(reference - acting)[:, :3].max(axis=1)

    def upper_bound(self, reference: np.ndarray, acting: np.ndarray) -> float:
        return math.inf


@pytest.mark.parametrize("level", ["int8", "distill(32x2)"])
def test_the_divergence_is_the_action_rules(level: str) -> None:
    """Deviations so small that any difference of means is a large KL; a deterministic rule does not look at them."""
    config = config_for("mlp:64x2", level, max_publish_kl=0.5)
    net = make_network(config)
    scale(net.policy_head.mean.weight, 0.1)
    with torch.no_grad():
        net.policy_head.log_std.fill_(-8.0)
    often = Intervals(check=1)
    publishers = [Publisher(config, net, divergence=d, intervals=often) for d in (None, ActionDifference())]
    for publisher in publishers:
        calibrate(publisher, net)
    assert [published(publisher) for publisher in publishers] == ["fp32", level]
    artifact = publishers[1].artifact(1, level)
    rows = _recent(net).newest(256)["observations"]
    wanted = net.acting_module()(torch.from_numpy(rows))[0].detach().numpy()
    difference = float(ActionDifference().of_rows(wanted, run_artifact(artifact, {"observations": rows})[0]).mean())
    assert publishers[1].metrics()[f"publish_kl/{level}"] == pytest.approx(difference, rel=1e-3)
