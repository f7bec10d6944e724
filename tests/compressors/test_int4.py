"""4-bit weights: the oracle's own codes, what the kernels really compute, changes counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from accel.compressors.checks.executed_kernels import float_kernels, integer_kernels, weight_only_layers
from accel.compressors.errors import WeightsError
from accel.compressors.quantisation.nibbles import NibbleWriter
from tests.compressors.oracle import four_bits
from tests.compressors.policies import CASES, bound, refreshed

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]


def _block_codes(weight: Floats) -> tuple[Codes, Floats]:
    outputs, inputs = weight.shape
    codes = np.zeros((outputs, -(-inputs // 32), 16), dtype=np.uint8)
    return codes, NibbleWriter().write_blocks("layer", weight, codes)


@given(st.integers(1, 150), st.integers(1, 5), st.integers(0, 99), st.booleans())
def test_codes_are_those_of_onnxruntimes_quantiser(inputs: int, outputs: int, seed: int, halves: bool) -> None:
    """Weights in quarters put many quotients halfway between two codes."""
    weight = np.random.default_rng(seed).standard_normal((outputs, inputs)).astype(np.float32)
    weight = np.round(4 * weight) / np.float32(4) if halves else weight
    (codes, scales), wanted = _block_codes(weight), four_bits(weight)
    np.testing.assert_array_equal(codes, wanted["codes"])
    np.testing.assert_array_equal(scales, wanted["scale"])


def test_the_comparison_with_the_oracle_can_fail() -> None:
    weight = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    codes, _ = _block_codes(weight)
    weight[1, 3] += 0.5
    assert (codes != four_bits(weight)["codes"]).any()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
@pytest.mark.parametrize("name", ["relu-mlp", "nature-cnn"])
def test_what_is_not_finite_is_refused(name: str, value: float) -> None:
    _, module, plan = bound(name, "int4")
    module.torso[0].weight.data[0, 0] = value
    with pytest.raises(WeightsError, match=r"torso\.0.*not finite"):
        plan.refresh(module, version=1)


@pytest.mark.parametrize(("name", "linear"), [("tanh-mlp", 3), ("lstm", 3), ("nature-cnn", 2)])
def test_linear_layers_multiply_integers_and_convolutions_do_not(name: str, linear: int) -> None:
    _, _, artifact = refreshed(name, "int4")
    assert integer_kernels(artifact) == {"MatMulNBits": linear}
    convolutions = ("torso.0", "torso.2", "torso.4") if name == "nature-cnn" else ()
    assert weight_only_layers(artifact) == convolutions
    assert float_kernels(artifact).total() == len(convolutions)


def test_weight_only_layers_are_named() -> None:
    module = CASES["nature-cnn"].make()
    named = {
        scheme: weight_only_layers(CASES["nature-cnn"].bind(scheme, module).refresh(module, version=1))
        for scheme in ("fp32", "fp16", "int8", "int8(torso.0=int4,head=float)")
    }
    every = ("torso.0", "torso.2", "torso.4", "torso.7", "head")
    assert named == {"fp32": (), "fp16": every, "int8": (), "int8(torso.0=int4,head=float)": ("torso.0",)}
