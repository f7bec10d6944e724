"""The ledger of returns: only whole episodes of one level count, concurrent ones only, and none by how long it took."""

from __future__ import annotations

import math

import numpy as np
import pytest

from monitor.tuner.returns import ReturnComparison, ReturnLedger

FP32, INT8 = 0, 1


def _observe(ledger: ReturnLedger, actor: int, levels: list[int], ended: list[tuple[int, float]]) -> None:
    envs = np.array([env for env, _ in ended], np.int64)
    ledger.observe(actor, 0.0, np.array(levels, np.int16), envs, np.array([value for _, value in ended], np.float32))


def test_only_episodes_wholly_under_one_level_count() -> None:
    ledger = ReturnLedger()
    ledger.begin(INT8, FP32)
    # What was running began before.
    _observe(ledger, 0, [INT8, FP32], [(0, 1000.0), (0, 10.0), (1, -1000.0), (0, 12.0), (1, 8.0)])
    _observe(ledger, 0, [INT8, FP32], [(0, 11.0), (1, 9.0)])
    for _ in range(8):
        _observe(ledger, 0, [INT8, FP32], [(0, 11.0), (1, 8.5)])
    result = ledger.compare()
    assert (result.candidate_episodes, result.reference_episodes) == (8, 8)
    assert result.candidate_mean == 11.0
    assert result.reference_mean == 8.5


def test_an_episode_that_spans_a_change_of_level_counts_for_neither() -> None:
    ledger = ReturnLedger()
    ledger.begin(INT8, FP32)
    for value in (1.0, 2.0, 3.0):
        # Every episode is begun under one level and ended under the other.
        _observe(ledger, 0, [INT8, FP32], [(0, value), (1, value)])
        _observe(ledger, 0, [FP32, INT8], [(0, value), (1, value)])
    assert ledger.compare() == ReturnComparison()


def test_episodes_begun_before_the_comparison_keep_nothing_waiting() -> None:
    ledger = ReturnLedger()
    ledger.begin(INT8, FP32)
    for _ in range(12):  # Environment 2 never ends the episode it began before.
        _observe(ledger, 0, [INT8, FP32, FP32], [(0, 5.0), (1, 5.0)])
    assert ledger.compare().episodes == 8
    assert ledger.compare().z == 0.0


def test_a_stratum_counts_only_when_all_its_episodes_have_ended() -> None:
    ledger = ReturnLedger()
    ledger.begin(INT8, FP32)
    _observe(ledger, 0, [INT8, FP32, FP32], [(2, 0.0)])
    for _ in range(4):
        _observe(ledger, 0, [INT8, FP32, FP32], [(0, 5.0), (1, 5.0)])
    assert ledger.compare().episodes == 0
    _observe(ledger, 0, [INT8, FP32, FP32], [(0, 5.0), (1, 5.0), (2, 501.0)])
    assert ledger.compare() == ReturnComparison(4, 4, 5.0, 129.0, -124.0, 124.0, pytest.approx(248.0 / 2**0.5))


def test_a_change_of_level_or_a_death_keeps_nothing_waiting() -> None:
    ledger = ReturnLedger()
    ledger.begin(INT8, FP32)
    for actor in (1, 2):
        _observe(ledger, actor, [INT8, FP32], [(0, 5.0), (1, 5.0)])
    for _ in range(4):
        _observe(ledger, 0, [INT8, FP32], [(0, 5.0), (1, 5.0)])
    assert ledger.compare().episodes == 0
    ledger.forget(1)
    _observe(ledger, 2, [FP32, INT8], [])
    assert ledger.compare().episodes == 2


def _play(seed: int, *, episodes: int, trend: float, loss: float, steps: tuple[int, int]) -> ReturnComparison:
    """Two levels on four environments each; INT8 steps ``steps[0]`` times for FP32's ``steps[1]``."""
    random = np.random.default_rng(seed)
    ledger = ReturnLedger()
    levels = np.array([INT8] * 4 + [FP32] * 4)
    speed = np.where(levels == INT8, steps[0], steps[1])
    left = random.geometric(0.02, 8)
    lengths = left.copy()
    ledger.begin(INT8, FP32)
    for tick in range(episodes * 50 // 8):
        left -= speed
        over = np.flatnonzero(left <= 0)
        # Longer episodes return more, as where staying alive is rewarded.
        returns = lengths[over] + trend * tick - loss * (levels[over] == INT8)
        ledger.observe(0, float(tick), levels, over, returns.astype(np.float64))
        lengths[over] = random.geometric(0.02, over.size)
        left[over] = lengths[over]
    return ledger.compare()


def test_z_is_a_standard_normal_under_equal_levels_however_fast_either_is() -> None:
    z = np.array([_play(seed, episodes=200, trend=0.0, loss=0.0, steps=(5, 1)).z for seed in range(100)])
    assert abs(z.mean()) < 4.0 / math.sqrt(z.size)
    assert 0.8 < z.std() < 1.25


def test_judging_episodes_by_when_they_end_would_be_biased() -> None:
    """The broken variant: what ended so far. A level five times as fast ends more long episodes in the same time."""
    biases = []
    for seed in range(60):
        random = np.random.default_rng(seed)
        means = []
        for speed in (5, 1):
            lengths = random.geometric(0.02, (64, 200))
            ends = np.cumsum(lengths, 1) <= 60 * speed
            means.append(lengths[ends].mean())
        biases.append(means[0] - means[1])
    assert np.mean(biases) > 5.0


def test_a_loss_is_found_under_a_strong_common_trend() -> None:
    """The trend is 1000 over the comparison, the returns' deviation 50 and the loss 10."""
    results = [_play(seed, episodes=800, trend=0.2, loss=10.0, steps=(1, 1)) for seed in range(20)]
    error = np.sqrt(np.mean([r.error**2 for r in results]) / len(results))
    assert np.mean([r.difference for r in results]) == pytest.approx(-10.0, abs=4.0 * error)
    assert np.mean([r.z for r in results]) < -1.0
    assert error < 2.0


def _play_while_learning(seed: int, loss: float) -> ReturnComparison:
    """One environment for each level, INT8 three times as fast; the mean return rises by 1 a tick from 20 to 420."""
    random = np.random.default_rng(seed)
    ledger = ReturnLedger()
    ledger.begin(INT8, FP32)
    levels = np.array([INT8, FP32])
    begun, left = np.zeros(2), random.uniform(20, 40, 2)
    for tick in range(400):
        left -= (3, 1)
        over = np.flatnonzero(left <= 0)
        returns = 20 + (begun[over] + tick) / 2 + 20 * random.standard_normal(over.size) - loss * (levels[over] == INT8)
        ledger.observe(0, float(tick), levels, over, returns)
        begun[over], left[over] = tick, random.uniform(20, 40, over.size)
    return ledger.compare()


def test_a_faster_level_is_not_blamed_for_the_older_policies_that_it_had() -> None:
    results = [_play_while_learning(seed, loss=0.0) for seed in range(60)]
    z = np.array([r.z for r in results])
    assert abs(z.mean()) < 0.5
    assert np.all(z > -4.0)
    # The broken variant, without the drift: nearly every equal level would be rejected.
    uncorrected = np.array([(r.difference + r.drift) / r.error for r in results])
    assert uncorrected.mean() < -2.0
    assert "because its policies were older" in str(results[0])


def test_a_loss_is_found_while_returns_rise() -> None:
    results = [_play_while_learning(seed, loss=80.0) for seed in range(30)]
    assert np.mean([r.difference for r in results]) == pytest.approx(-80.0, abs=8.0)
    assert np.mean([r.z for r in results]) < -4.0


def test_returns_that_never_vary() -> None:
    equal = ReturnComparison(10, 10, 500.0, 500.0, 0.0, 0.0, 0.0)
    assert (equal.z, equal.effect) == (0.0, 0.0)
    worse = ReturnComparison(10, 10, 9.0, 500.0, -491.0, 0.0, 0.0)
    assert worse.z == -math.inf
    assert worse.effect == pytest.approx(-9.82)


def test_a_hundredth_of_the_mean_is_a_tenth_of_the_scale() -> None:
    """Returns that hardly vary: losing 1 % of them is as negligible as a tenth of a standard deviation."""
    assert ReturnComparison(50, 50, 495.0, 500.0, -5.0, 0.1, 0.5).effect == pytest.approx(-0.1)


def test_memory_is_bounded_by_environments() -> None:
    ledger = ReturnLedger()
    ledger.begin(INT8, FP32)
    for _ in range(400):
        _observe(ledger, 0, [INT8, INT8, INT8, FP32], [(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0)])
    assert len(ledger._running) <= 4
    assert len(ledger._cells) <= 2
