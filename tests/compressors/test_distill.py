"""Distillation: a student that learns online, shares the normaliser, and acts in the policy's place."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from accel.compressors.checks.executed_kernels import integer_kernels
from accel.compressors.errors import GraphError, SchemeError, UnsupportedLayerError
from accel.compressors.pipeline import make_compressor
from accel.compressors.plan import PlanUpdate
from tests.compressors.policies import CASES, MLP, applied, divergence, error_of, randomise, run_artifact, student


def _bind(scheme: str, policy: nn.Module, **options: object):
    case = CASES["tanh-mlp"]
    arguments = {"student_factory": student, "divergence": divergence, **options}
    compressor = make_compressor(scheme, **arguments)
    return compressor.bind(policy, case.examples(), case.inputs(128), output_names=case.outputs)


def _train(plan, policy: nn.Module, steps: int) -> list[float]:
    losses = []
    for step in range(steps):
        x = torch.from_numpy(CASES["tanh-mlp"].inputs(256, seed=step % 8)["observations"])
        losses.append(applied(plan, policy, PlanUpdate.distill_step, {"observations": x}))
    return losses


@pytest.mark.few(1)
@pytest.mark.parametrize("scheme", ["distill(32x2)", "distill(32x2)+int8(u8s8)", "distill(32x2)+prune(0.5)+fp16"])
def test_a_student_learns_to_act_like_the_policy(scheme: str) -> None:
    policy = randomise(MLP(width=64), seed=1)
    for p in policy.parameters():
        p.data *= 0.6
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    plan = _bind(scheme, policy)
    inputs = CASES["tanh-mlp"].inputs(256, seed=99)
    first = error_of(plan.refresh(policy, version=1), policy, inputs)
    losses = _train(plan, policy, 400)
    applied(plan, policy, PlanUpdate.reselect)
    plan.calibrate(inputs)
    artifact = plan.refresh(policy, version=2)
    last = error_of(artifact, policy, inputs)
    assert losses[-1] < 0.1 * losses[0]
    assert last < (0.9 if "prune" in scheme else 0.4) * first
    assert artifact.scheme == scheme and artifact.version == 2
    assert bool(integer_kernels(artifact)) == ("int8" in scheme)
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())


def test_what_the_student_shares_follows_the_policy_that_is_refreshed() -> None:
    policy = randomise(MLP(width=64), seed=1)
    plan = _bind("distill(16x1)", policy)
    other = randomise(MLP(width=64), seed=1)
    other.normaliser.mean += 1.0
    inputs = CASES["tanh-mlp"].inputs(8)
    shifted = {"observations": inputs["observations"] - np.float32(1.0)}
    mine, theirs = plan.refresh(policy, version=1), plan.refresh(other, version=1)
    np.testing.assert_allclose(run_artifact(theirs, inputs)[0], run_artifact(mine, shifted)[0], atol=1e-4)


def test_training_needs_no_gradients_of_the_caller() -> None:
    policy = MLP(width=64)
    plan = _bind("distill(16x1)", policy)
    with torch.no_grad():
        losses = _train(plan, policy, 5)
    assert losses[-1] < losses[0]
    assert all(p.grad is None for p in policy.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"student_factory": None}, "needs a student factory and a divergence"),
        ({"divergence": None}, "needs a student factory and a divergence"),
        (
            {"student_factory": lambda size, policy: MLP(gaussian=False)},
            r"returns shape \(2, 3\), but the policy returns \(2, 6\)",
        ),
        ({"student_factory": lambda size, policy: policy}, "no parameters of its own"),
    ],
    ids=["no factory", "no divergence", "another shape", "nothing to train"],
)
def test_what_cannot_learn_from_the_policy_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(SchemeError if None in options.values() else GraphError, match=message):
        _bind("distill(16x1)", MLP(), **options)


def test_a_student_larger_than_the_policy_is_refused() -> None:
    small = MLP(width=16)
    with pytest.raises(SchemeError, match=r"more parameters \(0\.02 M\) than the policy \(518\); use prune or lowrank"):
        _bind("distill(128x2)+int8", small)
    _bind("distill(16x2)", small)


def test_recurrent_policies_are_refused() -> None:
    case = CASES["lstm"]
    compressor = make_compressor("distill(16x1)", student_factory=student, divergence=divergence)
    with pytest.raises(UnsupportedLayerError, match="without recurrent state"):
        compressor.bind(case.make(), case.examples(), output_names=case.outputs)
