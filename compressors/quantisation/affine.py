"""Affine quantisation in numpy: scales, zero points, codes. The formulae are those of onnxruntime's own quantizer.

    x ≈ s (q − z);   q = clip(round(x / s) + z, q_min, q_max);   rounding is half to even
    asymmetric: s = (max(hi, 0) − min(lo, 0)) / (q_max − q_min),  z = round(q_min − min(lo, 0) / s)
    symmetric:  s = 2 max|x| / (q_max − q_min),  z = 0
    bias:       q_b = clip(round(b / (s_x s_w)), −2³¹, 2³¹ − 1)

Source: onnxruntime/quantization: quant_utils.compute_scale_zp, base_quantizer.quantize_bias_static_impl and
qdq_quantizer._adjust_weight_scale_for_int32_bias. Deviations: a weight's scale is widened by more where the bias would
exceed 32 bits, as the layer's sum wraps around at onnxruntime's margin of 1.0001; weights of only zeros have the finest
scale that their bias allows, where onnxruntime's is 1 and rounds a bias of 0.4 to multiples of s_x; and a range of only
zero has its zero point at q_min, where onnxruntime's signed codes have 0, so that a ReLU after it is a saturation too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accel.compressors.arrays import FloatArray

# an activation of two bytes: the low one is 64 ± 64, so that pairs of products with weights of 8 bits fit 16 bits
LOW_CODES, LOW_ZERO, GREATEST_HIGH = 128, 64, 127
# of the range that was measured, for what was never seen; four times costs a policy on Q-values two points of agreement
HEADROOM = 1.5
_STEP_DIGITS = 4096
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
_INT32 = np.iinfo(np.int32)
INT32_STEPS = float(_INT32.max) - float(_INT32.min + 1)
# Of 32 bits a bias takes 1 / margin at most, so that products have room: of 33,000 inputs at their greatest
BIAS_MARGIN = 2.0


@dataclass(frozen=True)
class IntegerType:
    """An integer code: its numpy type and the range in use."""

    dtype: np.dtype[np.generic]
    minimum: int
    maximum: int

    @property
    def levels(self) -> int:
        """Steps between the least and the greatest code."""
        return self.maximum - self.minimum


UINT8 = IntegerType(np.dtype(np.uint8), 0, 255)
INT8 = IntegerType(np.dtype(np.int8), -128, 127)
WEIGHT_INT8 = IntegerType(np.dtype(np.int8), -127, 127)
# 7 bits: sums of two U8·S8 products fit 16 bits, which AVX2 without VNNI needs
WEIGHT_INT7 = IntegerType(np.dtype(np.int8), -64, 64)


def symmetric_codes(bits: int) -> IntegerType:
    """Weight codes of so many bits that are stored as bytes: ±1 of two, ±3 of three, ±7 of four."""
    greatest = 2 ** (bits - 1) - 1
    return IntegerType(np.dtype(np.int8), -greatest, greatest)


def narrowed(codes: IntegerType, bits: int) -> IntegerType:
    """Activation codes of so many bits in the bytes of ``codes``, unsigned or signed as these are."""
    lost = 8 - bits
    return IntegerType(codes.dtype, codes.minimum >> lost, codes.maximum >> lost)


def activation_parameters(low: float, high: float, codes: IntegerType) -> tuple[np.float32, int]:
    """(scale, zero point) of a range, in single precision; scale 1 and the least code for a range of only zero."""
    low, high = min(float(np.float32(low)), 0.0), max(float(np.float32(high)), 0.0)
    scale = (high - low) / codes.levels
    if scale < SMALLEST_SCALE:
        return np.float32(1.0), codes.minimum
    return np.float32(scale), int(np.round(codes.minimum - low / scale))


def two_byte_parameters(low: float, high: float) -> tuple[np.float32, int]:
    """(step of the low byte, zero point of the high byte) of a range, with room for ``HEADROOM`` times its numbers.

    The step has few digits, so that its products with codes of 7 bits are exact in single precision: every runtime then
    finds the same codes.
    """
    low, high = HEADROOM * min(low, 0.0), HEADROOM * max(high, 0.0)
    step = (high - low) / (LOW_CODES * GREATEST_HIGH)
    if step < SMALLEST_SCALE * LOW_CODES:
        return np.float32(1.0), 0
    mantissa, exponent = np.frexp(step)
    step = float(np.ldexp(np.ceil(mantissa * _STEP_DIGITS) / _STEP_DIGITS, exponent))
    return np.float32(step), int(np.ceil(-low / (LOW_CODES * step)))


def magnitudes(weight: FloatArray) -> NDArray[np.float32]:
    """The greatest magnitude of each row of a weight [n, k]."""
    return np.asarray(np.maximum(weight.max(axis=1), -weight.min(axis=1)))


def scales_of(greatest: NDArray[np.float32], codes: IntegerType) -> NDArray[np.float32]:
    """Symmetric scales [n] for the greatest magnitudes of weights; 1 where a magnitude is zero."""
    scales = 2.0 * np.asarray(greatest, dtype=np.float64) / codes.levels
    return np.where(scales < SMALLEST_SCALE, 1.0, scales).astype(np.float32)


def scales_for_bias(
    scales: NDArray[np.float32], input_scale: np.float32, bias: FloatArray, greatest: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Weight scales, wider where the bias would exceed 32 bits at s_x·s_w (weights far smaller than their bias), and
    the finest that does not where all weights are zero.

    Args:
        scales, bias: [n]. greatest: magnitudes of the weights, likewise.
    """
    # onnxruntime multiplies a bias with a scale for each output in single precision
    smallest = (BIAS_MARGIN * (2.0 * np.abs(bias))).astype(np.float64) / INT32_STEPS
    candidate = scales.astype(np.float64) * np.float64(input_scale)
    replaced = candidate < smallest
    is_empty = greatest == 0.0
    if is_empty.any():
        replaced |= is_empty & (np.minimum(smallest, smallest / np.float64(input_scale)) >= SMALLEST_SCALE)
    if not np.any(replaced):
        return scales
    changed = scales.astype(np.float64) * (smallest / candidate)
    return np.where(replaced, changed.astype(np.float32), scales)


def bias_codes(bias: FloatArray, input_scale: np.float32, scales: NDArray[np.float32]) -> NDArray[np.int32]:
    """32-bit codes of a bias at scale s_x·s_w."""
    scale = np.asarray(input_scale * scales, dtype=np.float64)
    codes = np.rint(bias.astype(np.float64) / scale)
    return np.minimum(np.maximum(codes, _INT32.min), _INT32.max).astype(np.int32)
