"""An actor's timing of levels: what travels, whose answers they are, and how far each is from full precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accel.acting.rules import ActorPlace, RuleSpec, make_rule
from accel.acting.timing import ROUNDS, LevelTimer, assignment, join_levels, split_update
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.errors import ArtifactError
from accel.compressors.pipeline import make_compressor
from accel.compressors.runtime import PolicySession
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.experience.unroll import Unroll, UnrollLayout
from accel.networks import build_network
from accel.transport.base import PolicyUpdate

SPEC = EnvSpec((5,), "float32", ActionSpec("categorical", (3,)))
T, B = 6, 4


def _payload(network_text: str, scheme: str) -> bytes:
    network = build_network(network_text, SPEC, seed=0)
    module = network.acting_module()
    with torch.no_grad():
        module.policy_head.weight.mul_(100.0)
    example = {"observations": torch.randn(64, 5, generator=torch.Generator().manual_seed(0))}
    example |= {f"state_{i}": torch.zeros(64, *shape) for i, shape in enumerate(network.state_shapes)}
    calibration = {name: value.numpy() for name, value in example.items()}
    plan = make_compressor(scheme).bind(module, example, calibration, output_names=module.output_names)
    return plan.refresh(module, version=0).to_bytes()


def _unroll(layout: UnrollLayout) -> Unroll:
    unroll, random = layout.view(np.zeros(layout.nbytes, np.uint8)), np.random.default_rng(0)
    unroll["observations"][...] = random.standard_normal(unroll["observations"].shape)
    unroll["actions"][...] = random.integers(3, size=(T, B))
    unroll["valid"][...] = random.random((T + 1, B)) < 0.8
    unroll["first"][2] = True
    for state in unroll.states:
        state[...] = random.standard_normal(state.shape)
    return unroll


def _timer(layout: UnrollLayout) -> LevelTimer:
    rule = make_rule(RuleSpec(), SPEC.action)
    return LevelTimer(layout, rule, rule.bind(ActorPlace(B, T), np.random.default_rng(0)))


@pytest.mark.parametrize("network", ["mlp:32x2", "mlp:16x1+lstm:8"])
def test_every_level_is_timed_and_compared_with_full_precision(network: str) -> None:
    layout = UnrollLayout(SPEC, T, B, build_network(network, SPEC).state_shapes)
    unroll = _unroll(layout)
    schemes = ("fp32", "int8", "prune(0.5)")
    found: Any = _timer(layout).time({scheme: _payload(network, scheme) for scheme in schemes}, unroll)
    assert set(found) == set(schemes)
    for timed in found.values():
        assert len(timed["call_us"]) == ROUNDS and min(timed["call_us"]) > 0.0 and timed["load_us"] > 0.0
    assert found["fp32"]["kl"] == 0.0 and found["fp32"]["ess"] == found["fp32"]["overlap"] == 1.0
    for level in schemes[1:]:
        assert found[level]["kl"] > 0.0 and 0.0 < found[level]["ess"] < 1.0 and 0.0 < found[level]["overlap"] < 1.0


def test_mismatch_is_its_definition_between_two_policies() -> None:
    layout = UnrollLayout(SPEC, T, B)
    unroll, network = _unroll(layout), "mlp:32x2"
    payloads = {scheme: _payload(network, scheme) for scheme in ("fp32", "prune(0.5)")}
    found: Any = _timer(layout).time(payloads, unroll)
    answers = []
    for scheme in ("fp32", "prune(0.5)"):
        session = PolicySession(CompressedPolicy.from_bytes(payloads[scheme]), batch=T * B)
        session.inputs["observations"][...] = unroll["observations"][:T].reshape(T * B, 5)
        session.run()
        answers.append(torch.from_numpy(np.array(session.outputs["params"])).double().log_softmax(-1))
    rows = torch.from_numpy(unroll["valid"][:T].reshape(-1).copy())
    log_pi, log_mu = (answer[rows] for answer in answers)
    taken = torch.from_numpy(unroll["actions"].reshape(-1).copy())[rows][:, None]
    kl = (log_pi.exp() * (log_pi - log_mu)).sum(-1).mean()
    ess = (1.0 / ((2.0 * log_pi - log_mu).exp().sum(-1))).mean()
    overlap = (log_mu - log_pi).gather(1, taken).exp().clamp(max=1.0).mean()
    assert found["prune(0.5)"]["kl"] == pytest.approx(float(kl), rel=1e-4)
    assert found["prune(0.5)"]["ess"] == pytest.approx(float(ess), rel=1e-4)
    assert found["prune(0.5)"]["overlap"] == pytest.approx(float(overlap), rel=1e-4)


def test_what_stands_in_for_a_level_is_not_timed_in_its_stead() -> None:
    layout, fp32 = UnrollLayout(SPEC, T, B), _payload("mlp:32x2", "fp32")
    assert set(_timer(layout).time({"fp32": fp32, "int8": fp32}, _unroll(layout))) == {"fp32"}


@given(st.dictionaries(st.sampled_from(["fp32", "int8", "prune(0.5,a=0.25)+int8"]), st.binary(max_size=40), min_size=1))
def test_levels_travel_as_they_are(payloads: dict[str, bytes]) -> None:
    levels = tuple(payloads)
    acting, timed = split_update(PolicyUpdate(3, assignment(levels, 1), join_levels(levels, payloads)))
    assert (acting.version, acting.scheme, acting.payload) == (3, levels[0], payloads[levels[0]])
    assert timed == (payloads if len(levels) > 1 else {})


@pytest.mark.parametrize("damage", [lambda good: good[:-1], lambda good: good + b"x", lambda good: good[:4]])
def test_a_damaged_payload_is_refused(damage: Any) -> None:
    good = join_levels(("fp32", "int8"), {"fp32": b"12345", "int8": b"678"})
    with pytest.raises(ArtifactError, match=r"cut short|too many"):
        split_update(PolicyUpdate(0, "fp32;int8", damage(good)))
