"""Codes of any numbers: within half a step inside the range, saturated outside, zero exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from accel.compressors.errors import WeightsError
from accel.compressors.kernels.library import Kernels, kernels_here
from accel.compressors.quantisation.affine import (
    INT8,
    SMALLEST_SCALE,
    UINT8,
    WEIGHT_INT7,
    WEIGHT_INT8,
    IntegerType,
    activation_parameters,
    bias_codes,
    magnitudes,
    scales_for_bias,
    scales_of,
)
from accel.compressors.quantisation.weight_codes import CodeWriter

# the quotient is computed in single precision: half a step, and the rounding of numbers of up to 256 steps
HALF = 0.5 + 2e-5
_GREATEST = 2.0**100
weights = arrays.arrays(
    np.float32,
    arrays.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12),
    elements=st.floats(-_GREATEST, _GREATEST, width=32, allow_subnormal=False)
    | st.sampled_from([0.0, -1.0, 1.0, 127.0, -127.0, 0.5, 1e-30]),
)
ends = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
PLAIN = Kernels("plain", "numpy", 1)
WEIGHT_CODES = pytest.mark.parametrize("codes", [WEIGHT_INT8, WEIGHT_INT7], ids=["8 bits", "7 bits"])
ACTIVATION_CODES = pytest.mark.parametrize("codes", [UINT8, INT8], ids=["unsigned", "signed"])


def _written(weight: NDArray[np.float32], codes: IntegerType) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
    """Codes as a refresh writes them, and a scale for each row."""
    target = np.zeros(weight.shape, dtype=np.int8)
    scales, lost = CodeWriter(codes).write("layer", weight, target)
    assert scales.dtype == np.float32 and scales.shape == lost.shape == weight.shape[:1] and not lost.any()
    return target, scales.astype(np.float64)[:, None]


@WEIGHT_CODES
@given(weights)
def test_weights_are_within_half_a_step(codes: IntegerType, weight: NDArray[np.float32]) -> None:
    found, scale = _written(weight, codes)
    error = np.abs(found.astype(np.float64) * scale - weight.astype(np.float64))
    assert (error <= HALF * scale).all()
    assert found.min() >= codes.minimum and found.max() <= codes.maximum
    assert (found[weight == 0.0] == 0).all()


@WEIGHT_CODES
@given(weights)
def test_the_greatest_weight_has_the_greatest_code(codes: IntegerType, weight: NDArray[np.float32]) -> None:
    """No step of the range is wasted in any row."""
    found, _ = _written(weight, codes)
    magnitude = np.abs(weight).max(axis=1, keepdims=True)
    wide = np.broadcast_to((magnitude > 2.0**-100) & (np.abs(weight) == magnitude), weight.shape)
    assert (np.abs(found[wide].astype(int)) == codes.maximum).all()


def test_of_columns_of_a_transposed_weight_codes_are_those_of_rows() -> None:
    weight = np.random.default_rng(0).normal(size=(300, 7)).astype(np.float32)
    np.testing.assert_array_equal(_written(weight.T, WEIGHT_INT8)[0], _written(weight.T.copy(), WEIGHT_INT8)[0])


@pytest.mark.parametrize("kernels", [PLAIN, *kernels_here()], ids=lambda kernels: kernels.suffix)
@pytest.mark.parametrize("width", [1, 7, 8, 40, 129])
def test_what_rounding_takes_at_the_mean_is_told_and_columns_may_have_factors(kernels: Kernels, width: int) -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(33, width)).astype(np.float32)
    means, factors = (rng.uniform(1.0, 3.0, width).astype(np.float32) for _ in range(2))
    target = np.zeros(weight.shape, np.int8)
    scales, lost = CodeWriter(WEIGHT_INT7, kernels).write("layer", weight, target, factors=factors, means=means)
    wanted = np.abs(weight * factors).max(axis=1) / 64
    np.testing.assert_allclose(scales, wanted, rtol=1e-6)
    np.testing.assert_array_equal(target, np.rint(weight * factors / scales[:, None]))
    rest = (weight * factors).astype(np.float64) - target * scales[:, None].astype(np.float64)
    np.testing.assert_allclose(lost, rest @ means, atol=1e-4)
    assert width == 1 or np.abs(lost).max() > 0.01
    for odd in (np.nan, np.inf, -np.inf):
        weight[20, width - 1] = odd
        with pytest.raises(WeightsError, match="not finite"):
            CodeWriter(WEIGHT_INT7, kernels).write("layer", weight, target, factors=factors)


@ACTIVATION_CODES
@given(ends, ends, arrays.arrays(np.float64, 20, elements=st.floats(0.0, 1.0)))
def test_activations_are_within_half_a_step(
    codes: IntegerType, one: float, other: float, shares: NDArray[np.float64]
) -> None:
    """Codes by the definition of QuantizeLinear, at the scale and zero point of a range that holds zero."""
    low, high = min(one, other, 0.0), max(one, other, 0.0)
    scale, zero = activation_parameters(low, high, codes)
    assert scale > 0 and codes.minimum <= zero <= codes.maximum
    step = float(scale)
    inside = low + (high - low) * shares
    error = np.abs(_dequantised(inside, step, zero, codes) - inside)
    # both ends fall between codes where the zero point was rounded, by half a step at most
    assert (error <= HALF * step).all()
    assert _dequantised(np.zeros(1), step, zero, codes)[0] == 0.0


@ACTIVATION_CODES
@given(ends, ends, st.floats(1.0, 1e6))
def test_activations_outside_saturate(codes: IntegerType, one: float, other: float, beyond: float) -> None:
    """A step beyond either end and further, codes are the least and the greatest, which stand for these ends."""
    low, high = min(one, other, 0.0), max(one, other, 0.0)
    scale, zero = activation_parameters(low, high, codes)
    if (high - low) / codes.levels < SMALLEST_SCALE:
        assert (scale, zero) == (1.0, codes.minimum)
        return
    step = float(scale)
    found = _codes(np.array([low - beyond * step, high + beyond * step]), step, zero, codes)
    assert tuple(found) == (codes.minimum, codes.maximum)
    for end, code in ((low, codes.minimum), (high, codes.maximum)):
        assert abs((code - zero) * step - end) <= HALF * step


@WEIGHT_CODES
@given(
    arrays.arrays(np.float32, (4, 5), elements=st.floats(-1.0, 1.0, width=32)),
    arrays.arrays(np.float32, 4, elements=st.floats(-1e3, 1e3, width=32)),
    st.floats(2.0**-20, 2.0**10, width=32),
)
def test_biases_fit_32_bits_within_half_a_step(
    codes: IntegerType, weight: NDArray[np.float32], bias: NDArray[np.float32], input_scale: float
) -> None:
    greatest = magnitudes(weight)
    scales = scales_of(greatest, codes)
    widened = scales_for_bias(scales, np.float32(input_scale), bias, greatest)
    assert ((widened >= scales) | (greatest == 0.0)).all()
    found = bias_codes(bias, np.float32(input_scale), widened)
    step = (np.float32(input_scale) * widened).astype(np.float64)
    assert (np.abs(found * step - bias) <= 0.5 * step + 1e-6 * np.abs(bias)).all()
    assert (found[bias == 0.0] == 0).all()
    empty = (greatest == 0.0) & (np.abs(bias) > 1e-20)
    assert (step < 2e-9 * np.abs(bias))[empty].all(), "zeros have the finest scale"


def _codes(values: NDArray[np.float64], step: float, zero: int, codes: IntegerType) -> NDArray[np.float64]:
    return np.clip(np.rint(values / step) + zero, codes.minimum, codes.maximum)


def _dequantised(values: NDArray[np.float64], step: float, zero: int, codes: IntegerType) -> NDArray[np.float64]:
    return (_codes(values, step, zero, codes) - zero) * step
