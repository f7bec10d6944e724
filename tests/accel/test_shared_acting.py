"""An actor shared out among levels: each part acts as its level would alone, and nothing is lost on the way there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accel.acting.policy import SessionPolicy
from accel.acting.rules import make_sampler
from accel.acting.shared import (
    SharedPolicy,
    assignment_text,
    join_payloads,
    parse_assignment,
    split_payload,
    time_levels,
)
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.experience.unroll import UnrollLayout
from accel.networks import build_network
from accel.transport.base import PolicyUpdate
from compressors.errors import ArtifactError
from compressors.pipeline import make_compressor

SPEC = EnvSpec((5,), "float32", ActionSpec("categorical", (3,)))
ENVS = 6


def _payload(network_text: str, scheme: str, seed: int = 0) -> bytes:
    network = build_network(network_text, SPEC, seed=seed)
    module = network.acting_module()
    with torch.no_grad():
        module.policy_head.weight.mul_(100.0)
    example = {"observations": torch.randn(64, 5)}
    example |= {f"state_{i}": torch.zeros(64, *shape) for i, shape in enumerate(network.state_shapes)}
    calibration = {name: value.numpy() for name, value in example.items()}
    plan = make_compressor(scheme).bind(module, example, calibration, output_names=module.output_names)
    return plan.refresh(module, version=0).to_bytes()


def _policy(network_text: str, reports: list[dict[str, object]] | None = None) -> SharedPolicy:
    layout = UnrollLayout(SPEC, 4, ENVS, build_network(network_text, SPEC).state_shapes)
    sampler = make_sampler(SPEC.action, ENVS, 4, np.random.default_rng(0))
    sampler.begin()
    return SharedPolicy(layout, sampler, (reports if reports is not None else []).append)


def _act(policy: SharedPolicy | SessionPolicy, observations: np.ndarray, first: np.ndarray | None) -> np.ndarray:
    params = np.zeros((ENVS, 3), np.float32)
    policy.act(observations, first, 0, np.zeros(ENVS, np.int64), params)
    return params


@pytest.mark.parametrize("network", ["mlp:32x2", "mlp:16x1+lstm:8"])
def test_each_part_acts_as_its_level_alone(network: str) -> None:
    payloads = {"int8": _payload(network, "int8"), "fp32": _payload(network, "fp32")}
    shared = _policy(network)
    split = (("int8", 4), ("fp32", 2))
    shared.load(PolicyUpdate(3, assignment_text(split), join_payloads(split, payloads)))
    alone = {}
    for level in payloads:
        alone[level] = _policy(network)
        alone[level].load(PolicyUpdate(3, level, payloads[level]))
    assert shared.version == 3
    assert shared.scheme_ids(("fp32", "int8")).tolist() == [1, 1, 1, 1, 0, 0]
    assert alone["int8"].scheme_ids(("fp32", "int8")) == 1
    random = np.random.default_rng(0)
    for step in range(5):
        observations = random.standard_normal((ENVS, 5)).astype(np.float32)
        first = random.random(ENVS) < 0.3 if step else None
        found = _act(shared, observations, first)
        wanted = {level: _act(policy, observations, first) for level, policy in alone.items()}
        np.testing.assert_allclose(found[:4], wanted["int8"][:4], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found[4:], wanted["fp32"][4:], rtol=1e-5, atol=1e-5)
        assert not np.allclose(wanted["int8"], wanted["fp32"], atol=1e-5)


def test_recurrent_state_goes_on_across_assignments() -> None:
    network = "mlp:16x1+lstm:8"
    payloads = {"int8": _payload(network, "int8"), "fp32": _payload(network, "fp32")}
    shared, alone = _policy(network), _policy(network)
    for policy in (shared, alone):
        policy.load(PolicyUpdate(0, "fp32", payloads["fp32"]))
    observations = np.random.default_rng(0).standard_normal((4, ENVS, 5)).astype(np.float32)
    for split in ((("fp32", 2), ("int8", 4)), (("fp32", 6),), (("fp32", 1), ("fp32", 5))):
        before = [state.copy() for state in shared.states()]
        shared.load(PolicyUpdate(1, assignment_text(split), join_payloads(split, payloads)))
        for state, kept in zip(shared.states(), before, strict=True):
            np.testing.assert_array_equal(state, kept)
        _act(shared, observations[0], None)
    assert any(state.any() for state in shared.states())
    assert [state.shape for state in shared.states()] == [(ENVS, 8), (ENVS, 8)]


def test_a_level_without_environments_is_timed_once_and_never_acts() -> None:
    payloads = {"int8": _payload("mlp:32x2", "int8"), "fp32": _payload("mlp:32x2", "fp32")}
    reports: list[dict[str, object]] = []
    policy = _policy("mlp:32x2", reports)
    split = (("fp32", ENVS), ("int8", 0))
    for version in range(3):
        policy.load(PolicyUpdate(version, assignment_text(split), join_payloads(split, payloads)))
    assert policy.scheme_ids(("fp32", "int8")) == 0
    (report,) = reports
    timed = report["timed"]
    assert isinstance(timed, dict) and set(timed) == {"fp32", "int8"}
    assert all(policy_us > 0 and load_us > 0 for policy_us, load_us in timed.values())


def test_a_stand_in_is_not_timed_under_the_other_level_s_name() -> None:
    fp32 = _payload("mlp:32x2", "fp32")
    assert set(time_levels([fp32, fp32], ["fp32", "int8"], ENVS)) == {"fp32"}


def test_a_policy_that_does_not_load_leaves_everything_as_it_was() -> None:
    payloads = {"int8": _payload("mlp:32x2", "int8"), "fp32": _payload("mlp:32x2", "fp32")}
    split = (("int8", 3), ("fp32", 3))
    policy = _policy("mlp:32x2")
    good = join_payloads(split, payloads)
    policy.load(PolicyUpdate(1, assignment_text(split), good))
    observations = np.random.default_rng(0).standard_normal((ENVS, 5)).astype(np.float32)
    before = _act(policy, observations, None)
    damaged = bytearray(join_payloads(split, payloads | {"int8": _payload("mlp:32x2", "int8", seed=7)}))
    damaged[-10] ^= 255
    for text, payload in (
        (assignment_text(split), bytes(damaged)),
        (assignment_text(split), good[:-1]),
        (assignment_text(split), good + b"x"),
        ("int8:3;fp32:4", good),
        ("int8:3;fp32:x", good),
        ("int8", good),
    ):
        with pytest.raises(ArtifactError):
            policy.load(PolicyUpdate(2, text, payload))
        assert policy.version == 1
        np.testing.assert_array_equal(_act(policy, observations, None), before)


def test_a_newer_version_of_the_same_policy_needs_no_payload() -> None:
    policy = _policy("mlp:32x2")
    policy.load(PolicyUpdate(1, "fp32", _payload("mlp:32x2", "fp32")))
    policy.load(PolicyUpdate(2, "fp32", None))
    assert policy.version == 2 and policy.scheme == "fp32"


@given(
    st.lists(
        st.tuples(st.sampled_from(["fp32", "int8", "prune(0.25)+int8", "a.b-c(1,2)"]), st.integers(0, 9)),
        min_size=2,
        max_size=5,
    ),
    st.lists(st.binary(max_size=40), min_size=5, max_size=5),
)
def test_texts_and_payloads_round_trip(parts: list[tuple[str, int]], contents: list[bytes]) -> None:
    assignment = tuple(parts)
    assert parse_assignment(assignment_text(assignment), sum(envs for _, envs in assignment)) == assignment
    payloads = dict(zip(dict.fromkeys(level for level, _ in parts), contents, strict=False))
    found = [bytes(part) for part in split_payload(assignment, join_payloads(assignment, payloads))]
    assert found == [payloads[level] for level, _ in assignment]
