"""The sequential test against its definition, and its error rates by simulation with fixed seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from accel.monitor.sequential import ERROR, Estimate, PairedTest
from scripts.evidence.detectable import Draw, compare_returns, gaussian, success

RUNS, PAIRS = 100, 40
MOST_ERRORS = RUNS * ERROR + 3 * math.sqrt(RUNS * ERROR)


def _shared_policy(deviation: float) -> Draw:
    """Every environment of a block has the same policy version, which is better or worse by chance."""
    return lambda random, shape: random.standard_normal(shape) + deviation * random.standard_normal()


DISTRIBUTIONS: dict[str, Draw] = {
    "gaussian": gaussian(0.0),
    "two modes": lambda random, shape: 100.0 * success(0.5)(random, shape) + random.standard_normal(shape),
    "success in 5 %": success(0.05),
    "shared policies": _shared_policy(3.0),
    "heavy tail": lambda random, shape: np.exp(2.0 * random.standard_normal(shape)),
}


def _add(test: PairedTest, difference: float, error: float) -> None:
    """A pair of a quantity without a trend."""
    test.add(Estimate(difference / 2.0, error, 0.0), Estimate(-difference / 2.0, 0.0, 0.0))


def _verdicts(level: Draw, full: Draw, episodes: tuple[int, int], trend: float = 0.0) -> dict[str, float]:
    """How runs of ``PAIRS`` pairs end, whose blocks have so many episodes of an environment."""
    random = np.random.default_rng(0)
    found = [compare_returns((level, full), episodes, random, PAIRS, trend)[0] for _ in range(RUNS)]
    return {verdict: found.count(verdict) / RUNS for verdict in ("worse", "better", "open")}


def test_evidence_is_its_definition() -> None:
    test, bets = PairedTest(), np.array([0.5, 0.99])
    for difference, error in ((-0.5, 1.0), (2.0, 1.0), (-3.0, 0.0), (0.0, 0.0), (math.nan, 1.0)):
        _add(test, difference, error)
    xs = (-0.5, 1.0, -1.0, 0.0)
    wanted = [1 / 5, 1 / 5]  # of what begins later
    for k in range(4):
        for side, sign in enumerate((-1, 1)):
            products = [math.prod(1 + sign * bet * x for x in xs[k:]) for bet in bets]
            wanted[side] += float(np.mean(products)) / ((k + 1) * (k + 2))
    assert test.pairs == 4 and test.verdict == "open"
    assert test.evidence == (pytest.approx(wanted[0]), pytest.approx(wanted[1]))


@pytest.mark.parametrize(("sign", "verdict"), [(-1.0, "worse"), (1.0, "better")])
def test_a_verdict_takes_eight_pairs_of_one_mind(sign: float, verdict: str) -> None:
    test = PairedTest()
    for _ in range(7):
        _add(test, sign, 0.1)
    assert test.verdict == "open"
    _add(test, sign, 0.1)
    assert test.verdict == verdict


def test_a_level_that_becomes_worse_is_found_soon_and_for_good() -> None:
    test, pairs = PairedTest(), 0
    for _ in range(30):
        _add(test, 1.0, 0.1)
    while test.verdict != "worse":
        _add(test, -1.0, 0.1)
        pairs += 1
    assert pairs <= 20
    for _ in range(100):
        _add(test, 1.0, 0.1)
    assert test.verdict == "worse"


@pytest.mark.few(3)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("episodes", [(2, 2), (6, 2)], ids=["equal", "thrice as fast"])
def test_a_level_that_makes_no_difference_is_hardly_ever_judged(name: str, episodes: tuple[int, int]) -> None:
    found = _verdicts(DISTRIBUTIONS[name], DISTRIBUTIONS[name], episodes, trend=1.0)
    assert max(found["worse"], found["better"]) * RUNS <= MOST_ERRORS


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("episodes", [1, 5])
def test_a_level_that_never_succeeds_never_passes(rate: float, episodes: int) -> None:
    """Full precision succeeds in some episodes; zeros against zeros say nothing."""
    found = _verdicts(success(0.0), success(rate), (episodes, episodes))
    assert found["better"] == 0.0
    assert found["worse"] >= 0.9


@pytest.mark.parametrize("loss", [0.5, 1.0])
def test_a_level_whose_returns_are_lower_is_found(loss: float) -> None:
    found = _verdicts(gaussian(loss), gaussian(0.0), (2, 2))
    assert found["worse"] >= 0.95 and found["better"] == 0.0


def test_a_loss_is_found_on_a_trend_and_on_a_trend_that_bends() -> None:
    """Either is many times as large between two blocks as the loss."""
    random = np.random.default_rng(0)
    for bend in (0.0, 0.02):
        test = PairedTest()
        for pair in range(30):
            level, full = 2.0 * pair + random.permutation(2)
            test.add(*(
                Estimate(time_s + bend * time_s**2 - loss + 0.3 * random.standard_normal(), 0.3, time_s)
                for time_s, loss in ((level, 0.6), (full, 0.0))
            ))  # fmt: skip
        assert test.verdict == "worse"
