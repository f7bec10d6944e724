"""Retrace(λ): action-value targets and policy-gradient advantages from another policy's steps.

With ρ_t = π(a_t|s_t)/μ(a_t|s_t), V(s) = E_π Q(s, ·) and c_t = λ min(c̄, ρ_t):

    Q_ret_s = Q_s + Σ_{t≥s} (Π_{s<i≤t} γ_{i−1} c_i) (r_t + γ_t V_{t+1} − Q_t)
    so that   Q_ret_t = r_t + γ_t [V_{t+1} + c_{t+1} (Q_ret_{t+1} − Q_{t+1})]
    A_t     = min(ρ̄_pg, ρ_t) (Q_ret_t − V_t)

The first action is given, not sampled: its own weight enters the advantage alone, never the target.

Source: Munos et al. 2016, arXiv:1606.02647, eq. 3 and 4 with c_s = λ min(1, ρ_s).
Deviations: c̄ may differ from 1; one discount per step, zero where the episode terminated; rows that are invalid or
truncated, see ``retrace``; the policy-gradient weight follows Wang et al. 2017 (ACER, arXiv:1611.01224, eq. 9, first
term), without its bias correction.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from accel.correctors.checks import check_batch, check_options
from accel.correctors.recursion import backward_recursion
from accel.correctors.rows import clipped, importance_weights, one_step_errors, zero_rows


class RetraceReturns(NamedTuple):
    """What ``retrace`` returns; no tensor carries a gradient.

    Attributes:
        q_targets: [T, B] targets for Q(s_t, a_t); equal to ``q_taken`` in invalid rows.
        pg_advantages: [T, B] factors of ∇ log π(a_t|s_t), importance weight included; zero in invalid rows.
        advantages: [T, B] the same before the weight. pg_rhos: [T, B] the weight min(ρ̄_pg, ρ_t). Both are zero in
            invalid rows. Advantages are centred before the weight is applied, never after.
    """

    q_targets: Tensor
    pg_advantages: Tensor
    advantages: Tensor
    pg_rhos: Tensor


def retrace(
    log_rhos: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    q_taken: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    *,
    clip_c: float | None = 1.0,
    clip_pg_rho: float | None = 1.0,
    lambda_: float = 1.0,
    valid: Tensor | None = None,
    cut: Tensor | None = None,
    cut_values: Tensor | None = None,
) -> RetraceReturns:
    """Retrace(λ) targets and policy-gradient advantages.

        Q_ret_t = r_t + γ_t [V_{t+1} + c_{t+1} (Q_ret_{t+1} − Q_{t+1})];   A_t = min(ρ̄_pg, ρ_t) (Q_ret_t − V_t)

    Args:
        log_rhos: [T, B] float32 or float64, nats; log π(a_t) − log μ(a_t). All other floats are of its dtype.
        rewards: [T, B].
        discounts: [T, B] in [0, 1]; zero exactly where the episode terminated.
        q_taken: [T, B]; Q(s_t, a_t).
        values: [T, B]; E_π Q(s_t, ·).
        bootstrap_value: [B]; E_π Q(s_T, ·). The last row has no trace: the action at s_T is not in the unroll.
        clip_c: c̄ > 0 of the trace, or None, with which the targets are unbiased and their variance unbounded.
        clip_pg_rho: ρ̄_pg > 0 of the policy-gradient weight only, or None.
        lambda_: λ in [0, 1], a factor of every c_t.
        valid: [T, B] bool; False marks the junk row of an automatic reset. There ρ = c = 0, the target is the
            prediction and the advantage 0, whatever the row holds. None: every row counts.
        cut: [T, B] bool; True where the episode was truncated. There V_{t+1} becomes ``cut_values_t`` and c_{t+1} = 0.
        cut_values: [T, B]; E_π Q of the truncated episode's final observation. Read only where ``cut`` holds.
    Returns:
        RetraceReturns of new [T, B] tensors that carry no gradient.
    Raises:
        ShapeError, DtypeError: an argument's shape or dtype is not as above.
        OptionError: a clip or λ is out of range, or one of ``cut`` and ``cut_values`` is missing.
    Source:
        Munos et al. 2016, arXiv:1606.02647, eq. 3 and 4; deviations in the module's docstring.
    """
    per_step = {"log_rhos": log_rhos, "rewards": rewards, "discounts": discounts, "q_taken": q_taken, "values": values}
    check_batch(per_step, bootstrap_value, valid, cut, cut_values)
    check_options(lambda_, clip_c=clip_c, clip_pg_rho=clip_pg_rho)
    with torch.no_grad():
        invalid = None if valid is None else ~valid
        rhos = importance_weights(log_rhos)
        increments = one_step_errors(rewards, discounts, values, bootstrap_value, q_taken, cut, cut_values)
        traces = zero_rows(clipped(rhos, clip_c) * lambda_, invalid)
        # c_{t+1}; what wraps round into the last row is never read there.
        decays = traces.roll(-1, 0).mul_(discounts)
        q_targets = backward_recursion(zero_rows(increments, invalid), zero_rows(decays, invalid, cut)).add_(q_taken)
        advantages = zero_rows(q_targets - values, invalid)
        pg_rhos = zero_rows(clipped(rhos, clip_pg_rho), invalid)
        return RetraceReturns(q_targets, advantages * pg_rhos, advantages, pg_rhos)
