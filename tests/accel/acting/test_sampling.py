"""accel.acting.rules: frequencies, densities and bounds against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel.acting.rules import make_sampler
from accel.envs.spaces import ActionSpec
from accel.errors import ConfigError

CATEGORICAL = ActionSpec("categorical", (5,))
BINARY = ActionSpec("categorical", (2,))
EQUAL = ActionSpec("multi_categorical", (3, 3))
UNEQUAL = ActionSpec("multi_categorical", (2, 5, 3))
BOUNDED = ActionSpec("gaussian", (3,), (-1.0, 0.0, -2.0), (1.0, 4.0, math.inf))
SQUASHED = ActionSpec("gaussian", (2,), (-1.0, 0.0), (1.0, 4.0), squash=True)
UNBOUNDED = ActionSpec("gaussian", (2,), (-math.inf,) * 2, (math.inf,) * 2)
EVERY = [CATEGORICAL, BINARY, EQUAL, UNEQUAL, BOUNDED, SQUASHED, UNBOUNDED]
DISCRETE = [CATEGORICAL, BINARY, EQUAL, UNEQUAL]


def _id(action: ActionSpec) -> str:
    return f"{action.kind}{'x'.join(map(str, action.sizes))}{'-squash' if action.squash else ''}"


def _params(action: ActionSpec, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((*shape, action.param_size)).astype(np.float32)


def _unroll(action: ActionSpec, params: np.ndarray, seed: int = 0) -> np.ndarray:
    """One sampled unroll; params [T, B, P]."""
    length, envs = params.shape[:2]
    sampler = make_sampler(action, envs, length, np.random.default_rng(seed))
    out = np.zeros((length, envs, *action.shape), action.dtype)
    sampler.begin()
    for t in range(length):
        sampler.sample(params[t], t, out[t])
    return out


def _probabilities(logits: np.ndarray) -> np.ndarray:
    exponentials = [math.exp(float(x)) for x in logits]
    return np.array(exponentials) / sum(exponentials)


def _components(action: ActionSpec, row: np.ndarray) -> list[np.ndarray]:
    """Probabilities of each component of a discrete action from one row of parameters."""
    return [_probabilities(part) for part in np.split(row, np.cumsum(action.sizes)[:-1])]


@pytest.mark.parametrize("action", DISCRETE, ids=_id)
def test_frequencies_pass_a_chi_square_test_and_a_wrong_distribution_fails_it(action: ActionSpec) -> None:
    row = _params(action, seed=3)
    draws = 40_000
    actions = _unroll(action, np.broadcast_to(row, (200, 200, action.param_size)).copy()).reshape(draws, -1)
    for component, expected in enumerate(_components(action, row)):
        counts = np.bincount(actions[:, component], minlength=len(expected))
        assert len(counts) == len(expected)
        degrees = len(expected) - 1
        limit = degrees + 5.0 * math.sqrt(2.0 * degrees) + 10.0
        assert float(((counts - draws * expected) ** 2 / (draws * expected)).sum()) < limit
        wrong = np.full_like(expected, 1.0 / len(expected))
        assert float(((counts - draws * wrong) ** 2 / (draws * wrong)).sum()) > limit


def test_components_of_a_multi_discrete_action_are_independent() -> None:
    actions = _unroll(EQUAL, np.zeros((200, 200, 6), np.float32)).reshape(-1, 2)
    joint = np.bincount(actions[:, 0] * 3 + actions[:, 1], minlength=9)
    expected = len(actions) / 9.0
    assert float(((joint - expected) ** 2 / expected).sum()) < 40.0


def test_gaussian_samples_have_their_mean_deviation_and_tails() -> None:
    row = np.array([0.5, -2.0, 3.0, -1.0, 0.0, 1.0], np.float32)
    actions = _unroll(BOUNDED, np.broadcast_to(row, (200, 200, 6)).copy()).reshape(-1, 3)
    standard = (actions - row[:3]) / np.exp(row[3:])
    assert np.abs(standard.mean(0)).max() < 4.0 / math.sqrt(len(standard))
    assert np.abs(standard.std(0) - 1.0).max() < 0.02
    assert np.abs((np.abs(standard) > 1.959964).mean(0) - 0.05).max() < 0.006
    assert np.abs(np.corrcoef(standard.T) - np.eye(3)).max() < 0.03


@pytest.mark.parametrize("action", EVERY, ids=_id)
def test_the_same_generator_state_gives_the_same_actions_and_each_unroll_its_own(action: ActionSpec) -> None:
    params = _params(action, 6, 4)
    assert np.array_equal(_unroll(action, params, seed=1), _unroll(action, params, seed=1))
    assert not np.array_equal(_unroll(action, params, seed=1), _unroll(action, params, seed=2))
    sampler = make_sampler(action, 4, 6, np.random.default_rng(1))
    unrolls = np.zeros((2, 6, 4, *action.shape), action.dtype)
    for unroll in unrolls:
        sampler.begin()
        for t in range(6):
            sampler.sample(params[t], t, unroll[t])
    assert np.array_equal(unrolls[0], _unroll(action, params, seed=1))
    assert not np.array_equal(unrolls[0], unrolls[1])
    assert not np.array_equal(unrolls[0, 0], unrolls[0, 1])


def test_gaussian_log_prob_is_that_of_the_sample_before_squashing() -> None:
    params = _params(SQUASHED, 4, 3, seed=6)
    actions = _unroll(SQUASHED, params)
    log_prob = make_sampler(SQUASHED, 3, 4, np.random.default_rng(0)).log_prob(params, actions)
    for index in np.ndindex(4, 3):
        expected = 0.0
        for mean, log_std, a in zip(params[index][:2], params[index][2:], actions[index], strict=True):
            std = math.exp(log_std)
            expected += math.log(math.exp(-((a - mean) ** 2) / (2.0 * std**2)) / (std * math.sqrt(2.0 * math.pi)))
        assert log_prob[index] == pytest.approx(expected, rel=1e-4, abs=1e-5)


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=6))
def test_extreme_logits_give_finite_or_infinitely_unlikely_log_probs_that_sum_to_one(logits: list[float]) -> None:
    action = ActionSpec("categorical", (len(logits),))
    params = np.tile(np.array(logits, np.float32), (len(logits), 1))
    sampler = make_sampler(action, len(logits), 1, np.random.default_rng(0))
    log_prob = sampler.log_prob(params, np.arange(len(logits)))
    assert np.isfinite(log_prob).all() and log_prob.max() <= 1e-6
    assert np.exp(log_prob.astype(np.float64)).sum() == pytest.approx(1.0, abs=1e-5)


def test_environment_gets_clipped_or_squashed_copies_of_gaussian_samples() -> None:
    rng = np.random.default_rng(0)
    samples = np.array([[-3.0, -3.0, -3.0], [0.5, 0.5, 0.5], [9.0, 9.0, 9.0]], np.float32)
    clipped = make_sampler(BOUNDED, 3, 1, rng).to_env(samples)
    assert np.array_equal(clipped, np.array([[-1.0, 0.0, -2.0], [0.5, 0.5, 0.5], [1.0, 4.0, 9.0]], np.float32))
    squashed = make_sampler(SQUASHED, 3, 1, rng).to_env(samples[:, :2])
    expected = [[math.tanh(x), 2.0 + 2.0 * math.tanh(x)] for x in (-3.0, 0.5, 9.0)]
    np.testing.assert_allclose(squashed, expected, rtol=1e-6, atol=1e-6)
    free = make_sampler(UNBOUNDED, 3, 1, rng).to_env(samples[:, :2])
    assert np.array_equal(free, samples[:, :2])
    assert not any(np.shares_memory(samples, given) for given in (clipped, squashed, free))


def test_squashed_actions_never_leave_the_bounds_by_rounding() -> None:
    rng = np.random.default_rng(0)
    low = rng.uniform(-3.0, 1.0, 500).astype(np.float32)
    high = low + rng.uniform(0.01, 5.0, 500).astype(np.float32)
    action = ActionSpec("gaussian", (500,), tuple(map(float, low)), tuple(map(float, high)), squash=True)
    samples = np.stack((np.full(500, -50.0, np.float32), np.full(500, 50.0, np.float32)))
    at_low, at_high = make_sampler(action, 2, 1, rng).to_env(samples)
    assert (at_low >= low).all() and (at_high <= high).all()
    np.testing.assert_allclose(at_high, high, rtol=1e-6, atol=1e-6)
    assert (low / 2 + high / 2 + (high / 2 - low / 2) > high).any(), "the plain formula would do"


def test_squashing_without_bounds_is_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ConfigError, match="finite bounds"):
        make_sampler(ActionSpec("gaussian", (1,), (-math.inf,), (1.0,), squash=True), 1, 1, rng)
