"""What an export says of returns: within a margin, lower, higher or undecided; gates that name interval and option."""

from __future__ import annotations

import numpy as np
import pytest

from accel.envs.spaces import ActionSpec
from accel.errors import ExportError
from accel.exporting.quality import MEANS_AGREE, Agreement, Gate, Returns, agreement_label
from accel.monitor.divergence import GREEDY_TOLERANCE
from accel.runs.playing import Episodes


def played(returns: list[float], distinct: int | None = None) -> Episodes:
    count = len(returns)
    return Episodes(np.array(returns), np.ones(count, np.int64), 1.0, count, count if distinct is None else distinct)


def compare(ours: list[float], theirs: list[float], distinct: int | None = None) -> Returns:
    return Returns(played(ours, distinct), played(theirs), seed=0, greedy=True, engine="onnx")


FULL = [90.0, 110.0, 100.0, 100.0]


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ([0, 0, 0, 0], "within 5 % of full precision"),
        ([-1, 0, -2, -1], "within 5 % of full precision"),  # all of the interval below zero, and still as good
        ([-20, -22, -21, -19], "lower than full precision"),
        ([20, 22, 21, 19], "higher than full precision"),
        ([0, 0, 0, -40], "undecided: the loss may be up to 41.8 %, the gain up to 21.8 %"),
    ],
)
def test_the_verdict_says_what_the_interval_allows(change: list[float], verdict: str) -> None:
    returns = compare([a + b for a, b in zip(FULL, change, strict=True)], FULL)
    assert returns.verdict == verdict
    plain = returns.to_json()
    assert (plain["verdict"], plain["margin"], plain["caveat"]) == (verdict, 0.05, None)
    assert plain["fp32"]["worst"] == 90  # type: ignore[index]


def test_a_return_of_zero_has_no_shares() -> None:
    assert compare([1.0, -3.0], [1.0, -1.0]).verdict == "undecided: the loss may be up to 13.7, the gain up to 11.7"


def test_games_that_repeat_each_other_decide_nothing() -> None:
    repeated = compare([100.0] * 4, [100.0] * 4, distinct=1)
    assert repeated.difference is not None and repeated.difference.low == repeated.difference.high
    wanted = "undecided: of the compressed policy's games, only 1 of 4 games differ"
    assert repeated.verdict.startswith(wanted) and repeated.verdict.endswith("sample actions")
    alone = Returns(played([1.0]), played([1.0]), seed=0, greedy=True, engine="onnx")
    assert alone.verdict == "undecided: one episode says nothing"


def test_a_gate_goes_by_the_mean_and_names_option_and_interval() -> None:
    mismatch = Agreement("torch -> onnx", "real", 1, 8, relative=0.5, greatest=1.0, kl=0.1, greedy_agreement=0.5)
    returns = compare([100.0, 100.0, 100.0, 60.0], FULL)
    wanted = (
        r"it loses 10\.00% of the return \(mean 90 against 100, difference -10 \[-4.*, 2.*\] \(95 %\)\), over max-retu"
    )
    with pytest.raises(ExportError, match=wanted):
        Gate(max_return_loss=0.05).check(mismatch, returns)
    Gate(max_return_loss=0.11).check(mismatch, returns)
    with pytest.raises(
        ExportError, match=r"by 0.5 of their spread, over max-mismatch 0.4. Choose a milder scheme, or a"
    ):
        Gate(max_mismatch=0.4).check(mismatch, returns)
    with pytest.raises(ExportError, match=r"only 1 of 4 games differ.* sample actions\), over"):
        Gate(max_return_loss=0.0).check(mismatch, compare([90.0] * 4, FULL, distinct=1))


def test_agreement_of_continuous_actions_is_not_called_equality() -> None:
    assert GREEDY_TOLERANCE == 0.5
    assert (
        agreement_label(ActionSpec("gaussian", (2,), (-1.0,) * 2, (1.0,) * 2))
        == MEANS_AGREE
        == "means within half a standard deviation"
    )
    assert agreement_label(ActionSpec("categorical", (2,))) == "same greedy action"
