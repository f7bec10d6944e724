"""Students: mlps for vectors, narrow convolutional networks for images, always smaller than the policy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from accel.algorithms.distributions import PolicyDivergence
from accel.compressors.pipeline import make_compressor
from accel.compressors.runtime import PolicySession
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.networks import build_network
from accel.networks.policy import ActingModule
from accel.publishing.distillation import StudentCNN, StudentFactory

_CHOICES = ActionSpec("categorical", (6,), (), ())


def _images(size: int) -> EnvSpec:
    return EnvSpec((4, size, size), "uint8", _CHOICES)


def _factory(network: str, spec: EnvSpec) -> tuple[StudentFactory, ActingModule]:
    policy = build_network(network, spec, seed=0)
    return StudentFactory(spec, "tanh", 0), policy.acting_module()


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("network", ["nature-cnn", "impala-resnet"])
@pytest.mark.parametrize("size", ["64x2", "128x1"])
def test_students_of_image_policies_are_convolutional_and_smaller(network: str, size: str) -> None:
    factory, policy = _factory(network, _images(84))
    student = factory(size, policy)
    assert isinstance(student.torso, StudentCNN)
    width, depth = map(int, size.split("x"))
    channels = [c.out_channels for c in student.torso.convolutions]
    assert channels == [width // 8, width // 4, width // 4]
    assert [layer.out_features for layer in student.torso.layers] == [width] * depth
    assert _size(student) < 0.25 * _size(policy)
    same = factory(size, policy)
    assert all(torch.equal(a, b) for a, b in zip(student.parameters(), same.parameters(), strict=True))


def test_students_of_small_images_and_vectors_are_mlps() -> None:
    for spec in (_images(10), EnvSpec((17,), "float32", _CHOICES)):
        factory, policy = _factory("mlp:256x2", spec)
        assert type(factory("16x2", policy).torso).__name__ == "MLPTorso"


@pytest.mark.few(1)
@pytest.mark.parametrize("scheme", ["distill(64x2)", "distill(64x2)+int8", "distill(64x2)+prune(0.5)"])
def test_an_image_student_learns_and_its_artifact_is_smaller(scheme: str) -> None:
    spec = _images(44)
    factory, policy = _factory("nature-cnn:0.5", spec)
    compressor = make_compressor(scheme, student_factory=factory, divergence=PolicyDivergence(spec.action))
    rng = np.random.default_rng(0)
    inputs = {"observations": rng.integers(0, 256, (32, 4, 44, 44)).astype(np.uint8)}
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    examples = {"observations": tensors["observations"][:2]}
    plan = compressor.bind(policy, examples, output_names=policy.output_names)
    with torch.no_grad():
        for parameter in policy.policy_head.parameters():
            parameter.mul_(50.0)
    update = plan.begin_update(policy)
    losses = [update.distill_step(tensors) for _ in range(40)]
    update.commit()
    assert losses[-1] < 0.5 * losses[0]
    plan.calibrate(inputs)
    artifact = plan.refresh(policy, version=1)
    whole = make_compressor("fp32").bind(policy, examples, output_names=["params"])
    assert len(artifact.model) < 0.3 * len(whole.refresh(policy, version=1).model)
    session = PolicySession(artifact, batch=2)
    session.run()
    assert np.isfinite(session.outputs["params"]).all()
