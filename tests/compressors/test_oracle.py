"""onnxruntime's own quantizers as the oracle for every kind of policy, variant of int8, chain and awkward weight."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn

from tests.compressors.oracle import (
    assert_codes_are_the_oracles,
    initializers,
    quantised_by_onnxruntime,
    rounded_plan,
)
from tests.compressors.policies import CASES, made, randomise
from tests.compressors.spoiled import SPOILS

VARIANTS = ["u8s8", "reduce_range", "s8s8"]
STATIC = [f"int8({variant},x8)" for variant in VARIANTS]
CHAINS = [
    "prune(0.5)+int8(u8s8,x8)",
    "prune(0.5)+int8(s8s8,x8)",
    "lowrank(0.5)+int8(u8s8,x8)",
    "lowrank(0.5)+int8(reduce_range,x8)",
]
CHAINED = [(chain, name) for chain in CHAINS for name in CASES if name != "lstm-cell" or "prune" not in chain]
SPOILED = ["relu-mlp", "nature-cnn", "resnet", "lstm"]


@functools.cache
def _trained_state(name: str) -> Mapping[str, Tensor]:
    """Weights after some steps of regression on targets with heavy tails and far from zero."""
    case, module = made(name, seed=3)
    inputs = {key: torch.from_numpy(array) for key, array in case.inputs(32, seed=3).items()}
    optimiser = torch.optim.Adam(module.parameters(), lr=0.02)
    first = next(iter(inputs.values())).float().flatten(1)
    losses = []
    for _ in range(40):
        output = module(*inputs.values())
        params = output if isinstance(output, Tensor) else output[0]
        loss = (params - 5.0 * first[:, : params.shape[1]].sign() - first.mean(1, keepdim=True) ** 3).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    return module.state_dict()


def _module(name: str, weights: str) -> nn.Module:
    module = randomise(CASES[name].make(), seed=0)
    if weights == "trained":
        module.load_state_dict(_trained_state(name))
    return module


spoiled = pytest.mark.parametrize("spoil", SPOILS, ids=lambda f: f.__name__)
with_weights = pytest.mark.parametrize("weights", ["random", "trained"])


@pytest.mark.few(14)
@with_weights
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("scheme", STATIC)
def test_static_codes_are_the_oracles(scheme: str, name: str, weights: str) -> None:
    module = _module(name, weights)
    assert_codes_are_the_oracles(rounded_plan(CASES[name], scheme, module), module)


@pytest.mark.few(13)
@with_weights
@pytest.mark.parametrize(("scheme", "name"), CHAINED)
def test_codes_of_smaller_policies_are_the_oracles(scheme: str, name: str, weights: str) -> None:
    module = _module(name, weights)
    assert_codes_are_the_oracles(rounded_plan(CASES[name], scheme, module), module)


@pytest.mark.few(15)
@pytest.mark.usefixtures("onnxruntimes_margin")
@spoiled
@pytest.mark.parametrize("name", SPOILED)
@pytest.mark.parametrize("scheme", ["int8(u8s8,x8)", "int8(reduce_range,x8)", "int8(s8s8,x8)"])
def test_codes_of_awkward_weights_are_the_oracles(scheme: str, name: str, spoil: Callable[[nn.Module], None]) -> None:
    module = _module(name, "random")
    spoil(module)
    assert_codes_are_the_oracles(rounded_plan(CASES[name], scheme, module), module)


def test_ranges_that_inputs_leave_keep_the_oracles_codes() -> None:
    """Later calibrations move running ranges; what is quantised then is clipped at them."""
    case = CASES["resnet"]
    module = _module("resnet", "random")
    plan = rounded_plan(case, "int8(s8s8)", module)
    before = plan.encoder.ranges
    randomise(module, seed=5)
    plan.refresh(module, version=1)
    plan.calibrate(case.inputs(16, seed=7))
    assert any(plan.encoder.ranges[name] != kept for name, kept in before.items())
    assert_codes_are_the_oracles(plan, module)


@pytest.mark.parametrize("part", ["weight", "bias"])
@pytest.mark.parametrize("layer", ["torso.0", "torso.7", "head"])
def test_the_comparison_sees_every_part(layer: str, part: str) -> None:
    """One number of one layer is another when the oracle looks."""
    module = _module("nature-cnn", "random")
    plan = rounded_plan(CASES["nature-cnn"], "int8(u8s8)", module)
    found = initializers(plan.refresh(module, version=1).model)
    bound = next(b for b in plan.encoder.layers if b.name == layer)
    module.get_submodule(layer).get_parameter(part).data.view(-1)[0] += 0.1
    wanted = quantised_by_onnxruntime(plan, module)
    codes = {"weight": f"{bound.stem}:codes", "bias": bound.bias_codes}[part]
    assert (found[codes] != wanted[f"{layer}.{part}_quantized"]).any()
