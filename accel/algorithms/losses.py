"""Losses of the learner: pure functions of tensors. Every mean is over valid steps only."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

MAX_LOG_RATIO = 20.0


class LossTerms(NamedTuple):
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
    loss: Tensor = _Surrogate.apply(log_prob, proximal_log_prob, advantages, weights, clip_ratio)  # type: ignore[no-untyped-call]
    return loss


def clipped_surrogate_pulled(
    log_prob: Tensor, proximal_log_prob: Tensor, advantages: Tensor, weights: Tensor, clip_ratio: float
) -> tuple[Tensor, Tensor]:
    """``clipped_surrogate`` and its gradient in log_prob: −w r A where r A is the lesser of the two, else 0."""
    # Beyond e^20 a ratio is far outside any trust region, and soon infinite, whose gradient is NaN even where the
    # clipped branch is taken: 0 · inf.
    log_ratio = log_prob - proximal_log_prob
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp_()
    plain, clipped = ratio * advantages, ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio).mul_(advantages)
    counts = (plain <= clipped).logical_and_(log_ratio <= MAX_LOG_RATIO)
    return -masked_mean(torch.minimum(plain, clipped), weights), (plain * counts).mul_(weights).neg_()


class _Surrogate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, log_prob: Tensor, proximal_log_prob: Tensor, advantages: Tensor, weights: Tensor, clip: float
    ) -> Tensor:
        loss, gradient = clipped_surrogate_pulled(log_prob, proximal_log_prob, advantages, weights, clip)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, of_loss: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return gradient * of_loss, None, None, None, None


def squared_error(predictions: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """½ E[(prediction − target)²]."""
    return 0.5 * masked_mean((predictions - targets).square(), weights)


def squared_error_pulled(predictions: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """``squared_error`` and its gradient in the predictions."""
    error = predictions - targets
    gradient = error * weights
    return 0.5 * torch.dot(error.flatten(), gradient.flatten()), gradient
