"""What an export says of returns: within a margin, lower, higher or undecided; gates that name interval and option."""

from __future__ import annotations

import numpy as np
import pytest

from accel.errors import ExportError
from accel.exporting.quality import Agreement, Gate
from accel.runs.playing import Episodes
from accel.runs.quality import Quality, Returns, RowQuality


def played(returns: list[float], distinct: int | None = None) -> Episodes:
    count = len(returns)
    return Episodes(np.array(returns), np.ones(count, np.int64), 1.0, count, count if distinct is None else distinct)


def compare(ours: list[float], theirs: list[float], distinct: int | None = None, random: float = 0.0) -> Returns:
    by_chance = played([random] * len(ours))
    return Returns(played(ours, distinct), played(theirs), by_chance, seed=0, greedy=True, engine="onnx")


FULL = [90.0, 110.0, 100.0, 100.0]


@pytest.mark.parametrize(
    ("change", "random", "holds", "verdict"),
    [
        ([0, 0, 0, 0], 0.0, True, "kept: the loss is at most 0.00% of the gain over random play"),
        ([-1, 0, -2, -1], 0.0, True, "kept: the loss is at most 2.30% of"),
        ([-1, 0, -2, -1], 90.0, None, "undecided: the loss may be up to 23 %, the gain up to 2"),
        ([-20, -22, -21, -19], 0.0, False, "lost: at least 18.45% o"),
        ([20, 22, 21, 19], 0.0, True, "kept: the loss is at most 0.00% of"),
        ([0, 0, 0, -40], 0.0, None, "undecided: the loss may be up to 41.8 %, the gain up to 21.8 %"),
        ([0, 0, 0, 0], 100.0, None, "undecided: full precision gains nothing over random play (100)"),
    ],
)
def test_the_verdict_says_what_the_interval_allows(
    change: list[float], random: float, holds: bool | None, verdict: str
) -> None:
    returns = compare([a + b for a, b in zip(FULL, change, strict=True)], FULL, random=random)
    assert (returns.holds, returns.verdict[: len(verdict)]) == (holds, verdict)
    plain = returns.to_json()
    assert (plain["verdict"], plain["most_loss"], plain["caveat"]) == (returns.verdict, 0.05, None)
    assert plain["fp32"]["worst"] == 90  # type: ignore[index]


def test_games_that_repeat_each_other_decide_nothing() -> None:
    repeated = compare([100.0] * 4, [100.0] * 4, distinct=1)
    assert repeated.difference is not None and repeated.difference.low == repeated.difference.high
    wanted = "undecided: of the compressed policy's games, only 1 of 4 games differ"
    assert repeated.verdict.startswith(wanted) and repeated.verdict.endswith("sample actions")
    assert compare([1.0], [1.0]).verdict == "undecided: one episode says nothing"


def test_returns_that_decide_nothing_leave_it_to_the_rows() -> None:
    good, bad = RowQuality("own episodes", 100, agreement=0.99), RowQuality("own episodes", 100, agreement=0.98)
    kept, lost, unclear = compare(FULL, FULL), compare([70.0, 88, 79, 81], FULL), compare([100.0, 100, 100, 60], FULL)
    assert [Quality("int8", (good,), returns).holds for returns in (None, kept, unclear, lost)] == [True] * 3 + [False]
    assert not any(Quality("int8", (good, bad), returns).holds for returns in (None, kept, unclear))
    assert "98.00%" in Quality("int8", (good, bad)).verdict and "99.00%" not in Quality("int8", (good, bad)).verdict
    for mean, tail, holds in ((0.01, 0.05, True), (0.011, 0.05, False), (0.01, 0.051, False)):
        row = RowQuality("own episodes", 100, mean_error=mean, tail_error=tail, greatest_error=1.0)
        assert row.holds is holds
    with pytest.raises(ExportError, match=r"int8 does not keep the policy: .*--accept-loss"):
        Gate().check(MISMATCH, Quality("int8", (bad,)))
    Gate(accept_loss=True).check(MISMATCH, Quality("int8", (bad,)))


MISMATCH = Agreement("onnx", "real", 8, (1,), relative=0.5, greatest=1.0)


@pytest.mark.parametrize(
    ("full", "compressed", "loss"),
    [(500.0, 400.0, 0.2), (-10.0, -15.0, 0.5), (-10.0, -5.0, -0.5), (0.0, -1.0, 1e12), (100.0, 100.0, 0.0)],
)
def test_a_loss_is_a_share_of_the_magnitude(full: float, compressed: float, loss: float) -> None:
    assert compare([compressed - 1, compressed + 1], [full - 1, full + 1]).loss == pytest.approx(loss)


def test_a_gate_goes_by_the_mean_and_names_option_and_interval() -> None:
    returns = Quality("int8", (), compare([100.0, 100.0, 100.0, 60.0], FULL))
    wanted = (
        r"it loses 10\.00% of the return \(mean 90 against 100, difference -10 \[-4.*, 2.*\] \(95 %\)\), over max-retu"
    )
    with pytest.raises(ExportError, match=wanted):
        Gate(0.05, accept_loss=True).check(MISMATCH, returns)
    Gate(0.11, accept_loss=True).check(MISMATCH, returns)
    with pytest.raises(
        ExportError, match=r"by 0.5 of their spread, over max-mismatch 0.4. Choose a milder scheme, or a"
    ):
        Gate(max_mismatch=0.4).check(MISMATCH, returns)
    with pytest.raises(ExportError, match=r"only 1 of 4 games differ.* sample actions\), over"):
        Gate(max_return_loss=0.0).check(MISMATCH, Quality("int8", (), compare([90.0] * 4, FULL, distinct=1)))
