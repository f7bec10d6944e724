"""accel.algorithms.distributions against torch.distributions and finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch import distributions as reference

from accel.algorithms.distributions import make_distribution
from accel.envs.spaces import MASKED, ActionSpec

CATEGORICAL = ActionSpec("categorical", (5,))
BINARY = ActionSpec("categorical", (2,))
EQUAL = ActionSpec("multi_categorical", (3, 3))
UNEQUAL = ActionSpec("multi_categorical", (2, 5, 3))
GAUSSIAN = ActionSpec("gaussian", (3,), (-1.0,) * 3, (1.0,) * 3)
EVERY = [CATEGORICAL, BINARY, EQUAL, UNEQUAL, GAUSSIAN]


def _id(action: ActionSpec) -> str:
    return f"{action.kind}{'x'.join(map(str, action.sizes))}"


def _params(action: ActionSpec, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, action.param_size, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def references(action: ActionSpec, params: Tensor) -> list[reference.Distribution]:
    """torch's own distributions, one a component; log-probabilities, entropies and divergences add up."""
    if action.kind == "gaussian":
        mean, log_std = params.chunk(2, -1)
        return [reference.Independent(reference.Normal(mean, log_std.exp()), 1)]
    return [reference.Categorical(logits=part) for part in torch.split(params, list(action.sizes), -1)]


def parts_of(action: ActionSpec, actions: Tensor) -> list[Tensor]:
    return list(actions.unbind(-1)) if action.kind == "multi_categorical" else [actions]


@pytest.mark.parametrize("action", EVERY, ids=_id)
def test_log_prob_entropy_and_kl_equal_those_of_torch(action: ActionSpec) -> None:
    params, others = _params(action, 4, 3, seed=1), _params(action, 4, 3, seed=2)
    ours, other = make_distribution(action, params), make_distribution(action, others)
    theirs, their_other = references(action, params), references(action, others)
    actions = ours.sample(torch.Generator().manual_seed(0))
    parts = parts_of(action, actions)
    expected = sum(d.log_prob(a) for d, a in zip(theirs, parts, strict=True))
    torch.testing.assert_close(ours.log_prob(actions), expected)
    torch.testing.assert_close(ours.entropy(), sum(d.entropy() for d in theirs))
    divergence = sum(reference.kl_divergence(a, b) for a, b in zip(theirs, their_other, strict=True))
    torch.testing.assert_close(ours.kl(other), divergence)
    assert ours.log_prob(actions).shape == ours.entropy().shape == ours.kl(other).shape == (4, 3)
    torch.testing.assert_close(ours.kl(ours), torch.zeros(4, 3, dtype=torch.float64), rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("action", EVERY, ids=_id)
def test_gradients_are_those_of_finite_differences(action: ActionSpec) -> None:
    params = _params(action, 2, 3, seed=4).requires_grad_()
    others = _params(action, 2, 3, seed=5)
    actions = make_distribution(action, params).sample(torch.Generator().manual_seed(0))

    def numbers(p: Tensor) -> tuple[Tensor, ...]:
        ours = make_distribution(action, p)
        return ours.log_prob(actions), ours.entropy(), ours.kl(make_distribution(action, others))

    assert torch.autograd.gradcheck(numbers, (params,))


@pytest.mark.parametrize("action", EVERY, ids=_id)
def test_scores_and_their_gradients_are_those_of_autograd(action: ActionSpec) -> None:
    params = _params(action, 4, 3, seed=4).requires_grad_()
    ours = make_distribution(action, params)
    actions = ours.sample(torch.Generator().manual_seed(0))
    with torch.no_grad():
        scores = make_distribution(action, params.detach()).scores(actions)
    torch.testing.assert_close((scores.log_prob, scores.entropy), (ours.log_prob(actions), ours.entropy()))
    of_log_prob, of_entropy = _params(action, 4, 3, seed=5)[..., 0], _params(action, 4, 3, seed=6)[..., 0]
    (expected,) = torch.autograd.grad([ours.log_prob(actions), ours.entropy()], params, [of_log_prob, of_entropy])
    torch.testing.assert_close(scores.pull(of_log_prob, of_entropy), expected)


def test_a_masked_action_has_no_gradient() -> None:
    logits = torch.tensor([[0.5, MASKED, -0.3]])
    scores = make_distribution(ActionSpec("categorical", (3,)), logits).scores(torch.tensor([2]))
    gradient = scores.pull(torch.ones(1), torch.ones(1))
    assert gradient.isfinite().all() and gradient[0, 1] == 0.0 and (gradient[0, [0, 2]] != 0.0).all()


@pytest.mark.parametrize("action", EVERY, ids=_id)
def test_the_score_has_mean_zero_and_the_mean_negative_log_prob_is_the_entropy(action: ActionSpec) -> None:
    row = _params(action, seed=6, dtype=torch.float32).requires_grad_()
    ours = make_distribution(action, row.expand(40_000, -1))
    log_prob = ours.log_prob(ours.sample(torch.Generator().manual_seed(1)))
    deviation = float(log_prob.detach().std()) / math.sqrt(len(log_prob))
    assert abs(float((-log_prob - ours.entropy()).mean().detach())) < 5.0 * deviation
    (score,) = torch.autograd.grad(log_prob.mean(), row)
    assert float(score.abs().max()) < 0.04


@pytest.mark.parametrize("action", EVERY, ids=_id)
def test_samples_follow_the_generator_and_carry_no_gradient(action: ActionSpec) -> None:
    params = _params(action, 5, 4, dtype=torch.float32).requires_grad_()
    ours = make_distribution(action, params)
    first, again = (ours.sample(torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, ours.sample(torch.Generator().manual_seed(4)))
    mode = ours.mode()
    for actions in (first, mode):
        assert actions.shape == (5, 4, *action.shape) and not actions.requires_grad
        assert actions.dtype == (torch.float32 if action.kind == "gaussian" else torch.int64)
    assert bool((ours.log_prob(mode) >= ours.log_prob(first)).all())


@pytest.mark.parametrize("action", EVERY, ids=_id)
def test_half_precision_parameters_are_computed_with_in_float32(action: ActionSpec) -> None:
    params = _params(action, 5, dtype=torch.float32).bfloat16()
    ours, full = make_distribution(action, params), make_distribution(action, params.float())
    actions = full.mode()
    assert ours.entropy().dtype == torch.float32
    assert torch.equal(ours.log_prob(actions), full.log_prob(actions))


@pytest.mark.parametrize("action", EVERY, ids=_id)
def test_parameters_of_another_size_are_refused(action: ActionSpec) -> None:
    with pytest.raises(ValueError, match=f"need {action.param_size} parameters"):
        make_distribution(action, torch.zeros(4, action.param_size + 1))
