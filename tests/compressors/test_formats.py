"""fp16 and int4: sizes, closeness for any weights, kernels in use, oracles, refusals with reasons."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from accel.compressors.checks.executed_kernels import operators
from accel.compressors.cpu import VNNI, cpu_features
from accel.compressors.errors import WeightsError
from accel.compressors.pipeline import make_compressor
from tests.compressors.policies import CASES, bound, error_of, made, randomise, run_artifact, run_module

_NEEDS_VNNI = pytest.mark.skipif(VNNI not in cpu_features(), reason="needs a CPU with VNNI")
# format, features of the acting CPU where they decide, relative error allowed
FORMATS = [
    pytest.param("fp16", None, 2e-3, id="fp16"),
    pytest.param("int4", None, 0.55, id="int4"),
    pytest.param("int4(128)", None, 0.65, id="int4(128)"),
]
_IMAGES = ("nature-cnn", "resnet")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("scheme", "cpu", "limit"), FORMATS)
def test_refreshes_stay_close_for_any_weights(scheme: str, cpu: set[str] | None, limit: float, name: str) -> None:
    case, module = made(name)
    plan = make_compressor(scheme, cpu=cpu).bind(module, case.examples(), output_names=case.outputs)
    limit *= 2.5 if name == "resnet" else 1.0
    for seed in (1, 2):
        randomise(module, seed)
        inputs = case.inputs(32, seed)
        artifact = plan.refresh(module, version=seed)
        assert artifact.scheme == scheme
        assert error_of(artifact, module, inputs) < limit


@pytest.mark.parametrize(("scheme", "ratio"), [("fp16", 0.5), ("int8(u8s8,x8)", 0.25), ("int4", 0.16)])
def test_a_policy_shrinks(scheme: str, ratio: float) -> None:
    """Measured on 3 layers of 256 units; 4 bits and a scale for each 32 weights are 5/32 of the bytes."""
    case = CASES["tanh-mlp"]
    module = type(case.make())(width=256, depth=3)
    size = {text: len(case.bind(text, module).refresh(module, version=1).to_bytes()) for text in ("fp32", scheme)}
    assert size[scheme] / size["fp32"] == pytest.approx(ratio, rel=0.08)


@pytest.mark.parametrize("name", ["tanh-mlp", "nature-cnn", "resnet"])
def test_fp16_runs_the_kernels_of_fp32(name: str) -> None:
    case = CASES[name]
    module = case.make()
    whole, half = (operators(case.bind(scheme, module).refresh(module, version=1)) for scheme in ("fp32", "fp16"))
    assert whole == half


def test_fp16_is_rounding_to_nearest() -> None:
    case, module = made("relu-mlp")
    inputs = case.inputs(16)
    found = run_artifact(case.bind("fp16", module).refresh(module, version=1), inputs)[0]
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data = layer.weight.data.half().float()
    np.testing.assert_allclose(found, run_module(module, inputs)[0], atol=1e-5)


@pytest.mark.parametrize("value", [1e5, float("inf"), float("nan")])
def test_fp16_refuses_what_half_precision_cannot_hold(value: float) -> None:
    _, module, plan = bound("relu-mlp", "fp16")
    module.torso[0].weight.data[0, 0] = value
    with pytest.raises(WeightsError, match=r"torso\.0\.weight.*beyond half precision"):
        plan.refresh(module, version=1)
