"""Turns of what is compared: who follows whom, and what is left out of a sample. No test looks at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace

import pytest

from accel.system import timing
from accel.system.timing import balanced_orders, interleave, timed_calls


@pytest.mark.parametrize("count", range(1, 13))
def test_in_a_cycle_of_orders_everything_follows_everything_else_equally_often(count: int) -> None:
    orders = balanced_orders(count)
    assert all(sorted(order) == list(range(count)) for order in orders)
    follows = Counter(pair for order in orders for pair in pairwise(order))
    assert len(follows) == count * (count - 1)
    assert len(set(follows.values())) <= 1
    places = Counter((place, one) for order in orders for place, one in enumerate(order))
    assert len(places) == count * count and len(set(places.values())) == 1


class Clocks:
    """In place of a module's ``time``: it stands still but for what a test spends."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_us = self.computed_us = 0
        clocks = {"perf_counter": lambda: self.now_us / 1e6, "process_time": lambda: self.computed_us / 1e6}
        patch.setattr(timing, "time", SimpleNamespace(**clocks))

    def spend(self, us: int, computed_us: int = 0) -> None:
        self.now_us += us
        self.computed_us += computed_us


def test_samples_are_taken_in_turns_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch)
    taken: list[str] = []

    def taker(name: str) -> Callable[[], None]:
        def take() -> None:
            taken.append(name)
            clocks.spend(1)

        return take

    contestants = {name: taker(name) for name in "abc"}
    rounds = interleave(contestants, seconds=60.0, repeats=4)
    assert sorted(taken) == sorted("abc" * 6), "two rounds of warm-up and four that are kept"
    assert {name: len(samples) for name, samples in rounds.samples.items()} == {"a": 4, "b": 4, "c": 4}
    slow = interleave({"slow": lambda: clocks.spend(20_000, 5_000)}, seconds=0.01, repeats=100)
    assert len(slow.samples["slow"]) == 3
    assert slow.cpu_share == pytest.approx(0.25), "sleeping is not computing"
    quick = interleave({"quick": lambda: clocks.spend(1_000, 1_000)}, seconds=0.0095, repeats=100)
    assert len(quick.samples["quick"]) == 10 and quick.cpu_share == pytest.approx(1.0)


@pytest.mark.parametrize(("us", "measured"), [(2, 500), (10_000, 1)])
def test_a_sample_averages_many_short_calls_and_one_long_call(
    us: int, measured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks, calls = Clocks(monkeypatch), 0

    def run() -> None:
        nonlocal calls
        calls += 1
        clocks.spend(us)

    take = timed_calls(run, sample_s=1e-3)
    calls = 0
    assert take() == pytest.approx(us)
    assert calls == measured + max(measured // 10, 1), "a tenth is not measured"
