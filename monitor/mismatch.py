"""Mismatch between the policy that learns and the compressed, stale policy that acted, with alarm levels.

    π_θ/μ = (π_θ/π_v) · (π_v/μ) :  staleness × compression,  v being the version that acted

Divergences are closed forms of the recorded distribution parameters (``divergence.py``), not of sampled weights:
a few samples from μ miss the actions that only π takes, so sampled weights look best where the policies differ most.
Other numbers use the recorded log-probabilities of the valid rows of an unroll. The mean weight, whose expectation is
exactly 1 for any policies, checks the records (a wrong μ, a missing mask, a different scaling); the trace is a product
along a path.

Source: effective size of an importance sample, Kong 1992, 1/(1 + χ²) per sample; alarm levels, those in use for
reduced-precision rollouts of language models (verl's rollout correction).
Deviations: the effective size is taken per state in closed form and then averaged, with 0 where χ² is infinite. The
level of staleness is our own: those rollouts are on-policy but for their precision, whereas a learner that goes over
each batch several times, as PPO does, moves away from the acting policy on purpose, and corrects for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from accel.monitor.divergence import ActionLayout, Bools, Floats, divergences
from accel.monitor.errors import MismatchError

ESS_ALARM = 0.3
"""Below this mean effective sample size, most of a batch carries no information about π."""
KL_ALARM = 0.1
"""Nats. Above this divergence, a compressed policy is another policy than its original."""
STALENESS_KL_ALARM = 0.5
"""Nats, for mismatch that includes staleness. With the clipped surrogate, four passes over each batch and a lag of a
few versions, stable HalfCheetah runs have medians of 0.06 to 0.16, and all but one of 17 stay below this in nine
records of ten; runs whose policy collapses exceed it in half of them."""
CLIPPED_TOLERANCE = 1e-4
"""Nats above log ρ̄ from which a weight counts as clipped: two runtimes round the same policy's log-probabilities
differently, by some 1e-6, so that without it about half the weights of equal policies would lie above 1."""
MEAN_WEIGHT_ALARM = (0.5, 2.0)
"""A mean weight outside contradicts E_μ[π/μ] = 1: the recorded log-probabilities are not those of the actor."""


@dataclass(frozen=True)
class Mismatch:
    """How far μ was from π on the valid rows of one or more unrolls.

    Attributes:
        states: how many valid rows were measured.
        kl: mean KL(π‖μ), nats, closed form.
        chi2: mean χ²(π‖μ), closed form; infinite as soon as one state's is.
        chi2_infinite: share of states whose χ² is infinite, in [0, 1].
        ess: mean over states of 1/(1 + χ²), in [0, 1]; infinite χ² counts 0.
        greedy_agreement: share of states in which both policies' most likely action is the same, in [0, 1]; of
            gaussians in which every mean is within ``GREEDY_TOLERANCE`` of μ's standard deviations.
        mean_weight: mean of π/μ over the actions taken; 1 in expectation.
        clipped: share of the weights above ``clip_rho`` by more than rounding does, in [0, 1].
        retention: mean product of the trace's weights min(c̄, π/μ) over the effective horizon; 1 on-policy.
    """

    states: int
    kl: float
    chi2: float
    chi2_infinite: float
    ess: float
    greedy_agreement: float
    mean_weight: float
    clipped: float
    retention: float

    @property
    def effective_share(self) -> float:
        """ESS × retention: what a valid step is worth; times valid steps a second, it is effective experience."""
        return self.ess * self.retention

    def alarms(self, kl_level: float = KL_ALARM) -> dict[str, str]:
        """A clause about each number outside its level, by its name; one that is not a number always is.

        Args:
            kl_level: nats; ``STALENESS_KL_ALARM`` where staleness takes part.
        """
        low, high = MEAN_WEIGHT_ALARM
        needs = {
            "ess": (self.ess >= ESS_ALARM, f"at least {ESS_ALARM:g}"),
            "kl": (self.kl <= kl_level, f"at most {kl_level:g}"),
            "mean_weight": (low <= self.mean_weight <= high, f"{low:g} to {high:g}"),
        }
        return {
            name: f"{name} is {getattr(self, name):.3g}, needs {level}"
            for name, (holds, level) in needs.items()
            if not holds
        }


@dataclass(frozen=True)
class FactoredMismatch:
    """The mismatch of one batch, whole and by cause.

    Attributes:
        total: π_θ against μ; what a corrector corrects.
        staleness: π_θ against π_v; what fresher policies reduce.
        compression: π_v against μ; what a finer scheme reduces.
    """

    total: Mismatch
    staleness: Mismatch
    compression: Mismatch


def measure_mismatch(
    action: ActionLayout,
    target_params: Floats,
    behaviour_params: Floats,
    log_rhos: Floats,
    *,
    valid: Bools,
    ends: Bools,
    horizon: int,
    clip_rho: float | None = 1.0,
    clip_c: float | None = 1.0,
) -> Mismatch:
    """Measure π against μ on the valid rows of an unroll.

    Args:
        target_params: [T, B, P] distribution parameters of π.
        behaviour_params: [T, B, P] recorded distribution parameters of μ.
        log_rhos: [T, B] nats; log π(a_t) − log μ(a_t) of the actions taken.
        valid: [T, B] bool; rows that are False are ignored.
        ends: [T, B] bool; rows that ended an episode, at which a trace stops.
        horizon: effective horizon of the trace in steps, ≥ 1, see ``effective_horizon``.
        clip_rho: ρ̄ of the share of clipped weights, or None.
        clip_c: c̄ of the trace, or None, with which retention is unbounded. λ is excluded: it is a choice.
    Raises:
        MismatchError: a shape or option is wrong, or no row is valid.
    """
    shape = log_rhos.shape
    if len(shape) != 2:
        raise MismatchError(f"log_rhos has shape {shape}, needs [T, B]")
    for name, mask in (("valid", valid), ("ends", ends)):
        if mask.shape != shape or mask.dtype != np.bool_:
            raise MismatchError(f"{name} is {mask.dtype} {mask.shape}, needs bool {shape}, [T, B] of log_rhos")
    for name, array in (("target_params", target_params), ("behaviour_params", behaviour_params)):
        if array.ndim != 3 or array.shape[:2] != shape:
            raise MismatchError(f"{name} has shape {array.shape}, needs {(*shape, 'P')}, [T, B] of log_rhos")
    if not valid.any():
        raise MismatchError("no row is valid, needs at least one state to measure")
    measured = divergences(action, target_params[valid], behaviour_params[valid])
    taken = log_rhos[valid].astype(np.float64)
    with np.errstate(over="ignore"):
        mean_weight = float(np.exp(taken).mean())
    return Mismatch(
        states=len(taken),
        kl=_mean(measured.kl),
        chi2=_mean(measured.chi2),
        chi2_infinite=_mean(np.isinf(measured.log1p_chi2)),
        ess=_mean(measured.ess),
        greedy_agreement=_mean(measured.greedy_agrees),
        mean_weight=mean_weight,
        clipped=0.0 if clip_rho is None else _mean(taken > np.log(clip_rho) + CLIPPED_TOLERANCE),
        retention=trace_retention(log_rhos, valid=valid, ends=ends, horizon=horizon, clip_c=clip_c),
    )


def factor_mismatch(
    action: ActionLayout,
    target_params: Floats,
    version_params: Floats,
    behaviour_params: Floats,
    log_rhos: Floats,
    compression_log_rhos: Floats,
    *,
    valid: Bools,
    ends: Bools,
    horizon: int,
    clip_rho: float | None = 1.0,
    clip_c: float | None = 1.0,
) -> FactoredMismatch:
    """Measure staleness and compression apart. States and actions are μ's in all three.

    Args:
        target_params: [T, B, P] of π_θ, the learner's policy now.
        version_params: [T, B, P] of π_v, the uncompressed policy of the version that acted in each row.
        behaviour_params: [T, B, P] recorded, of μ, what that version's compressed policy really gave.
        log_rhos: [T, B] nats; log π_θ(a_t) − log μ(a_t).
        compression_log_rhos: [T, B] nats; log π_v(a_t) − log μ(a_t).
        valid, ends, horizon, clip_rho, clip_c: as ``measure_mismatch``.
    Raises:
        MismatchError: a shape or option is wrong, or no row is valid.
    """
    with np.errstate(invalid="ignore"):
        staleness_log_rhos = log_rhos - compression_log_rhos
    measure = partial(
        measure_mismatch, action, valid=valid, ends=ends, horizon=horizon, clip_rho=clip_rho, clip_c=clip_c
    )
    return FactoredMismatch(
        total=measure(target_params, behaviour_params, log_rhos),
        staleness=measure(target_params, version_params, staleness_log_rhos),
        compression=measure(version_params, behaviour_params, compression_log_rhos),
    )


def effective_horizon(discount: float, lambda_: float, unroll_length: int) -> int:
    """Steps that a trace should reach: 1/(1 − γλ), rounded, at least 1 and at most the unroll's length."""
    forgetting = 1.0 - discount * lambda_
    return unroll_length if forgetting * unroll_length <= 1.0 else max(1, round(1.0 / forgetting))


def trace_retention(log_rhos: Floats, *, valid: Bools, ends: Bools, horizon: int, clip_c: float | None = 1.0) -> float:
    """Mean over valid rows s of Π_{s ≤ i < e} min(c̄, ρ_i), sampled along the paths that μ took.

    e is ``horizon`` steps after s, or sooner where the episode, its valid rows or the unroll end: there the trace
    ends. Arguments as in ``measure_mismatch``.

    Returns:
        In [0, 1] for c̄ ≤ 1; NaN when no row is valid.
    Raises:
        MismatchError: ``horizon`` or ``clip_c`` is not positive.
    """
    length, batch = log_rhos.shape
    if horizon < 1 or (clip_c is not None and not clip_c > 0.0):
        raise MismatchError(f"horizon is {horizon} and clip_c is {clip_c}, need a positive number (clip_c may be None)")
    # A weight below e^-800 is zero in any product, and unlike −∞ it can be subtracted again.
    log_c = np.where(valid, np.clip(log_rhos, -800.0, None if clip_c is None else np.log(clip_c)), 0.0)
    before = np.zeros((length + 1, batch))
    np.cumsum(log_c, axis=0, out=before[1:])
    steps = np.arange(length)[:, None]
    stop = np.where(valid, np.where(ends, steps + 1, length), steps)
    stop = np.minimum.accumulate(stop[::-1], axis=0)[::-1]
    stop = np.minimum(stop, steps + horizon)
    with np.errstate(over="ignore"):
        products = np.exp(np.take_along_axis(before, stop, 0) - before[:-1])
    return float(products[valid].mean()) if valid.any() else float("nan")


def _mean(values: Floats | Bools) -> float:
    return float(np.mean(values, dtype=np.float64))
