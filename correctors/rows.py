"""The pieces of an unroll that every corrector is made of: clipped weights, masked rows, the row that follows."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped(rhos: Tensor, clip: float | None) -> Tensor:
    """min(clip, ρ_t); ``None`` leaves ρ_t as it is. May return its argument."""
    return rhos if clip is None else rhos.clamp(max=clip)


def zeroed(rows: Tensor, *where: Tensor | None) -> Tensor:
    """``rows`` with exact zeros where any mask holds, whatever stood there (junk rows may hold NaN)."""
    for mask in where:
        if mask is not None:
            rows = rows.masked_fill(mask, 0.0)
    return rows


def following_values(values: Tensor, bootstrap_value: Tensor, cut: Tensor | None, cut_values: Tensor | None) -> Tensor:
    """[T, B] what row t bootstraps from: the value of row t+1, or of the final observation where it was truncated."""
    following = torch.cat((values[1:], bootstrap_value.unsqueeze(0)))
    if cut is None or cut_values is None:
        return following
    return torch.where(cut, cut_values, following)
