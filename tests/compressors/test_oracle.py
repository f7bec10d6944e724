"""onnxruntime's own quantizers as the oracle for every kind of policy, variant, chain, choice and awkward weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import nn

from accel.compressors.pipeline import Plan
from tests.compressors.oracle import (
    assert_activations_are_the_oracles,
    assert_layer_is_the_oracles,
    four_bits,
    initializers,
    quantised_by_onnxruntime,
    rounded_plan,
)
from tests.compressors.policies import CASES, randomise
from tests.compressors.spoiled import SPOILS

CHOSEN = {"deep-relu-mlp": "torso.2", "nature-cnn": "torso.2", "resnet": "torso.6.a", "lstm": "core"}
WHOLE = ["int8({v},x8)", "prune(0.5)+int8({v},x8)", "lowrank(0.5)+int8({v},x8)"]
BY_LAYER = [
    "int8({v},{layer}=int8)",
    "int8({v},{layer}=float)",
    "int8({v},{layer}=int4)",
    "int8({v},{layer}=int4,head=float)",
    "prune({layer}=0.5)+int8({v})",
    "prune(0.5,{layer}=0.25)+int8({v},{layer}=int4)",
    "lowrank({layer}=0.25)+int8({v})",
    "lowrank(0.5,{layer}=0.25)+int8({v},{layer}=int4)",
    "prune({layer}=0.5)+lowrank(head=1,{layer}=0.25)+int8({v})",
]
PAIRS = [
    *((scheme, name) for scheme in WHOLE for name in CASES if name != "lstm-cell" or "prune" not in scheme),
    # Reductions leave the core of an LSTM whole.
    *((scheme, name) for scheme in BY_LAYER for name in CHOSEN if name != "lstm" or scheme.startswith("int8")),
]
variants = pytest.mark.parametrize("variant", ["u8s8", "reduce_range", "s8s8"])


def _refreshed(scheme: str, name: str, variant: str, module: nn.Module) -> Plan:
    plan = rounded_plan(CASES[name], scheme.format(v=variant, layer=CHOSEN.get(name)), module)
    plan.refresh(module, version=1)
    return plan


def _channels(kernel: NDArray[np.float32]) -> Mapping[str, NDArray[np.generic]]:
    """A kernel's codes by the definition s = max|w| / 7, q = round(w / s), two a byte, the earlier one lower."""
    flat = kernel.reshape(len(kernel), -1)
    scales = (np.abs(flat).max(1) / np.float32(7.0)).astype(np.float32)
    scales[scales < np.finfo(np.float32).tiny] = 1.0
    codes = np.rint(flat / scales[:, None]).astype(np.int64).reshape(-1) % 16
    even = np.append(codes, [0] * (codes.size % 2))
    return {"codes": (even[::2] + 16 * even[1::2]).astype(np.uint8), "scale": scales}


def assert_all_are_the_oracles(plan: Plan, module: nn.Module) -> None:
    """Every layer as last refreshed, each by the oracle of its own format, and every activation, pixels included."""
    encoder = plan.encoder
    found = initializers(encoder.payload.to_bytes())
    oracle = quantised_by_onnxruntime(plan, module)
    parameters = plan.begin_update(module).parameters
    assert any(layer.bias for layer in encoder.layers) or encoder.int4_layers
    for layer in encoder.layers:
        assert_layer_is_the_oracles(layer, found, oracle)
    assert_activations_are_the_oracles(encoder, found, oracle)
    for spared in encoder.int4_layers:
        weight = np.asarray(parameters[spared.weight], np.float32)
        wanted = _channels(weight) if weight.ndim > 2 else four_bits(weight if spared.axis == 0 else weight.T)
        for part, codes in wanted.items():
            ours = encoder.payload.views[f"{spared.stem}:{part}"]
            np.testing.assert_array_equal(ours, codes, f"{part} of {spared.name}")
    for name in encoder.floats:
        np.testing.assert_array_equal(found[name], parameters[name], name)


@pytest.mark.few(42)
@variants
@pytest.mark.parametrize(("scheme", "name"), PAIRS)
def test_codes_are_the_oracles(scheme: str, name: str, variant: str) -> None:
    module = randomise(CASES[name].make(), seed=0)
    assert_all_are_the_oracles(_refreshed(scheme, name, variant, module), module)


@pytest.mark.few(31)
@pytest.mark.usefixtures("onnxruntimes_margin")
@variants
@pytest.mark.parametrize("spoil", SPOILS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize("scheme", [WHOLE[0], *BY_LAYER[:4]])
def test_codes_of_awkward_weights_are_the_oracles(
    scheme: str, name: str, spoil: Callable[[nn.Module], None], variant: str
) -> None:
    module = randomise(CASES[name].make(), seed=0)
    spoil(module)
    assert_all_are_the_oracles(_refreshed(scheme, name, variant, module), module)


@pytest.mark.parametrize("name", CHOSEN)
def test_ranges_that_inputs_leave_keep_the_oracles_codes(name: str) -> None:
    """Later calibrations move running ranges; what is quantised then is clipped at them."""
    module = randomise(CASES[name].make(), seed=0)
    plan = _refreshed(BY_LAYER[2], name, "s8s8", module)
    before = plan.encoder.ranges
    randomise(module, seed=5)
    plan.refresh(module, version=1)
    plan.calibrate(CASES[name].inputs(16, seed=7))
    plan.refresh(module, version=2)
    assert any(plan.encoder.ranges[value] != kept for value, kept in before.items())
    assert_all_are_the_oracles(plan, module)


@pytest.mark.parametrize(
    ("scheme", "parameter"),
    [
        *((WHOLE[0], f"{layer}.{part}") for layer in ("torso.0", "torso.7", "head") for part in ("weight", "bias")),
        *((scheme, "torso.2.weight") for scheme in BY_LAYER[:3]),
    ],
)
def test_the_comparison_sees_every_part(scheme: str, parameter: str) -> None:
    """One number of one layer is another when the oracle looks."""
    module = randomise(CASES["nature-cnn"].make(), seed=0)
    plan = _refreshed(scheme, "nature-cnn", "u8s8", module)
    assert_all_are_the_oracles(plan, module)
    module.get_parameter(parameter).data.view(-1)[0] += 0.5
    with pytest.raises(AssertionError):
        assert_all_are_the_oracles(plan, module)
