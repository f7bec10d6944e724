"""Off-policy corrections: from a batch under two policies to targets; ``correctors`` holds the formulas."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from accel.algorithms.gradient_exchange import GradientExchange
from accel.config.algorithms import ActorCriticConfig
from accel.correctors import nstep, retrace, vtrace

_LOG_THRESHOLD = math.log(2.0)


@dataclass(frozen=True)
class OffPolicyBatch:
    """What a correction needs; floats of one dtype, no gradient. Shapes are [T, B] where not said otherwise.

    Attributes:
        log_rhos: log π(a) − log μ(a). rewards: transformed. discounts: zero where the episode terminated.
        values: V(x_t). bootstrap_value: [B] V(x_T). predictions: the critic's V, or Q of the action.
        valid: rows that count.
        cut, cut_values: truncated rows and their final observation's value, where the environment resets within a
            step; None otherwise.
    """

    log_rhos: Tensor
    rewards: Tensor
    discounts: Tensor
    values: Tensor
    bootstrap_value: Tensor
    predictions: Tensor
    valid: Tensor
    cut: Tensor | None = None
    cut_values: Tensor | None = None


@dataclass(frozen=True)
class Corrected:
    """Targets [T, B] of the critic, without gradient.

    Attributes:
        advantages: of the policy gradient, before any importance weight. weights: clipped importance weights of it.
    """

    targets: Tensor
    advantages: Tensor
    weights: Tensor


class Correction(Protocol):
    """Off-policy targets for an actor-critic, with a run's clips and λ."""

    def __call__(self, options: ActorCriticConfig, batch: OffPolicyBatch, /) -> Corrected:
        """The targets."""
        ...


def by_vtrace(options: ActorCriticConfig, batch: OffPolicyBatch) -> Corrected:
    """``accel.correctors.vtrace``."""
    e = batch
    returns = vtrace(
        e.log_rhos, e.rewards, e.discounts, e.values, e.bootstrap_value, clip_rho=options.clip_rho,
        clip_c=options.clip_c, clip_pg_rho=options.clip_pg_rho, lambda_=options.lambda_, valid=e.valid,
        cut=e.cut, cut_values=e.cut_values,
    )  # fmt: skip
    return Corrected(returns.vs, returns.advantages, returns.pg_rhos)


def by_sequence_rejection(options: ActorCriticConfig, batch: OffPolicyBatch) -> Corrected:
    """V-trace, with weights of zero for unrolls whose product of ratios is outside [1/2, 2].

    verl has it as ``rollout_rs = "sequence"`` with ``rollout_rs_threshold = 2``. The critic learns from all of them.
    """
    corrected = by_vtrace(options, batch)
    total = torch.where(batch.valid, batch.log_rhos, 0.0).sum(0)
    return replace(corrected, weights=corrected.weights * (total.abs() <= _LOG_THRESHOLD))


def by_retrace(options: ActorCriticConfig, batch: OffPolicyBatch) -> Corrected:
    """``accel.correctors.retrace``, of a critic of action values."""
    e = batch
    returns = retrace(
        e.log_rhos, e.rewards, e.discounts, e.predictions, e.values, e.bootstrap_value, clip_c=options.clip_c,
        clip_pg_rho=options.clip_pg_rho, lambda_=options.lambda_, valid=e.valid, cut=e.cut, cut_values=e.cut_values,
    )  # fmt: skip
    return Corrected(returns.q_targets, returns.advantages, returns.pg_rhos)


def by_nstep(options: ActorCriticConfig, batch: OffPolicyBatch) -> Corrected:
    """``accel.correctors.nstep``: the identity, which treats every step as on-policy."""
    e = batch
    returns = nstep(
        e.log_rhos, e.rewards, e.discounts, e.values, e.bootstrap_value, lambda_=options.lambda_,
        valid=e.valid, cut=e.cut, cut_values=e.cut_values,
    )  # fmt: skip
    return Corrected(returns.vs, returns.advantages, returns.pg_rhos)


CORRECTIONS: dict[str, Correction] = {
    "vtrace": by_vtrace,
    "sequence-rejection": by_sequence_rejection,
    "retrace": by_retrace,
    "none": by_nstep,
}


def centre_and_weight(
    corrected: Corrected, weights: Tensor, *, normalise: bool, exchange: GradientExchange | None = None
) -> Tensor:
    """Factors of ∇ log π: advantages centred under the weights that they are going to carry, weighted, then scaled.

        Ã = ρ̂ (A − m) / s,   m = Σ w ρ̂ A / Σ w ρ̂,   s² = Σ w (ρ̂ (A − m))²

    Centred after the weight instead, the mean of ρ̂ A would be subtracted from rows whose ρ̂ differ, which turns the
    gradient: Σ w ρ̂ ∇ log π is about zero, Σ w ∇ log π is not.

    Args:
        corrected: advantages and weights [T, B].
        weights: w [T, B], valid rows' shares of the mean, which sum to one; zero rows count for nothing.
        normalise: whether to centre and scale at all. exchange: the sums are over all of its learners; None: one.
    """
    exchange = exchange or GradientExchange()
    if not normalise:
        return corrected.advantages * corrected.weights
    shares = (weights * corrected.weights).flatten()
    mean, total = torch.dot(shares, corrected.advantages.flatten()), shares.sum()
    exchange.sum([mean, total])
    mean = mean / total.clamp_min(1e-8)
    weighted = corrected.weights * (corrected.advantages - mean)
    variance = torch.dot(weights.flatten(), weighted.square().flatten())
    exchange.sum([variance])
    return weighted.mul_(torch.rsqrt(variance + 1e-8))


def shifted(following: Tensor) -> Tensor:
    """[n, N] numbers of the rows behind each row to those of the rows themselves; zero in the first, which has none.

    For targets of the first row alone, into which its own value does not go.
    """
    return torch.cat((torch.zeros_like(following[:1]), following[:-1]))
