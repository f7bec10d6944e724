"""The default threshold and the margin follow from what a group learned; there are none where it learned nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from accel.errors import ReportError
from accel.reports.analysis import Choices, analyse
from accel.reports.runs import Group, Run
from accel.reports.targets import gain_of, margin_of, threshold_of
from tests.accel.reports.recorded_run import run_record


def run(returns: Sequence[float], seed: int = 0, **config: object) -> Run:
    steps = np.arange(1.0, len(returns) + 1)
    columns = {"elapsed_s": steps, "env_steps": 1000 * steps, "return_mean": returns}
    return run_record(columns, summary={"reason": "done"}, **{"compressor": "fp32", "seed": seed} | config)


LEARNING = Group("fp32", tuple(run([math.nan, 10.0, *[50.0] * 15, 90.0, 105.0, 115.0], seed) for seed in range(3)))
NOT_LEARNING = Group("fp32", tuple(run([20.0, *[20.0 + 10 * seed] * 10], seed) for seed in range(3)))


def test_a_gain_goes_from_the_first_known_return_to_the_mean_over_the_last_tenth() -> None:
    final = (90 + 105 + 115) / 3
    assert gain_of(LEARNING) == pytest.approx((10.0, final, 0.0))
    assert threshold_of([LEARNING], None).value == pytest.approx(10 + 0.9 * (final - 10))
    assert margin_of(LEARNING, 0.05, None).value == pytest.approx(0.05 * (final - 10))
    assert (threshold_of([LEARNING], 7.0).value, margin_of(LEARNING, 0.05, 25.0).value) == (7.0, 25.0)


def test_a_gain_within_the_seeds_spread_is_none() -> None:
    """Finals of 20, 30 and 40 differ by 10 in the standard deviation, and are 10 above the start in the mean."""
    assert math.isnan(margin_of(NOT_LEARNING, 0.05, None).value)
    assert math.isnan(threshold_of([NOT_LEARNING], None).value)
    assert "learned nothing" in margin_of(NOT_LEARNING, 0.05, None).source
    assert margin_of(NOT_LEARNING, 0.05, 25.0).value == 25.0
    single = Group("a", (run([5.0]),))
    assert "learned nothing" in margin_of(single, 0.05, None).source
    silent = Group("a", (run([math.nan, math.nan]),))
    assert threshold_of([silent], None).source == "a finished no episode"


def test_the_verdict_says_that_a_baseline_learned_nothing_and_takes_a_margin_in_return() -> None:
    ours = [run([20.0, *[20.0 + 10 * (seed % 3)] * 10], seed) for seed in range(5)]
    others = [run([20.0, *[31.0 + seed] * 10], seed, compressor="int8") for seed in range(5)]
    runs = [*ours, *others]
    (comparison,) = analyse(runs, Choices(), runs[0]).comparisons
    assert comparison.verdict.outcome == "untested"
    assert comparison.verdict.text.startswith("returns not compared: the baseline learned nothing")
    assert "--margin-return" in comparison.verdict.text
    (comparison,) = analyse(runs, Choices(margin_return=1000.0), runs[0]).comparisons
    assert comparison.verdict.outcome == "no_loss"
    assert "margin 1000" in comparison.verdict.text
    for options, message in (({"margin": 0.0}, "margin"), ({"margin_return": 0.0}, "margin_return = 0")):
        with pytest.raises(ReportError, match=message):
            Choices(**options)
