"""The pieces that every corrector is made of: one-step errors, clipped weights, masked rows.

Temporaries are worked on in place: behind a learner's pass, fresh memory costs a CPU more than the arithmetic does.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def one_step_errors(
    rewards: Tensor,
    discounts: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    predictions: Tensor,
    cut: Tensor | None,
    cut_values: Tensor | None,
) -> Tensor:
    """r_t + γ_t V_{t+1} − P_t, where V_{t+1} is ``cut_values_t`` in truncated rows and ``bootstrap_value`` at the end.

    Where γ_t is zero V_{t+1} is not read: it is the value of another episode, or of a junk row, which may be NaN.

    Args:
        rewards: [T, B]. discounts: [T, B].
        values: [T, B]; V, read from row 1 on. bootstrap_value: [B]; V_T.
        predictions: [T, B]; P, what the critic predicted for the row.
        cut: [T, B] bool or None. cut_values: [T, B] or None.
    Returns:
        [T, B], a new tensor.
    """
    following = torch.cat((values[1:], bootstrap_value.unsqueeze(0)))
    if cut is not None and cut_values is not None:
        torch.where(cut, cut_values, following, out=following)
    return zero_rows(following.mul_(discounts), discounts == 0.0).add_(rewards).sub_(predictions)


def importance_weights(log_rhos: Tensor) -> Tensor:
    """ρ_t = exp(log ρ_t), held below the root of the dtype's greatest number (1.8e19 in float32), as a new tensor.

    An infinite weight times a discount, an error or an advantage of zero would not be a number.
    """
    return log_rhos.clamp(max=0.5 * math.log(torch.finfo(log_rhos.dtype).max)).exp_()


def clipped(rhos: Tensor, clip: float | None) -> Tensor:
    """min(clip, ρ_t) as a new tensor; ``None`` leaves ρ_t as it is and returns the argument itself."""
    return rhos if clip is None else rhos.clamp(max=clip)


def zero_rows(rows: Tensor, *where: Tensor | None) -> Tensor:
    """Exact zeros, in place, where any mask holds, whatever stood there (junk rows may hold NaN)."""
    for mask in where:
        if mask is not None:
            rows.masked_fill_(mask, 0.0)
    return rows
