"""Reward transforms against sums written from the definition."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel.config.parts import RewardConfig
from accel.errors import CheckpointError
from accel.experience.rewards import RewardTransform


def make(discount: float = 0.9, **options: object) -> RewardTransform:
    return RewardTransform(RewardConfig(**options), discount)


def apply(transform: RewardTransform, actor: int, unroll: dict[str, np.ndarray]) -> np.ndarray:
    """As the learner does it with each unroll."""
    transform.observe(actor, unroll)
    return transform.transform(unroll)


def random_unroll(rng: np.random.Generator, length: int, envs: int) -> dict[str, np.ndarray]:
    """NEXT_STEP rows: after a finished step comes an invalid row, after that a first one."""
    done = rng.random((length, envs)) < 0.2
    valid, first = np.ones((length + 1, envs), bool), np.zeros((length + 1, envs), bool)
    first[0] = rng.random(envs) < 0.5
    for t in range(length):
        done[t] &= valid[t]
        valid[t + 1] = ~done[t]
        first[t + 1] = ~valid[t]
    rewards = np.where(valid[:-1], rng.normal(2, 3, (length, envs)), 0).astype(np.float32)
    return {"rewards": rewards, "first": first, "valid": valid}


def discounted_returns(unrolls: list[dict[str, np.ndarray]], discount: float) -> list[float]:
    """R_t of every transition, each as its own sum back to its episode's start: O(T^2), no recursion."""
    rewards, first, valid = (
        np.concatenate([unroll[name][: len(unroll["rewards"])] for unroll in unrolls])
        for name in ("rewards", "first", "valid")
    )
    found = []
    for t, b in np.argwhere(valid):
        start = max([k for k in range(t + 1) if first[k, b]], default=0)
        found.append(sum(discount ** (t - k) * float(rewards[k, b]) for k in range(start, t + 1) if valid[k, b]))
    return found


def test_without_options_the_rewards_are_untouched() -> None:
    unroll = random_unroll(np.random.default_rng(0), 6, 2)
    transform = make()
    assert transform.is_identity
    assert apply(transform, 0, unroll) is unroll["rewards"]


def test_clipping_comes_before_scaling_and_the_unroll_is_not_written() -> None:
    unroll = random_unroll(np.random.default_rng(0), 6, 2)
    before = unroll["rewards"].copy()
    result = apply(make(reward_scale=0.5, reward_clip=1.0), 0, unroll)
    np.testing.assert_array_equal(result, np.clip(before, -1, 1) * np.float32(0.5))
    np.testing.assert_array_equal(unroll["rewards"], before)
    assert result.dtype == np.float32


def test_rows_that_are_no_transitions_get_no_reward() -> None:
    unroll = random_unroll(np.random.default_rng(3), 30, 4)
    unroll["rewards"] = unroll["rewards"] + np.float32(1)
    junk = ~unroll["valid"][:-1]
    assert junk.any()
    for transform in (make(reward_scale=2.0), make(normalise_rewards=True)):
        assert not apply(transform, 0, unroll)[junk].any()


@given(seed=st.integers(0, 2**32 - 1), discount=st.floats(0, 1), unrolls=st.integers(1, 4))
def test_normalisation_is_by_the_deviation_of_the_discounted_return(seed: int, discount: float, unrolls: int) -> None:
    rng = np.random.default_rng(seed)
    transform = make(normalise_rewards=True, discount=discount)
    seen = []
    for _ in range(unrolls):
        unroll = random_unroll(rng, 7, 3)
        if seen:
            unroll["first"][0] = ~seen[-1]["valid"][-2]
            unroll["valid"][0] = seen[-1]["valid"][-1]
            unroll["rewards"][0] *= unroll["valid"][0]
            unroll["first"][1] = ~unroll["valid"][0]
        seen.append(unroll)
        result = apply(transform, 4, unroll)
    returns = np.array(discounted_returns(seen, discount))
    # The statistics start as 1e-4 observations of mean 0 and variance 1.
    count = len(returns) + 1e-4
    mean = returns.sum() / count
    variance = (1e-4 + (returns**2).sum()) / count - mean**2
    np.testing.assert_allclose(transform.moments.variance, variance, rtol=1e-6, atol=1e-9)
    expected = np.where(unroll["valid"][:-1], unroll["rewards"] / np.sqrt(variance + 1e-8), 0)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)


def test_environments_of_different_actors_keep_their_own_returns() -> None:
    rng = np.random.default_rng(5)
    a, b = (random_unroll(rng, 5, 2) for _ in range(2))
    for unroll in (a, b):
        unroll["first"][:] = False
        unroll["valid"][:] = True
    transform = make(normalise_rewards=True, discount=1.0)
    for actor, unroll in ((0, a), (1, b), (0, a)):
        apply(transform, actor, unroll)
    state: Any = transform.state()["returns"]
    np.testing.assert_allclose(state["0"], 2 * a["rewards"].sum(axis=0), rtol=1e-5)
    np.testing.assert_allclose(state["1"], b["rewards"].sum(axis=0), rtol=1e-5)


def test_saving_and_restoring_through_json_goes_on_bit_for_bit() -> None:
    rng = np.random.default_rng(6)
    unrolls = [random_unroll(rng, 8, 3) for _ in range(6)]
    options = {"normalise_rewards": True, "discount": 0.97}
    straight, first_half, second_half = (make(**options) for _ in range(3))
    expected = [apply(straight, i % 2, unroll) for i, unroll in enumerate(unrolls)]
    for i in range(3):
        apply(first_half, i % 2, unrolls[i])
    second_half.restore(json.loads(json.dumps(first_half.state())))
    for i in range(3, 6):
        np.testing.assert_array_equal(apply(second_half, i % 2, unrolls[i]), expected[i])


@pytest.mark.parametrize(
    "state", [{}, {"mean": 0, "variance": "x", "count": 1, "returns": {}}, {"mean": [], "returns": 3}]
)
def test_a_damaged_state_is_a_named_error(state: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match="reward normalisation"):
        make().restore(state)
