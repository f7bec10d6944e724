"""The project's own networks through the schemes: every torso, every head, with and without a recurrent core."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from accel.compressors.checks.executed_kernels import float_kernels, integer_kernels, operators
from accel.compressors.pipeline import make_compressor
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.networks import build_network
from tests.compressors.policies import error_of, run_artifact

torch.set_num_threads(1)

GAUSSIAN = ActionSpec("gaussian", (6,), (-1.0,) * 6, (1.0,) * 6)
CATEGORICAL = ActionSpec("categorical", (4,))
MULTI = ActionSpec("multi_categorical", (3, 2, 4))
NETWORKS = {
    "mlp:64x2 gaussian": ("mlp:64x2", (17,), GAUSSIAN),
    "mlp:64x2 categorical": ("mlp:64x2", (4,), CATEGORICAL),
    "mlp:64x2 multi": ("mlp:64x2", (8,), MULTI),
    "mlp:64x1+lstm:48 gaussian": ("mlp:64x1+lstm:48", (17,), GAUSSIAN),
    "mlp:64x1+gru:48 categorical": ("mlp:64x1+gru:48", (9,), CATEGORICAL),
    "nature-cnn:0.5": ("nature-cnn:0.5", (4, 36, 36), CATEGORICAL),
    "nature-cnn:0.5+lstm:32": ("nature-cnn:0.5+lstm:32", (4, 36, 36), CATEGORICAL),
    "impala-resnet": ("impala-resnet", (4, 32, 32), CATEGORICAL),
    "impala-resnet+lstm:32": ("impala-resnet+lstm:32", (4, 32, 32), CATEGORICAL),
}


@dataclass(frozen=True)
class Acting:
    """An acting module with statistics and a head that matter, and inputs for it."""

    module: torch.nn.Module
    examples: dict[str, torch.Tensor]

    def inputs(self, rows: int) -> dict[str, NDArray[np.generic]]:
        rng = np.random.default_rng(rows)
        made: dict[str, NDArray[np.generic]] = {}
        for name, value in self.examples.items():
            shape = (rows, *value.shape[1:])
            image = value.dtype == torch.uint8
            made[name] = (
                rng.integers(0, 256, shape).astype(np.uint8) if image else rng.normal(size=shape).astype(np.float32)
            )
        return made


@functools.cache
def _acting(name: str) -> Acting:
    text, shape, action = NETWORKS[name]
    image = len(shape) == 3
    spec = EnvSpec(shape, "uint8" if image else "float32", action)
    network = build_network(text, spec, normalise_observations=not image, seed=0)
    if network.normaliser is not None:
        network.normaliser.update(2.0 + 3.0 * torch.randn(100, *shape, generator=torch.Generator().manual_seed(0)))
    with torch.no_grad():
        for parameter in network.policy_head.parameters():
            parameter.mul_(50.0) if parameter.dim() > 1 else parameter.add_(0.3)
    examples = {"observations": torch.zeros(1, *shape, dtype=torch.uint8 if image else torch.float32)}
    examples |= {f"state_{i}": torch.zeros(1, *s) for i, s in enumerate(network.state_shapes)}
    return Acting(network.acting_module(), examples)


@pytest.mark.few(9)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    ("scheme", "limit"),
    [
        ("fp32", 1e-5),
        ("int8(reduce_range,x8)", 0.2),
    ],
)
def test_formats_stay_close(scheme: str, limit: float, name: str) -> None:
    acting = _acting(name)
    module = acting.module
    plan = make_compressor(scheme).bind(
        module, acting.examples, acting.inputs(48), output_names=module.output_names, metadata={}
    )
    artifact = plan.refresh(module, version=1)
    inputs = acting.inputs(48)
    assert error_of(artifact, module, inputs) < limit
    if "int8" in scheme:
        assert integer_kernels(artifact) and not float_kernels(artifact)


@pytest.mark.few(9)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("scheme", ["prune(0.5)+int8(reduce_range)", "lowrank(0.25)+int8(reduce_range)"])
def test_reductions_are_smaller_and_act(scheme: str, name: str) -> None:
    acting = _acting(name)
    module = acting.module
    arguments = (module, acting.examples, acting.inputs(16))
    artifact = make_compressor(scheme).bind(*arguments, output_names=module.output_names).refresh(module, version=1)
    whole = make_compressor(scheme.partition("+")[2] or "fp32").bind(*arguments, output_names=module.output_names)
    assert len(artifact.model) < len(whole.refresh(module, version=1).model)
    outputs = run_artifact(artifact, acting.inputs(4))
    assert all(np.isfinite(array).all() for array in outputs)
    assert [array.shape[1:] for array in outputs[1:]] == [v.shape[1:] for v in list(acting.examples.values())[1:]]


def test_a_gaussian_policy_computes_no_shapes_on_the_actor() -> None:
    acting = _acting("mlp:64x2 gaussian")
    module = acting.module
    plan = make_compressor("fp32").bind(module, acting.examples, output_names=module.output_names)
    assert operators(plan.refresh(module, version=1)) == {"Sub": 1, "Mul": 1, "Clip": 1, "FusedGemm": 2, "Gemm": 1}
