"""What a level is worth: blocks and their comparison against the definition, and simulated levels."""

from __future__ import annotations

import math

import numpy as np
import pytest

from accel.monitor.objective import FEWEST, LEARNING_S, Block, BlockRecorder, Comparison


def _block(steps_per_s: float, share: float = 1.0, rise: float = 0.0, noise: float = 0.0, seed: int = 0) -> Block:
    """Ten seconds with 20 episodes of each of four environments."""
    random = np.random.default_rng(seed)
    ends_s = np.repeat(np.arange(20.0)[:, None] / 2.0, 4, axis=1)
    returns = 50.0 + rise * ends_s + noise * random.standard_normal(ends_s.shape)
    return Block(10.0, round(10 * steps_per_s), share, returns, ends_s)


def test_a_block_has_the_first_episodes_of_every_environment_that_began_in_it() -> None:
    recorder, known = BlockRecorder("int8"), {(0, 0), (0, 1), (1, 0)}
    recorder.add(0, "fp32", [(0, -1.0), (1, -1.0)], 0.0)
    recorder.add(0, "int8", [(0, -1.0), (1, -1.0)], 1.0)  # these began before
    assert not recorder.over(1.0, 100, {0, 1}, 2.0, 10, known)
    recorder.add(1, "int8", [(0, -1.0)], 2.0)
    assert not recorder.over(2.0, 100, {0, 1}, 2.0, 10, known), "it begins here"
    recorder.add(0, "int8", [(0, 1.0), (0, 2.0), (1, 3.0)], 3.0)
    assert not recorder.over(5.0, 200, {0, 1}, 2.0, 10, known), "one environment has ended none"
    recorder.add(1, "int8", [(0, 4.0), (0, 5.0)], 6.0)
    assert not recorder.over(6.0, 200, {0, 1}, 2.0, 10, known), "one environment has ended one"
    recorder.add(0, "int8", [(1, 6.0)], 7.0)
    assert not recorder.over(7.0, 105, {0, 1}, 2.0, 10, known), "too few steps"
    assert recorder.over(7.0, 225, {0, 1}, 2.0, 10, known)
    block = recorder.end(7.0, 225, 0.9, known)
    assert block.steps_per_s == pytest.approx(25.0)
    np.testing.assert_array_equal(block.returns, [[1.0, 3.0, 4.0], [2.0, 6.0, 5.0]])
    np.testing.assert_array_equal(block.ends_s, [[3.0, 3.0, 6.0], [3.0, 7.0, 6.0]])


def test_episodes_that_do_not_end_and_actors_that_die_hold_no_block_up() -> None:
    recorder, known = BlockRecorder("fp32"), {(0, 0), (1, 0)}
    for actor in (0, 1):
        recorder.add(actor, "fp32", [(0, 0.0)], 0.0)
    assert not recorder.over(0.0, 0, {0, 1}, 2.0, 10, known)
    recorder.add(0, "fp32", [(0, 7.0), (0, 8.0)], 1.0)
    assert not recorder.over(9.0, 50, {0, 1}, 2.0, 10, known)
    assert recorder.over(10.0, 50, {0, 1}, 2.0, 10, known) and recorder.end(10.0, 50, 1.0, known).returns.size == 0
    recorder.lose(1)
    assert recorder.over(3.0, 50, {0}, 2.0, 10, known)
    np.testing.assert_array_equal(recorder.end(3.0, 50, 1.0, known).returns, [[7.0], [8.0]])


def test_a_gain_is_the_slope_of_the_line_through_mean_returns() -> None:
    returns = np.array([[0.0, 2.0], [1.0, 3.0], [5.0, 7.0], [5.0, 6.0], [8.0, 8.0], [9.0, 7.0]])
    ends_s = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [3.5, 3.5], [4.0, 6.0], [7.0, 7.0]])
    gain = Block(10.0, 1, 1.0, returns, ends_s).gain()
    times_s, values = ends_s.mean(axis=1), returns.mean(axis=1)
    slope, start = np.polyfit(times_s, values, 1)
    residuals = returns - (start + slope * times_s)[:, None]
    assert (gain.mean, gain.time_s) == (pytest.approx(slope), pytest.approx(times_s.mean()))
    assert gain.error == pytest.approx(residuals.std() / math.sqrt(2 * ((times_s - times_s.mean()) ** 2).sum()))
    for rows in (0, 1):
        assert math.isnan(Block(10.0, 1, 1.0, returns[:rows], ends_s[:rows]).gain().mean)


def test_the_error_of_a_gain_is_its_deviation() -> None:
    gains = [_block(1.0, rise=2.0, noise=1.0, seed=seed).gain() for seed in range(300)]
    assert np.mean([gain.mean for gain in gains]) == pytest.approx(2.0, abs=0.01)
    assert np.std([gain.mean for gain in gains]) == pytest.approx(np.mean([gain.error for gain in gains]), rel=0.15)


def test_returns_are_compared_over_the_same_time_however_many_episodes_there_are() -> None:
    """A level that learns as fast and plays thrice as many episodes is no worse for those that it played early."""
    fast, slow = (np.repeat(np.arange(float(n))[:, None], 2, axis=1) for n in (30, 10))
    block = Block(10.0, 1, 1.0, fast / 3.0, fast / 3.0)
    assert block.mean_return(10).mean == pytest.approx(slow.mean() + 1 / 3)
    assert block.mean_return(30).mean == pytest.approx(fast.mean() / 3.0)
    assert block.mean_return(1).mean == 5.0 and math.isnan(block.mean_return(0).mean)


@pytest.mark.parametrize(
    ("level", "full", "verdict", "is_final", "reason"),
    [
        ((190.0, 1.0, 1.0), (100.0, 1.0, 1.0), "open", False, "1.90 times as many steps a second as fp32"),
        ((190.0, 0.4, 1.0), (100.0, 0.9, 1.0), "worse", False, "each worth 0.44 of one"),
        ((90.0, 1.0, 1.0), (100.0, 1.0, 1.0), "worse", False, "0.90 times as many steps"),
        ((300.0, 1.0, 0.75), (100.0, 1.0, 1.0), "worse", True, "returns rise by 0.75 a second with it and by 1 with"),
        ((90.0, 1.0, 2.0), (100.0, 1.0, 1.0), "better", False, "returns rise by 2 a second with it and by 1 with fp32"),
    ],
    ids=["faster", "stale", "slower", "teaches less", "teaches more"],
)
def test_the_gain_per_second_decides(
    level: tuple[float, float, float], full: tuple[float, float, float], verdict: str, is_final: bool, reason: str
) -> None:
    comparison = Comparison("int8", "fp32")
    for _ in range(9):
        comparison.add(_block(*level), _block(*full))
    assert (comparison.verdict, comparison.is_final) == (verdict, is_final)
    assert reason in str(comparison)
    figures = comparison.figures()
    assert figures["steps_per_s/int8"] == level[0] and figures["effective_share/fp32"] == full[1]
    assert figures["gain_per_s/int8"] == pytest.approx(level[2])


def test_a_level_that_loses_return_is_left_unless_it_learns_faster() -> None:
    lower, faster = Comparison("int8", "fp32"), Comparison("int8", "fp32")
    for seed in range(9):
        full, level = _block(100.0, noise=1.0, seed=seed), _block(200.0, noise=1.0, seed=seed + 100)
        lower.add(Block(10.0, 2000, 1.0, level.returns - 5.0, level.ends_s), full)
        rising = _block(200.0, rise=10.0, noise=1.0, seed=seed + 200)
        faster.add(Block(10.0, 2000, 1.0, rising.returns - 90.0, rising.ends_s), full)
    assert (lower.verdict, lower.is_final) == ("worse", True) and str(
        lower
    ) == "returns of 45 with it and of 49.9 with fp32"
    assert (faster.returns.verdict, faster.verdict) == ("worse", "better")


def test_steps_per_second_are_judged_by_pairs_that_agree_and_anew_on_another_try() -> None:
    comparison = Comparison("int8", "fp32")
    for pair in range(FEWEST - 1):
        comparison.add(_block(90.0, seed=pair), _block(100.0))
        assert comparison.verdict == "open"
    comparison.add(_block(90.0), _block(100.0))
    assert comparison.verdict == "worse"
    comparison.recent.clear()
    assert comparison.verdict == "open" and comparison.pairs == FEWEST
    for rate in (90.0, 110.0) * 4:
        comparison.add(_block(rate), _block(100.0))
    assert comparison.verdict == "open"


def test_a_level_that_becomes_worse_is_left_for_what_it_gains_since_then() -> None:
    comparison, pairs = Comparison("int8", "fp32"), 0
    while comparison.verdict != "worse":
        comparison.add(_block(200.0, rise=9.0 if pairs < 12 else 0.5), _block(100.0, rise=1.0))
        pairs += 1
    assert pairs <= 26 and str(comparison) == "returns rise by 0.5 a second with it and by 1 with fp32"


def test_blocks_too_short_for_returns_and_blocks_without_enough_of_them() -> None:
    comparison = Comparison("int8", "fp32")
    long = _block(100.0)
    comparison.add(Block(LEARNING_S - 1.0, 1, 1.0, long.returns, long.ends_s), long)
    assert (comparison.pairs, comparison.gain.pairs, comparison.returns.pairs, comparison.blind) == (1, 0, 0, 0)
    comparison.add(Block(LEARNING_S, 1, 1.0, long.returns[:1], long.ends_s[:1]), long)
    assert (comparison.pairs, comparison.gain.pairs, comparison.returns.pairs, comparison.blind) == (2, 0, 1, 1)


@pytest.mark.parametrize(
    ("kl", "clause"), [(0.002, ", same policy (KL 0.002)"), (0.03, ", policy at KL 0.03"), (math.nan, "")]
)
def test_how_far_a_policy_is_from_full_precisions(kl: float, clause: str) -> None:
    comparison = Comparison("int8", "fp32")
    comparison.add(_block(190.0), _block(100.0))
    comparison.kl = kl
    assert str(comparison) == f"1.90 times as many steps a second as fp32{clause}"
