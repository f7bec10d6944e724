"""What every correction promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from accel.algorithms.corrections import CORRECTIONS, Corrected, OffPolicyBatch, centre_and_weight
from accel.config import TrainConfig

T, B = 6, 3
each = pytest.mark.parametrize("name", CORRECTIONS)


def correction(name: str, **options: object) -> Callable[[OffPolicyBatch], Corrected]:
    made = TrainConfig.create(algorithm="impala", corrector=name, discount=0.9, **options).algorithm
    return partial(CORRECTIONS[name], made)


def experience(seed: int = 0, on_policy: bool = False) -> OffPolicyBatch:
    """A batch with an ending of each kind, and a row that counts for nothing after it: there a truncated one's V is."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    discounts, valid = torch.full((T, B), 0.9), torch.ones(T, B, dtype=torch.bool)
    discounts[2, 1] = 0.0
    valid[3, 1] = valid[3, 2] = False
    log_rhos = torch.zeros(T, B) if on_policy else noise(T, B)
    return OffPolicyBatch(log_rhos, noise(T, B), discounts, noise(T, B), noise(B), noise(T, B), valid)


def values(corrected: Corrected) -> tuple[Tensor, ...]:
    return corrected.targets, corrected.advantages, corrected.weights


def returns(batch: OffPolicyBatch) -> Tensor:
    """[T, B] discounted sums of rewards with the bootstrap behind them, by definition, one sum a row."""
    found = torch.zeros(T, B)
    for t in range(T):
        for b in range(B):
            weight = 1.0
            for k in range(t, T):
                if not batch.valid[k, b]:
                    found[t, b] += weight * batch.values[k, b]
                    weight = 0.0
                    break
                found[t, b] += weight * batch.rewards[k, b]
                weight *= float(batch.discounts[k, b])
            found[t, b] += weight * batch.bootstrap_value[b]
    return found


@each
def test_targets_have_the_batchs_shape_and_no_gradient(name: str) -> None:
    batch = experience()
    batch = replace(batch, values=batch.values.requires_grad_(), predictions=batch.predictions.requires_grad_())
    with torch.no_grad():
        for tensor in values(correction(name)(batch)):
            assert tensor.shape == (T, B) and not tensor.requires_grad and bool(torch.isfinite(tensor).all())


@each
def test_rows_that_count_for_nothing_change_nothing(name: str) -> None:
    batch = experience()
    junk = ~batch.valid
    other = replace(
        batch,
        rewards=batch.rewards.masked_fill(junk, 1e4),
        log_rhos=batch.log_rhos.masked_fill(junk, -7.0),
        predictions=batch.predictions.masked_fill(junk, 55.0),
    )
    for one, two in zip(values(correction(name)(batch)), values(correction(name)(other)), strict=True):
        assert torch.equal(one[batch.valid], two[batch.valid])
    counted = replace(other, valid=torch.ones_like(batch.valid))
    assert not torch.allclose(
        correction(name)(counted).targets[batch.valid], correction(name)(batch).targets[batch.valid], atol=1.0
    )


@each
def test_on_policy_targets_are_returns_and_weights_one(name: str) -> None:
    """With λ = 1, and for Retrace a critic that knows V, every correction is the Monte-Carlo return."""
    batch = experience(on_policy=True)
    if name == "retrace":
        batch = replace(batch, predictions=batch.values)
    corrected = correction(name, lambda_=1.0)(batch)
    valid = batch.valid
    assert torch.allclose(corrected.targets[valid], returns(batch)[valid], atol=1e-5)
    assert torch.equal(corrected.weights[valid], torch.ones(T, B)[valid])
    shorter = correction(name, lambda_=0.5)(batch)
    assert not torch.allclose(shorter.targets[valid], returns(batch)[valid], atol=1e-2)


@each
def test_a_weight_is_the_clipped_ratio_of_the_policies(name: str) -> None:
    batch = experience()
    weights = correction(name, clip_pg_rho=0.7)(batch).weights[batch.valid]
    expected = batch.log_rhos.exp().clamp_max(0.7)[batch.valid]
    if name == "none":
        expected = torch.ones_like(expected)
    if name == "sequence-rejection":
        products = (batch.log_rhos * batch.valid).sum(0).exp()
        kept = (products >= 0.5) & (products <= 2.0)
        assert kept.any() and not kept.all()
        expected = expected * kept.expand(T, B)[batch.valid]
    assert torch.allclose(weights, expected)


def test_centring_is_under_the_weights_and_junk_has_none() -> None:
    batch = experience()
    corrected = correction("vtrace")(batch)
    shares = batch.valid / batch.valid.sum()
    factors = centre_and_weight(corrected, shares, normalise=True)
    assert float((shares * factors).sum()) == pytest.approx(0.0, abs=1e-6)
    assert float((shares * factors.square()).sum()) == pytest.approx(1.0, abs=1e-4)
    plain = centre_and_weight(corrected, shares, normalise=False)
    assert torch.equal(plain, corrected.advantages * corrected.weights)
    shifted = replace(corrected, advantages=corrected.advantages + 3.0)
    assert torch.allclose(centre_and_weight(shifted, shares, normalise=True), factors, atol=1e-5)
