"""Losses of the learner: pure functions of tensors. Every mean is over valid steps only.

The three terms come with their gradient in the first argument: a loss and a tensor of that argument's shape.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0


class LossTerms(NamedTuple):
    """The scalar tensors a loss is made of: total = policy + value_cost · value − entropy_cost · entropy."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor


def masked_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Mean of ``values`` under weights that sum to one: weights = valid / valid.sum(), any shape."""
    return torch.dot(values.flatten(), weights.to(values.dtype).flatten())


def policy_gradient(log_prob: Tensor, advantages: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """−E[log π(a) · A]; the importance weight is already in A (Espeholt et al. 2018, section 4.2)."""
    gradient = -advantages * weights
    return torch.dot(log_prob.flatten(), gradient.flatten()), gradient


def clipped_surrogate(
    log_prob: Tensor, proximal_log_prob: Tensor, advantages: Tensor, weights: Tensor, clip_ratio: float
) -> tuple[Tensor, Tensor]:
    """−E[min(r A, clip(r, 1−ε, 1+ε) A)] with r = π_θ/π_prox; its gradient is −w r A where r A is the lesser, else 0.

    π_prox is the learner's policy when the batch arrived, and A carries the truncated weight min(ρ̄, π_prox/μ), so that
    the trust region is around the learner's own policy while the correction is for the policy that acted.

    Source:
        Schulman et al. 2017, arXiv:1707.06347, eq. 7; the split of proximal and behaviour policy is IMPACT's
        (Luo et al. 2020, arXiv:1912.00167) with a target refreshed at each batch.
    """
    # Beyond e^20 a ratio is far outside any trust region, and soon infinite, whose gradient is NaN even where the
    # clipped branch is taken: 0 · inf.
    log_ratio = log_prob - proximal_log_prob
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp_()
    plain, clipped = ratio * advantages, ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio).mul_(advantages)
    counts = (plain <= clipped).logical_and_(log_ratio <= MAX_LOG_RATIO)
    return -masked_mean(torch.minimum(plain, clipped), weights), (plain * counts).mul_(weights).neg_()


def squared_error(predictions: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """½ E[(prediction − target)²]."""
    error = predictions - targets
    gradient = error * weights
    return 0.5 * torch.dot(error.flatten(), gradient.flatten()), gradient
