"""Turns of what is compared: who follows whom, and what is left out of a sample. No test looks at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from accel.bench.timing import WARM_UP_ROUNDS, balanced_orders, interleave, timed_calls


def noted(name: str, calls: list[str]) -> Callable[[], float]:
    def take() -> float:
        calls.append(name)
        return float(len(calls))

    return take


@pytest.mark.parametrize("count", range(1, 13))
def test_in_a_cycle_of_orders_everything_follows_everything_else_equally_often(count: int) -> None:
    orders = balanced_orders(count)
    assert all(sorted(order) == list(range(count)) for order in orders)
    follows = Counter(pair for order in orders for pair in pairwise(order))
    assert len(follows) == count * (count - 1)
    assert len(set(follows.values())) <= 1
    places = Counter((place, one) for order in orders for place, one in enumerate(order))
    assert len(places) == count * count and len(set(places.values())) == 1


def test_of_equal_work_neither_is_always_behind_the_slow_one() -> None:
    calls: list[str] = []
    names = ("slow", "a", "b")
    rounds = interleave({name: noted(name, calls) for name in names}, seconds=60, repeats=12)
    kept = np.reshape(calls[WARM_UP_ROUNDS * len(names) :], (12, len(names)))
    assert all(sorted(order) == sorted(names) for order in kept)
    behind = Counter(order[list(order).index("slow") + 1] for order in kept if order[-1] != "slow")
    assert behind == {"a": 4, "b": 4}
    assert {name: len(taken) for name, taken in rounds.samples.items()} == dict.fromkeys(names, 12)
    assert list(rounds.samples) == list(names)


def test_a_sample_begins_with_calls_that_are_not_measured() -> None:
    calls: list[str] = []
    take = timed_calls(noted("call", calls), sample_s=1e-9)
    calls.clear()
    take()
    assert len(calls) == 2, "one is left out, and one fills the sample"
