"""Losses of the learner: pure functions of tensors. Every mean is over valid steps only."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class LossTerms:
    """The scalar tensors a loss is made of; ``total`` carries the gradient.

    Attributes:
        total: policy + value_cost · value − entropy_cost · entropy.
        policy, value, entropy: its terms, before weighting.
    """

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor


def masked_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Mean of ``values`` under weights that sum to one: weights = valid / valid.sum(), any shape."""
    return torch.dot(values.flatten(), weights.to(values.dtype).flatten())


def normalise(advantages: Tensor, weights: Tensor) -> Tensor:
    """Zero mean and unit deviation over the weighted steps; rows of weight zero are left finite but meaningless."""
    mean = masked_mean(advantages, weights)
    centred = advantages - mean
    return centred * torch.rsqrt(masked_mean(centred.square(), weights) + 1e-8)


def policy_gradient(log_prob: Tensor, advantages: Tensor, weights: Tensor) -> Tensor:
    """−E[log π(a) · A]; the importance weight is already in A (Espeholt et al. 2018, section 4.2)."""
    return -masked_mean(log_prob * advantages, weights)


def clipped_surrogate(
    log_prob: Tensor, proximal_log_prob: Tensor, advantages: Tensor, weights: Tensor, clip_ratio: float
) -> Tensor:
    """−E[min(r A, clip(r, 1−ε, 1+ε) A)] with r = π_θ/π_prox.

    π_prox is the learner's policy when the batch arrived, and A carries the truncated weight min(ρ̄, π_prox/μ), so that
    the trust region is around the learner's own policy while the correction is for the policy that acted.

    Source:
        Schulman et al. 2017, arXiv:1707.06347, eq. 7; the split of proximal and behaviour policy is IMPACT's
        (Luo et al. 2020, arXiv:1912.00167) with a target refreshed at each batch.
    """
    # Beyond e^20 a ratio is far outside any trust region, and soon infinite, whose gradient is NaN even where the
    # clipped branch is taken: 0 · inf.
    ratio = torch.exp((log_prob - proximal_log_prob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    clipped = ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio)
    return -masked_mean(torch.minimum(ratio * advantages, clipped * advantages), weights)


def squared_error(predictions: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """½ E[(prediction − target)²]."""
    return 0.5 * masked_mean((predictions - targets).square(), weights)
