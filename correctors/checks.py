"""What every corrector checks before any arithmetic: shapes, dtypes and options.

Never values: reading them would make the host wait for the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class CorrectorError(ValueError):
    """An argument of a corrector is wrong; the message names it, what it is and what it must be."""


class ShapeError(CorrectorError):
    """A tensor's shape is not the one that the arithmetic needs; nothing is ever broadcast."""


class DtypeError(CorrectorError):
    """A tensor is not of the dtype that the arithmetic needs; nothing is ever converted silently."""


class OptionError(CorrectorError):
    """A clip or λ is out of range, or an argument lacks its partner."""


def check_batch(
    per_step: Mapping[str, Tensor],
    bootstrap_value: Tensor,
    valid: Tensor | None,
    cut: Tensor | None,
    cut_values: Tensor | None,
) -> None:
    """Check one unroll against its first tensor, which fixes [T, B] and the dtype.

    Args:
        per_step: name → tensor, each [T, B] with T ≥ 1, all float32 or all float64.
        bootstrap_value: [B], of the same dtype.
        valid: [T, B] bool, or None where every row counts.
        cut: [T, B] bool, or None where nothing is truncated; comes together with ``cut_values``.
        cut_values: [T, B], of the same dtype.
    Raises:
        ShapeError, DtypeError: name the argument, what it has and what it needs.
        OptionError: one of ``cut`` and ``cut_values`` was given without the other.
    """
    leader, first = next(iter(per_step.items()))
    if first.dim() != 2 or first.shape[0] < 1:
        raise ShapeError(f"{leader} has shape {tuple(first.shape)}, needs [T, B] with T >= 1, time first")
    if first.dtype not in (torch.float32, torch.float64):
        raise DtypeError(f"{leader} is {first.dtype}, needs torch.float32 or torch.float64")
    if (cut is None) != (cut_values is None):
        given, missing = ("cut", "cut_values") if cut_values is None else ("cut_values", "cut")
        raise OptionError(f"{given} was given without {missing}: a truncated row needs the value it bootstraps from")
    for name, tensor in per_step.items():
        _check(name, tensor, first.shape, first.dtype, leader)
    _check("bootstrap_value", bootstrap_value, first.shape[1:], first.dtype, leader)
    for name, mask in (("valid", valid), ("cut", cut)):
        if mask is not None:
            _check(name, mask, first.shape, torch.bool, leader)
    if cut_values is not None:
        _check("cut_values", cut_values, first.shape, first.dtype, leader)


def check_options(lambda_: float, **clips: float | None) -> None:
    """Check that λ is in [0, 1] and that every clip is positive or None; raises OptionError."""
    if not 0.0 <= lambda_ <= 1.0:
        raise OptionError(f"lambda_ is {lambda_}, needs a number in [0, 1]")
    for name, clip in clips.items():
        if clip is not None and not clip > 0.0:
            raise OptionError(f"{name} is {clip}, needs a positive number, or None for no clipping")


def _check(name: str, tensor: Tensor, shape: torch.Size, dtype: torch.dtype, leader: str) -> None:
    if tensor.shape != shape:
        layout = "[T, B]" if len(shape) == 2 else "[B]"
        raise ShapeError(f"{name} has shape {tuple(tensor.shape)}, needs {tuple(shape)}, {layout} of {leader}")
    if tensor.dtype != dtype:
        why = "" if dtype == torch.bool else f" like {leader}"
        raise DtypeError(f"{name} is {tensor.dtype}, needs {dtype}{why}")
