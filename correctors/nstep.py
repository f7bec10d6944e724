"""The identity corrector: n-step and λ-returns that believe every step to be on-policy (ρ = c = 1).

    v_t − V_t = δ_t + γ_t λ (v_{t+1} − V_{t+1}),   δ_t = r_t + γ_t V_{t+1} − V_t;   A_t = r_t + γ_t v_{t+1} − V_t

At λ = 1 the target is the n-step return to the unroll's or the episode's end, and A_t = v_t − V_t is A3C's advantage.
At λ < 1 ``vs − values`` is GAE(γ, λ). It is the baseline that every correction is measured against: with a compressed
or stale behaviour policy it is biased, and that bias is what the others remove.

Source: Sutton and Barto 2018, section 12.1; Schulman et al. 2016, arXiv:1506.02438, eq. 16.
Deviations: one discount per step; invalid and truncated rows as in ``accel.correctors.vtrace``, here with
log ρ = 0 and without clips.
"""

from __future__ import annotations

import torch
from torch import Tensor

from accel.correctors.vtrace import VTraceReturns, vtrace


def nstep(
    log_rhos: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    *,
    lambda_: float = 1.0,
    valid: Tensor | None = None,
    cut: Tensor | None = None,
    cut_values: Tensor | None = None,
) -> VTraceReturns:
    """λ-return targets and policy-gradient advantages without any correction.

    Args:
        log_rhos: [T, B] float32 or float64, read for their shape and dtype alone, which all other floats share; here so
            that correctors can be exchanged.
        rewards: [T, B].
        discounts: [T, B] in [0, 1]; zero exactly where the episode terminated.
        values: [T, B]; V(x_t).
        bootstrap_value: [B]; V(x_T).
        lambda_: λ in [0, 1].
        valid: [T, B] bool; False marks the junk row of an automatic reset. None: every row counts.
        cut: [T, B] bool; True where the episode was truncated.
        cut_values: [T, B]; value of the truncated episode's final observation. Read only where ``cut`` holds.
    Returns:
        VTraceReturns of two new [T, B] tensors that carry no gradient.
    Raises:
        ShapeError, DtypeError, OptionError: as ``vtrace``.
    Source:
        See the module's docstring.
    """
    return vtrace(
        torch.zeros_like(log_rhos),
        rewards,
        discounts,
        values,
        bootstrap_value,
        clip_rho=None,
        clip_c=None,
        clip_pg_rho=None,
        lambda_=lambda_,
        valid=valid,
        cut=cut,
        cut_values=cut_values,
    )
