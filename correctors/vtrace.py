"""V-trace: state-value targets and policy-gradient advantages from another policy's steps.

With ρ_t = π(a_t|x_t)/μ(a_t|x_t), μ being the policy that really acted (compressed and stale as it was):

    ρ̂_t = min(ρ̄, ρ_t),  c_t = λ min(c̄, ρ_t),  δ_t = ρ̂_t (r_t + γ_t V_{t+1} − V_t)
    v_s  = V_s + Σ_{t≥s} (Π_{s≤i<t} γ_i c_i) δ_t           so that   v_t − V_t = δ_t + γ_t c_t (v_{t+1} − V_{t+1})
    A_s  = min(ρ̄_pg, ρ_s) (r_s + γ_s v_{s+1} − V_s)

ρ̄ decides the fixed point, the value of a policy between μ and π; c̄ and λ only the speed and the variance. Each clip
acts on its own term alone. On-policy with λ = 1 and no clip below 1, v_s is the n-step return.

Source: Espeholt et al. 2018, IMPALA, arXiv:1802.01561, section 4.1 (eq. 1, remark 2 for λ) and 4.2 (policy gradient).
Deviations: one discount per step, zero where the episode terminated; rows that are invalid or truncated (``vtrace``);
the published policy-gradient term clips with ρ̄, here with its own ρ̄_pg, of the same default.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from accel.correctors.checks import check_batch, check_options
from accel.correctors.recursion import backward_recursion
from accel.correctors.rows import clipped, importance_weights, one_step_errors, zero_rows


class VTraceReturns(NamedTuple):
    """What ``vtrace`` and ``nstep`` return; no tensor carries a gradient.

    Attributes:
        vs: [T, B] targets for V(x_t); equal to ``values`` in invalid rows. ``vs − values`` is GAE with V-trace weights.
        pg_advantages: [T, B] factors of ∇ log π(a_t|x_t), importance weight included; zero in invalid rows.
        advantages: [T, B] the same before the weight. pg_rhos: [T, B] the weight min(ρ̄_pg, ρ_t). Both are zero in
            invalid rows. Advantages are centred before the weight is applied, never after.
    """

    vs: Tensor
    pg_advantages: Tensor
    advantages: Tensor
    pg_rhos: Tensor


def vtrace(
    log_rhos: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    *,
    clip_rho: float | None = 1.0,
    clip_c: float | None = 1.0,
    clip_pg_rho: float | None = 1.0,
    lambda_: float = 1.0,
    valid: Tensor | None = None,
    cut: Tensor | None = None,
    cut_values: Tensor | None = None,
) -> VTraceReturns:
    """V-trace targets and policy-gradient advantages.

        v_t = V_t + ρ̂_t (r_t + γ_t V_{t+1} − V_t) + γ_t c_t (v_{t+1} − V_{t+1})
        A_t = min(ρ̄_pg, ρ_t) (r_t + γ_t v_{t+1} − V_t)

    At λ < 1 the policy-gradient bootstrap stays v_{t+1}; it is not mixed with V_{t+1}.

    Args:
        log_rhos: [T, B] float32 or float64, nats; log π(a_t) − log μ(a_t). All other floats are of its dtype.
        rewards: [T, B].
        discounts: [T, B] in [0, 1]; zero exactly where the episode terminated.
        values: [T, B]; V(x_t).
        bootstrap_value: [B]; V(x_T).
        clip_rho: ρ̄ > 0 of the temporal difference, or None.
        clip_c: c̄ > 0 of the trace, or None. The theory asks for ρ̄ ≥ c̄; this is not enforced.
        clip_pg_rho: ρ̄_pg > 0 of the policy-gradient weight only, or None.
        lambda_: λ in [0, 1], a factor of every c_t.
        valid: [T, B] bool; False marks the junk row of an automatic reset. There ρ = c = 0, the target is the
            prediction and the advantage 0, whatever the row holds. None: every row counts.
        cut: [T, B] bool; True where the episode was truncated. There c_t = 0, and V_{t+1} and v_{t+1} become
            ``cut_values_t``.
        cut_values: [T, B]; value of the truncated episode's final observation. Read only where ``cut`` holds.
    Returns:
        VTraceReturns of new [T, B] tensors that carry no gradient.
    Raises:
        ShapeError, DtypeError: an argument's shape or dtype is not as above.
        OptionError: a clip or λ is out of range, or one of ``cut`` and ``cut_values`` is missing.
    Source:
        Espeholt et al. 2018, arXiv:1802.01561, sections 4.1 and 4.2; deviations in the module's docstring.
    """
    per_step = {"log_rhos": log_rhos, "rewards": rewards, "discounts": discounts, "values": values}
    check_batch(per_step, bootstrap_value, valid, cut, cut_values)
    check_options(lambda_, clip_rho=clip_rho, clip_c=clip_c, clip_pg_rho=clip_pg_rho)
    with torch.no_grad():
        invalid = None if valid is None else ~valid
        rhos = importance_weights(log_rhos)
        errors = one_step_errors(rewards, discounts, values, bootstrap_value, values, cut, cut_values)
        increments = errors.mul_(clipped(rhos, clip_rho))
        decays = (discounts * clipped(rhos, clip_c)).mul_(lambda_)
        vs = backward_recursion(zero_rows(increments, invalid), zero_rows(decays, invalid, cut)).add_(values)
        advantages = one_step_errors(rewards, discounts, vs, bootstrap_value, values, cut, cut_values)
        advantages, pg_rhos = zero_rows(advantages, invalid), zero_rows(clipped(rhos, clip_pg_rho), invalid)
        return VTraceReturns(vs, advantages * pg_rhos, advantages, pg_rhos)
