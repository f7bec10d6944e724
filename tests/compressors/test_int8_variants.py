"""int8 per channel, with 7-bit weights and with signed activations; which one suits a CPU; what a plan counts."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from accel.compressors.checks.executed_kernels import float_kernels, integer_kernels, operators
from accel.compressors.cpu import ARM, AVX2, VNNI
from accel.compressors.errors import SchemeError
from accel.compressors.pipeline import make_compressor
from accel.compressors.plan import PlanUpdate
from tests.compressors.oracle import initializers, rounded_plan
from tests.compressors.policies import (
    CASES,
    applied,
    bound,
    error_of,
    made,
    refreshed,
    relative_error,
    run_artifact,
    run_module,
)

VARIANTS = ["int8(u8s8,x8)", "int8(reduce_range,x8)", "int8(s8s8,x8)"]


@pytest.mark.parametrize("name", ["tanh-mlp", "relu-mlp", "nature-cnn", "resnet", "lstm"])
@pytest.mark.parametrize("scheme", VARIANTS)
def test_every_variant_stays_close_in_integer_kernels(scheme: str, name: str) -> None:
    case, module, artifact = refreshed(name, scheme, seed=1)
    assert artifact.scheme == scheme
    assert integer_kernels(artifact) and not float_kernels(artifact)
    inputs = case.inputs(128, seed=1)
    limit = (2.0 if "reduce_range" in scheme else 1.0) * {"resnet": 0.08, "nature-cnn": 0.05}.get(name, 0.03)
    assert error_of(artifact, module, inputs) < limit


@pytest.mark.parametrize(
    ("reduction", "format", "name"),
    [
        *(("prune(0.5)", "int8(u8s8,x8)", name) for name in CASES if name != "lstm-cell"),
        *product(["lowrank(0.5)"], ["int8(u8s8,x8)", "fp16"], ["tanh-mlp", "nature-cnn", "lstm", "lstm-cell"]),
    ],
)
def test_what_a_reduction_leaves_stays_close_in_integer_kernels_too(reduction: str, format: str, name: str) -> None:
    case, module, artifact = refreshed(name, f"{reduction}+{format}")
    exact = case.bind(reduction, module).refresh(module, version=1)
    if "int8" in format:
        assert integer_kernels(artifact) and not float_kernels(artifact) and "MaxPool" not in operators(artifact)
    inputs = case.inputs(64)
    for ours, theirs in zip(run_artifact(artifact, inputs), run_artifact(exact, inputs), strict=True):
        assert relative_error(ours, theirs) < 0.08


def test_channels_and_features_of_different_sizes_keep_their_precision() -> None:
    """A unit a sixteenth of another's size is as exact where what reads it makes up for it."""
    case, module = made("relu-mlp")
    inputs = case.inputs(128, seed=1)
    wanted, sizes = run_module(module, inputs)[0], torch.logspace(-1.2, 0, 32)
    before = error_of(case.bind("int8(reduce_range)", module).refresh(module, 1), module, inputs)
    module.torso[2].weight.data *= sizes[:, None]
    module.torso[2].bias.data *= sizes
    module.head.weight.data /= sizes[None]
    np.testing.assert_allclose(run_module(module, inputs)[0], wanted, atol=1e-4)
    assert error_of(case.bind("int8(reduce_range)", module).refresh(module, 1), module, inputs) < 1.5 * before


def test_ranges_from_a_look_for_drift_are_enough_to_refresh() -> None:
    """It measures no weights, so that features have one step until a calibration."""
    case, module = made("deep-relu-mlp")
    plan, inputs = case.bind("int8(reduce_range)", module, rows=0), case.inputs(128, seed=1)
    applied(plan, module, PlanUpdate.recalibrate_on_drift, inputs)
    assert error_of(plan.refresh(module, 1), module, inputs) < 0.06


@pytest.mark.parametrize("name", ["tanh-mlp", "deep-relu-mlp", "lstm"])
def test_biases_make_up_for_what_rounding_takes_in_the_mean(name: str) -> None:
    case, module = made(name)
    inputs = case.inputs(128, seed=1)
    wanted = run_module(module, inputs)[0].mean(axis=0)
    plans = rounded_plan(case, "int8(reduce_range)", module), case.bind("int8(reduce_range)", module)
    rounded, ours = (run_artifact(plan.refresh(module, 1), inputs)[0].mean(axis=0) for plan in plans)
    assert np.abs(ours - wanted).mean() < 0.6 * np.abs(rounded - wanted).mean()


@pytest.mark.parametrize("method", ["int8", "qat"])
@pytest.mark.parametrize(
    ("cpu", "option", "variant", "needed"),
    [
        ({VNNI, AVX2}, "", "u8s8", (VNNI,)),
        ({AVX2}, "", "reduce_range", ()),
        (set(), "", "reduce_range", ()),
        ({ARM}, "", "s8s8", ()),
        ({VNNI, AVX2}, "(u8s8)", "u8s8", (VNNI,)),
        ({ARM}, "(u8s8)", "u8s8", (ARM,)),
        ({VNNI, AVX2}, "(s8s8)", "s8s8", ()),
        ({AVX2}, "(reduce_range)", "reduce_range", ()),
        ({VNNI}, "(reduce_range)", "reduce_range", ()),
    ],
)
def test_the_variant_follows_the_acting_cpu_or_carries_what_it_needs(
    method: str, cpu: set[str], option: str, variant: str, needed: tuple[str, ...]
) -> None:
    case = CASES["relu-mlp"]
    module = case.make()
    compressor = make_compressor(method + option, cpu=cpu)
    artifact = compressor.bind(module, case.examples(), case.inputs(32), output_names=case.outputs).refresh(module, 1)
    assert (artifact.variant, artifact.cpu_features, artifact.scheme) == (variant, needed, method + option)


@pytest.mark.parametrize("cpu", [{AVX2}, set()], ids=["avx2", "old x86"])
def test_a_variant_that_would_saturate_is_refused(cpu: set[str]) -> None:
    case = CASES["relu-mlp"]
    with pytest.raises(SchemeError, match=r"saturate on an acting CPU without VNNI.*omit the variant"):
        make_compressor("int8(u8s8)", cpu=cpu).bind(case.make(), case.examples(), output_names=case.outputs)


@pytest.mark.parametrize(("option", "greatest"), [("w2", 1), ("w3", 3), ("w4", 7)])
def test_weights_of_few_bits_reach_their_greatest_codes_and_no_others(option: str, greatest: int) -> None:
    _, module, plan = bound("relu-mlp", f"int8(s8s8,{option})")
    assert plan.scheme == f"int8(s8s8,{option})"
    numbers = initializers(plan.refresh(module, version=1).model)
    for layer in plan.encoder.layers:
        assert np.abs(numbers[f"{layer.stem}:codes"]).max() == greatest


def test_drift_is_counted_and_widens_the_ranges() -> None:
    case, module, plan = bound("relu-mlp", "int8(reduce_range,x8)")
    quiet, loud = case.inputs(32, seed=1), case.inputs(256, seed=1)
    module.normaliser.var.fill_(1.0)
    loud["observations"] = loud["observations"] * 3.0
    quieter = {name: array * np.float32(0.5) for name, array in quiet.items()}
    assert applied(plan, module, PlanUpdate.recalibrate_on_drift, quieter) == 0
    assert plan.encoder.calibrations == 1
    error_before = error_of(plan.refresh(module, 1), module, loud)
    drifted = applied(plan, module, PlanUpdate.recalibrate_on_drift, loud)
    assert drifted == plan.encoder.drifted_activations > 0
    assert plan.encoder.calibrations == 2
    assert error_of(plan.refresh(module, 1), module, loud) < 0.5 * error_before
    assert applied(plan, module, PlanUpdate.recalibrate_on_drift, loud) == 0


def test_drift_widens_what_drifted_and_narrows_nothing() -> None:
    """Two rows that make the normalised observation loud where the torso does not, and all else quieter than usual."""
    case, module, plan = bound("relu-mlp", "int8(reduce_range,x8)", rows=256)
    before = plan.encoder.ranges
    quiet = {name: array[:2] * np.float32(0.01) for name, array in case.inputs(256, seed=1).items()}
    quiet["observations"][0, 3] = 9.0
    seen = plan.encoder.measure(plan.begin_update(module).parameters, quiet)
    drifted = plan.encoder.drifted(seen)
    assert applied(plan, module, PlanUpdate.recalibrate_on_drift, quiet) == drifted > 0
    after = plan.encoder.ranges
    wider = {name: (after[name].low <= r.low) & (after[name].high >= r.high) for name, r in before.items()}
    assert all(map(np.all, wider.values()))
    assert sum(bool(np.any(after[name].high > r.high)) for name, r in before.items()) >= drifted
    assert any(np.any(now.high < before[name].high) for name, now in seen.items()), "the rows would have narrowed some"
    plan.calibrate(quiet)
    forgotten = [np.any(plan.encoder.ranges[name].high < r.high) for name, r in after.items()]
    assert any(forgotten), "calibration forgets slowly"
