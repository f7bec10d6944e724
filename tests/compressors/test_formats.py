"""fp16: its kernels and its rounding, refusals with reasons; how much formats shrink a policy."""

from __future__ import annotations

import pytest
from torch import nn

from accel.compressors.checks.executed_kernels import operators
from accel.compressors.errors import WeightsError
from tests.compressors.policies import CASES, assert_acts_as, bound, made


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
    artifact = case.bind("fp16", module).refresh(module, version=1)
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data = layer.weight.data.half().float()
    assert_acts_as(module, artifact, inputs)


@pytest.mark.parametrize("value", [1e5, float("inf"), float("nan")])
def test_fp16_refuses_what_half_precision_cannot_hold(value: float) -> None:
    _, module, plan = bound("relu-mlp", "fp16")
    module.torso[0].weight.data[0, 0] = value
    with pytest.raises(WeightsError, match=r"torso\.0\.weight.*beyond half precision"):
        plan.refresh(module, version=1)
