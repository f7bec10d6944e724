"""Curves of several seeds: they start where half of the seeds have values, and are of those that have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from accel.reports.curves import GRID_POINTS, Curve, aggregate
from accel.reports.runs import Group
from tests.accel.reports.recorded_run import run_record


def curve(*seeds: tuple[Sequence[float], Sequence[float]]) -> Curve | None:
    runs = [
        run_record({"elapsed_s": seconds, "return_mean": returns}, seed=seed)
        for seed, (seconds, returns) in enumerate(seeds)
    ]
    return aggregate(Group("g", tuple(runs)), "elapsed_s", "returns")


def test_a_curve_starts_where_half_of_the_seeds_have_a_value() -> None:
    found = curve(([1.0, 9.0], [10.0, 10.0]), ([3.0, 9.0], [20.0, 20.0]), ([5.0, 9.0], [60.0, 60.0]))
    assert (found.x[0], found.x[-1], len(found.x)) == (3.0, 9.0, GRID_POINTS)
    assert found.centre[found.x < 4.9] == pytest.approx(15.0)
    assert found.centre[found.x > 5.1] == pytest.approx(30.0)
    assert np.all(found.low <= found.centre)
    assert np.all(found.centre <= found.high)
    assert found.low[0] == found.high[0] == 15.0, "two seeds have no band"
    # t_{0.975, 2} = 4.30265, s = 26.4575 for 10, 20 and 60.
    assert found.high[-1] - 30.0 == pytest.approx(4.30265 * 26.4575 / 3**0.5, rel=1e-5)
    assert [x[0] for x, _ in found.seeds] == [1.0, 3.0, 5.0]


def test_seeds_of_a_single_record_do_not_hide_the_others() -> None:
    found = curve(([1.0, 2.0], [10.0, 30.0]), ([4.0], [50.0]))
    assert (found.x[0], found.centre[0], found.centre[-1]) == (1.0, 10.0, 40.0)
    single = curve(([4.0], [50.0]))
    assert (single.x.tolist(), single.centre.tolist()) == ([4.0], [50.0])
    assert curve(([1.0], [np.nan])) is None
