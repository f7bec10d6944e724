"""The arithmetic of onnxruntime's int8 kernels in torch, with straight-through gradients.

Codes are integers in single precision, minus their zero point. Their products and sums are integers too, so torch
computes exactly the kernel's sum, in any order of addition, while it is below 2²⁴.

    codes of a value:   q = clip(round(x / s), q_min − z, q_max − z);          dq/dx = 1 / s inside the range, else 0
    codes of a layer:   q = clip(round(a · (s_x s_w / s_y)), …) for the sum a; dq/da = s_x s_w / s_y inside, else 0
    codes of weights:   q = round(w / s_w);                                    dq/dw = 1 / s_w

Rounding is half to even. Source: MlasRequantizeOutput, MlasQuantizeLinear and MlasQLinearAdd of onnxruntime, on CPUs
with AVX2; for the gradients Bengio et al. 2013, arXiv:1308.3432.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from accel.compressors.quantisation.affine import BIAS_MARGIN, INT32_STEPS, SMALLEST_SCALE, IntegerType


@dataclass(frozen=True)
class Scaled:
    """The quantisation of an activation.

    Attributes:
        scale: s, a value of single precision.
        zero: z.
        least, greatest: range of the codes minus the zero point.
    """

    scale: float
    zero: int
    least: int
    greatest: int

    @classmethod
    def of(cls, scale: np.float32, zero: int, codes: IntegerType) -> Scaled:
        """From a scale, a zero point and the codes in use."""
        return cls(float(scale), zero, codes.minimum - zero, codes.maximum - zero)


def quantise(value: Tensor, how: Scaled) -> Tensor:
    """Codes of a value, minus their zero point."""
    # divide by a tensor: for a Python number CUDA multiplies by the reciprocal, which rounds differently
    return _rounded(value, value.detach() / value.new_full((), how.scale), 1.0 / how.scale, how)


def requantise(total: Tensor, factor: Tensor, how: Scaled) -> Tensor:
    """Codes of a layer's sums, minus their zero point; ``factor`` s_x s_w / s_y is [] or broadcasts over the sums."""
    return _rounded(total, total.detach() * factor, factor, how)


def round_through(value: Tensor) -> Tensor:
    """Round to integers; the gradient is passed straight through."""
    return value + (value.round() - value).detach()


def add(total: Tensor, a: Tensor, b: Tensor, of_a: Scaled, of_b: Scaled, how: Scaled) -> Tensor:
    """Codes of a sum of codes, minus their zero point.

    Args:
        total: the same sum in single precision, which gets the gradient inside the range.
        a, b: codes minus their zero points.
        of_a, of_b, how: quantisation of the addends and of the sum.
    """
    with torch.no_grad():
        codes = _sum_codes(a, b, of_a, of_b, how)
        inside = (total >= how.least * how.scale) & (total <= how.greatest * how.scale)
    return _put_through(total, codes, 1.0 / how.scale, inside)


def _rounded(value: Tensor, scaled: Tensor, slope: Tensor | float, how: Scaled) -> Tensor:
    """Codes from the quotient ``scaled``, whose derivative by the value is ``slope``."""
    inside = (scaled >= how.least) & (scaled <= how.greatest)
    return _put_through(value, scaled.clamp_(how.least, how.greatest).round_(), slope, inside)


def _put_through(value: Tensor, result: Tensor, slope: Tensor | float, inside: Tensor) -> Tensor:
    return cast("Tensor", _StraightThrough.apply(value, result, slope, inside))  # type: ignore[no-untyped-call]


def weight_scales(greatest: Tensor, codes: IntegerType) -> Tensor:
    """Symmetric scales for the greatest magnitudes of weights, of the same shape; 1 where a magnitude is zero. See
    ``affine.scales_of``."""
    scales = 2.0 * greatest.double() / codes.levels
    return torch.where(scales < SMALLEST_SCALE, 1.0, scales).float()


def scales_for_bias(scales: Tensor, input_scale: float, largest_bias: Tensor, greatest: Tensor) -> Tensor:
    """Weight scales where biases and weights have these magnitudes; the formula of ``affine.scales_for_bias``."""
    # onnxruntime's precision, see there
    smallest = (BIAS_MARGIN * (2.0 * largest_bias)).double() / INT32_STEPS
    candidate = scales.double() * input_scale
    is_empty = (greatest == 0.0) & (torch.minimum(smallest, smallest / input_scale) >= SMALLEST_SCALE)
    replaced = (candidate < smallest) | is_empty
    return torch.where(replaced, (scales.double() * (smallest / candidate)).float(), scales)


def _sum_codes(a: Tensor, b: Tensor, of_a: Scaled, of_b: Scaled, how: Scaled) -> Tensor:
    """As the kernel computes it, by fused multiply-adds; double precision holds their exact products.

    c = fma(a', r_a, fma(b', r_b, z_c − fma(r_a, z_a, r_b z_b))) with r = s / s_c and a', b' with their zero points.
    """
    f32, f64 = np.float32, np.float64
    ratio_a, ratio_b = f32(of_a.scale) / f32(how.scale), f32(of_b.scale) / f32(how.scale)
    zeros = f32(f64(ratio_a) * of_a.zero + f64(ratio_b * f32(of_b.zero)))
    fixed = float(f32(how.zero) - zeros)
    partial = (b.double() + of_b.zero).mul_(float(ratio_b)).add_(fixed).float()
    whole = (a.double() + of_a.zero).mul_(float(ratio_a)).add_(partial).float()
    return whole.round_().sub_(how.zero).clamp_(how.least, how.greatest)


class _StraightThrough(torch.autograd.Function):
    """Another tensor in place of a value, whose gradient is passed on times ``slope``, and where ``inside`` holds."""

    @staticmethod
    def forward(ctx: FunctionCtx, value: Tensor, result: Tensor, slope: Tensor | float, inside: Tensor) -> Tensor:
        ctx.save_for_backward(inside)
        ctx.slope = slope  # type: ignore[attr-defined]
        return result

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (inside,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return (gradient * ctx.slope) * inside, None, None, None  # type: ignore[attr-defined]
