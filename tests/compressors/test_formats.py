"""fp16, int8-dynamic and int4: sizes, closeness for any weights, kernels in use, oracles, refusals with reasons."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnxruntime.quantization.quant_utils import quantize_data
from torch import nn

from compressors.checks.executed_kernels import float_kernels, integer_kernels, operators
from compressors.cpu import AVX2, VNNI, cpu_features
from compressors.errors import SchemeError, UnsupportedLayerError, WeightsError
from compressors.pipeline import make_compressor
from tests.compressors.oracle import initializers
from tests.compressors.policies import CASES, randomise, relative_error, run_artifact, run_module

_NEEDS_VNNI = pytest.mark.skipif(VNNI not in cpu_features(), reason="needs a CPU with VNNI")
# format, features of the acting CPU where they decide, relative error allowed
FORMATS = [
    pytest.param("fp16", None, 2e-3, id="fp16"),
    pytest.param("int8-dynamic", {VNNI}, 0.04, marks=_NEEDS_VNNI, id="int8-dynamic with 8-bit weights"),
    pytest.param("int8-dynamic", {AVX2}, 0.08, id="int8-dynamic with 7-bit weights"),
    pytest.param("int4", None, 0.55, id="int4"),
    pytest.param("int4(128)", None, 0.65, id="int4(128)"),
]
_IMAGES = ("nature-cnn", "resnet")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("scheme", "cpu", "limit"), FORMATS)
def test_refreshes_stay_close_for_any_weights(scheme: str, cpu: set[str] | None, limit: float, name: str) -> None:
    if scheme == "int8-dynamic" and name in _IMAGES:
        scheme = "int8-dynamic(force)"
    case = CASES[name]
    module = randomise(case.make(), seed=0)
    plan = make_compressor(scheme, cpu=cpu).bind(module, case.examples(), output_names=case.outputs)
    limit *= 2.5 if name == "resnet" else 1.0
    for seed in (1, 2):
        randomise(module, seed)
        inputs = case.inputs(32, seed)
        artifact = plan.refresh(module, version=seed)
        assert artifact.scheme == scheme
        for array, wanted in zip(run_artifact(artifact, inputs), run_module(module, inputs), strict=True):
            assert relative_error(array, wanted) < limit


@pytest.mark.parametrize(
    ("scheme", "ratio"), [("fp16", 0.5), ("int8(u8s8)", 0.25), ("int8-dynamic", 0.25), ("int4", 0.16)]
)
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
    case = CASES["relu-mlp"]
    module = randomise(case.make(), seed=0)
    inputs = case.inputs(16)
    found = run_artifact(case.bind("fp16", module).refresh(module, version=1), inputs)[0]
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data = layer.weight.data.half().float()
    np.testing.assert_allclose(found, run_module(module, inputs)[0], atol=1e-5)


@pytest.mark.parametrize("value", [1e5, float("inf"), float("nan")])
def test_fp16_refuses_what_half_precision_cannot_hold(value: float) -> None:
    case = CASES["relu-mlp"]
    module = case.make()
    plan = case.bind("fp16", module)
    module.torso[0].weight.data[0, 0] = value
    with pytest.raises(WeightsError, match=r"torso\.0\.weight.*beyond half precision"):
        plan.refresh(module, version=1)


@pytest.mark.parametrize(
    ("name", "kernels"), [("tanh-mlp", 3), ("relu-mlp", 3), ("lstm", 3), ("lstm-cell", 4)], ids=lambda v: str(v)
)
def test_dynamic_layers_run_in_integer_kernels(name: str, kernels: int) -> None:
    case = CASES[name]
    module = case.make()
    artifact = case.bind("int8-dynamic", module).refresh(module, version=1)
    assert integer_kernels(artifact) == {"DynamicQuantizeMatMul": kernels}
    assert not float_kernels(artifact)


def test_dynamic_convolutions_are_refused_with_the_reason() -> None:
    case = CASES["nature-cnn"]
    with pytest.raises(UnsupportedLayerError, match=r"'torso\.0' is a convolution.*slower.*int8-dynamic\(force\)"):
        case.bind("int8-dynamic", case.make())


def test_forced_dynamic_convolutions_run_in_integer_kernels() -> None:
    case = CASES["nature-cnn"]
    module = case.make()
    artifact = case.bind("int8-dynamic(force)", module).refresh(module, version=1)
    assert integer_kernels(artifact) == {"ConvInteger": 3, "DynamicQuantizeMatMul": 2}


@pytest.mark.parametrize(("cpu", "reduced"), [({VNNI}, False), ({AVX2}, True)], ids=["vnni", "avx2"])
def test_dynamic_codes_are_those_of_onnxruntimes_quantizer(cpu: set[str], reduced: bool) -> None:
    case = CASES["relu-mlp"]
    module = randomise(case.make(), seed=3)
    plan = make_compressor("int8-dynamic", cpu=cpu).bind(module, case.examples(), output_names=case.outputs)
    found = initializers(plan.refresh(module, version=1).model)
    for layer, linear in zip(plan.encoder.layers, [module.torso[0], module.torso[2], module.head], strict=True):
        weight = linear.weight.detach().numpy().T.copy()
        _, scale, codes = quantize_data(weight, 3, True, reduce_range=reduced)  # 3: TensorProto.INT8
        np.testing.assert_array_equal(found[f"{layer.stem}:codes"], codes)
        assert found[f"{layer.stem}:scale"] == scale


def test_dynamic_int8_needs_no_calibration_and_counts_changes() -> None:
    case = CASES["relu-mlp"]
    module = randomise(case.make(), seed=3)
    plan = make_compressor("int8-dynamic").bind(module, case.examples(), output_names=case.outputs)
    plan.refresh(module, version=1)
    randomise(module, seed=4)
    plan.refresh(module, version=2)
    assert plan.statistics.changed_codes > 0.9 and plan.statistics.calibrations == 0


@pytest.mark.parametrize("text", ["fp16(1)", "int8-dynamic(fast)", "int4(8)", "int4(32,32)", "int4(x)"])
def test_wrong_arguments_are_refused(text: str) -> None:
    with pytest.raises(SchemeError):
        make_compressor(text)


@pytest.mark.parametrize("scheme", ["fp16", "int8-dynamic", "int4"])
def test_a_plan_goes_through_its_whole_protocol(scheme: str) -> None:
    """Schemes without ranges, choices or a student take those calls as having nothing to do."""
    case = CASES["tanh-mlp"]
    module = case.make()
    plan = case.bind(scheme, module)
    plan.calibrate(case.inputs(4))
    assert plan.recalibrate_on_drift(case.inputs(4)) == 0
    plan.reselect(module)
    assert plan.distill_step(module, {"observations": torch.zeros(1, 11)}) is None
