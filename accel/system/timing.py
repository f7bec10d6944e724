"""Interleaved measurement: slow moments of the machine and cache contents left by a predecessor affect all alike.

Rounds follow the rows of a Latin square that is balanced for carry-over: in a full cycle each contestant follows each
other one equally often. In a fixed order, the one behind the slowest would always look slower than its equals.

Source: Williams 1949, Australian Journal of Scientific Research A 2, 149–168. Deviations: none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from itertools import cycle
from typing import Generic, NamedTuple, TypeVar

WARM_UP_ROUNDS = 2
FEWEST_ROUNDS = 3
SAMPLE_S = 2e-3
_MOST_CALLS = 1000
_UNMEASURED_SHARE = 0.1
_TRIES = 3
"""Calls of which the fastest decides how many fill a sample: one alone may have met another process."""

Key = TypeVar("Key", bound=Hashable)
Sample = TypeVar("Sample")


class Interleaved(NamedTuple, Generic[Key, Sample]):
    """The samples of ``interleave``.

    Attributes:
        samples: by contestant, one sample per round.
        cpu_share: processor time of this process over wall-clock time, 1 where nothing else used the processor.
    """

    samples: dict[Key, list[Sample]]
    cpu_share: float


def interleave(
    contestants: Mapping[Key, Callable[[], Sample]], seconds: float, repeats: int
) -> Interleaved[Key, Sample]:
    """One sample of each contestant per round, in balanced orders.

    Args:
        contestants: by name, a function that takes one sample.
        seconds: no new round begins after this time, but three are always kept.
        repeats: rounds kept at most, after two of warm-up.
    """
    samples: dict[Key, list[Sample]] = {name: [] for name in contestants}
    names, orders = list(contestants), cycle(balanced_orders(len(contestants)))
    for _ in range(WARM_UP_ROUNDS):
        for take in contestants.values():
            take()
    began, cpu_began = time.perf_counter(), time.process_time()
    for kept in range(max(repeats, 1)):
        if kept >= FEWEST_ROUNDS and time.perf_counter() - began > seconds:
            break
        for place in next(orders):
            name = names[place]
            samples[name].append(contestants[name]())
    return Interleaved(samples, (time.process_time() - cpu_began) / (time.perf_counter() - began))


def balanced_orders(count: int) -> list[list[int]]:
    """Orders of ``range(count)`` in which each is at every place, and right after every other, equally often."""
    zigzag = [place // 2 if place % 2 == 0 else count - 1 - place // 2 for place in range(count)]
    orders = [[(place + shift) % count for place in zigzag] for shift in range(count)]
    return orders if count % 2 == 0 else [turned for order in orders for turned in (order, order[::-1])]


def timed_calls(run: Callable[[], object], sample_s: float = SAMPLE_S) -> Callable[[], float]:
    """A contestant for ``interleave``: microseconds per call, averaged over as many calls as fill ``sample_s``, after
    some that are not measured and refill the caches."""
    run()
    once_s = max(min(_duration_s(run) for _ in range(_TRIES)), 1e-7)
    calls = min(max(round(sample_s / once_s), 1), _MOST_CALLS)
    unmeasured = max(round(_UNMEASURED_SHARE * calls), 1)

    def take() -> float:
        for _ in range(unmeasured):
            run()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        return (time.perf_counter() - start) / calls * 1e6

    return take


def _duration_s(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


@contextmanager
def torch_threads(count: int = 1) -> Iterator[None]:
    """Torch's thread count within this context, by default one as in actors; restored afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
