"""The guard of returns: which episodes count, what cancels, how often it errs, and how much time it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from accel.monitor.return_guard import CONFIDENCE, FIRST, LOOKS, MARGIN, MOST, TIME_SHARE, ReturnGuard, Verdict, judge
from accel.monitor.statistics import student_t_quantile


def _play(
    guard: ReturnGuard,
    value: Callable[[str, float], float],
    *,
    envs: int = 4,
    steps_per_s: Sequence[float] = (1.0, 1.0),
    episodes: int = 100_000,
    until: Sequence[str] = ("passed", "loss", "unshown"),
) -> tuple[list[Verdict], float, float]:
    """One actor whose environments end their episodes together; the verdicts, seconds in all and in full precision."""
    verdicts, time_s, control_s, level = [], 0.0, 0.0, "int8"
    for _ in range(episodes):
        wanted = "fp32" if guard.control(0) else "int8"
        lasts = 1.0 / steps_per_s[wanted == "fp32"]
        time_s += lasts
        control_s += lasts * (wanted == "fp32")
        # an episode in which the level changed is of neither, and its value would show
        ends = [(env, value(wanted, time_s) if wanted == level else 1e9) for env in range(envs)]
        level = wanted
        verdict = guard.observe(0, wanted, ends, time_s)
        if verdict is not None:
            verdicts.append(verdict)
            if verdict.kind in until:
                break
    return verdicts, time_s, control_s


def test_a_verdict_is_its_definition() -> None:
    differences, control = [1.0, -2.0, 0.5, -1.0, 0.0], [100.0, 90.0, 110.0, 105.0, 95.0]
    verdict = judge(differences, control)
    error = np.std(differences, ddof=1) / math.sqrt(5)
    half = student_t_quantile(CONFIDENCE, 4) * error
    surely = student_t_quantile(1 - (1 - CONFIDENCE) / 8, 4) * error
    assert LOOKS == 8
    assert verdict.difference == pytest.approx(-0.3)
    assert (verdict.low, verdict.high) == (pytest.approx(-0.3 - half), pytest.approx(-0.3 + surely))
    assert verdict.margin == pytest.approx(MARGIN * 100.0)
    assert verdict.detectable == pytest.approx(surely + student_t_quantile(0.8, 4) * error)
    assert verdict.kind == "passed"
    assert judge(np.array(differences) - 10.0, control).kind == "loss"
    assert judge(np.array(differences) * 9, control).kind == "open"
    many = np.random.default_rng(0).permutation(np.resize([100.0, -100.0], MOST))
    assert judge(many - 10.2, np.zeros(MOST)).kind == "unshown"


def test_a_linear_trend_cancels_and_mixed_episodes_do_not_count() -> None:
    guard = ReturnGuard("int8", "fp32", 4, 1.0, 0.0)
    verdicts, _, _ = _play(guard, lambda level, time_s: 3.0 * time_s, episodes=400)
    assert verdicts[0].difference == pytest.approx(0.0, abs=1e-9)
    guard = ReturnGuard("int8", "fp32", 4, 1.0, 0.0)
    (verdict,), _, _ = _play(guard, lambda level, time_s: 3.0 * time_s - 50.0 * (level == "int8"))
    assert verdict.kind == "loss" and verdict.difference == pytest.approx(-50.0)


def test_control_takes_no_more_than_its_share_of_time() -> None:
    random = np.random.default_rng(1)
    guard = ReturnGuard("int8", "fp32", 4, 5.0, 0.0)
    verdicts, time_s, control_s = _play(
        guard, lambda level, time_s: random.standard_normal(), steps_per_s=(5.0, 1.0), until=(), episodes=2_000
    )
    assert verdicts and 0.5 * TIME_SHARE < control_s / time_s <= TIME_SHARE * 1.05


def _kinds(loss: float, runs: int = 400) -> dict[str, float]:
    """How runs end whose level loses so many standard deviations of return, by the looks that a guard has."""
    random, ends = np.random.default_rng(2), []
    for _ in range(runs):
        before, control, after = random.standard_normal((3, MOST))
        differences, count = (before + after) / 2 - loss - control, FIRST
        while (kind := judge(differences[:count], control[:count]).kind) == "open":
            count *= 2
        ends.append(kind)
    return {kind: ends.count(kind) / runs for kind in ("passed", "loss", "unshown")}


def test_half_a_standard_deviation_of_loss_is_hardly_ever_accepted() -> None:
    """Eight looks at 1 % each; a margin of a quarter of a deviation lies between."""
    lossy, equal = _kinds(0.5), _kinds(0.0)
    assert lossy["passed"] <= 0.08
    assert lossy["loss"] >= 0.8
    assert equal["loss"] <= 0.02
    assert equal["passed"] >= 0.9


def test_a_level_that_loses_nothing_is_hardly_ever_thrown_out_however_long_the_run() -> None:
    """Twenty series, one after another, as each passes; 1 % at each look would throw half of them out."""
    random, thrown_out = np.random.default_rng(3), 0
    for _ in range(200):
        for series in range(1, 21):
            control, rest = 10.0 + random.standard_normal((2, MOST))
            differences, count = rest - control, FIRST
            while (kind := judge(differences[:count], control[:count], series).kind) == "open":
                count *= 2
            thrown_out += kind == "loss"
            if kind != "passed":
                break
    assert thrown_out <= 0.03 * 200


def test_a_return_that_is_not_finite_counts_nowhere() -> None:
    """One in a control spell would make every later look undecided."""
    guard, broken = ReturnGuard("int8", "fp32", 4, 1.0, 0.0), iter([math.nan])
    verdicts, _, _ = _play(guard, lambda level, time_s: 0.0 if level == "int8" else next(broken, 50.0), episodes=5_000)
    assert verdicts[-1].kind == "loss"


def test_another_actor_takes_over_where_the_watched_one_dies_or_control_never_ends() -> None:
    guard = ReturnGuard("int8", "fp32", 1, 1.0, 0.0)
    assert guard.observe(1, "int8", [], 0.0) is None and guard.actor == 1
    guard.lose(1, 1.0)
    time_s = 1.0
    while not guard.control(0):
        time_s += 1.0
        guard.observe(0, "int8", [(0, 1.0)], time_s)
    guard.observe(0, "fp32", [], time_s + 1.0)
    assert guard.control(0)
    guard.observe(0, "fp32", [], time_s + 1000.0)
    assert not guard.control(0) and guard.actor is None


def test_full_precision_in_its_stead_is_not_taken_for_the_level() -> None:
    guard = ReturnGuard("int8", "fp32", 1, 1.0, 0.0)
    for time_s in range(10_000):
        assert guard.observe(0, "fp32", [(0, 1.0)], float(time_s)) is None
    assert guard.spell == 0


def test_every_environment_gives_as_many_episodes_however_long_its_own_are() -> None:
    """Environment 1 ends every third time and returns more; a plain mean of episodes would see it less often."""
    guard, time_s, verdict = ReturnGuard("int8", "fp32", 2, 1.0, 0.0), 0.0, None
    while verdict is None:
        time_s += 1.0
        ends = [(0, 10.0), *([(1, 40.0)] if time_s % 3 == 0 else [])]
        verdict = guard.observe(0, "fp32" if guard.control(0) else "int8", ends, time_s)
    assert verdict.episodes == FIRST and verdict.margin == pytest.approx(MARGIN * 25.0)
    assert verdict.kind == "passed" and verdict.difference == 0.0
