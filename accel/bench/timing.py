"""Interleaved measurement, so that a slow moment of the machine, and whatever a neighbour leaves behind in the caches,
falls on everything alike.

Every round has another order, so that in a full cycle everything follows everything else equally often: those of a
Latin square that is balanced for carry-over. With one fixed order, whatever comes behind the slowest was always slowest
among equals.

Source: Williams 1949, Australian Journal of Scientific Research A 2, 149–168. Deviations: none.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle
from typing import Generic, NamedTuple, TypeVar

WARM_UP_ROUNDS = 2
FEWEST_ROUNDS = 3
SAMPLE_S = 2e-3
_MOST_CALLS = 1000
_UNMEASURED_SHARE = 0.1
_PROBED_BYTES = 1 << 24

Key = TypeVar("Key", bound=Hashable)
Sample = TypeVar("Sample")


class Rounds(NamedTuple, Generic[Key, Sample]):
    """What ``interleave`` took.

    Attributes:
        samples: one list for each contestant, a sample a round.
        cpu_share: processor time of this process over wall-clock time, 1 where nothing else wanted the processor.
    """

    samples: dict[Key, list[Sample]]
    cpu_share: float


def interleave(contestants: Mapping[Key, Callable[[], Sample]], seconds: float, repeats: int) -> Rounds[Key, Sample]:
    """Samples of every contestant, one of each in every round, each round in another order.

    Args:
        contestants: name to what takes one sample.
        seconds: no new round begins after so long, but three are always kept.
        repeats: rounds kept at most, after two that are not.
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
    return Rounds(samples, (time.process_time() - cpu_began) / (time.perf_counter() - began))


def balanced_orders(count: int) -> list[list[int]]:
    """Orders of ``range(count)`` in which each is at every place, and right behind every other, equally often."""
    zigzag = [place // 2 if place % 2 == 0 else count - 1 - place // 2 for place in range(count)]
    orders = [[(place + shift) % count for place in zigzag] for shift in range(count)]
    return orders if count % 2 == 0 else [turned for order in orders for turned in (order, order[::-1])]


def timed_calls(run: Callable[[], object], sample_s: float = SAMPLE_S) -> Callable[[], float]:
    """A contestant for ``interleave``: microseconds of one call, averaged over as many as fill ``sample_s``, after some
    that are not measured and bring back what a neighbour drove out of the caches."""
    run()
    began = time.perf_counter()
    run()
    once_s = max(time.perf_counter() - began, 1e-7)
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


class CoreShare:
    """The share of a core that this process gets when it asks for one, now and then between measurements that wait.

    A clock of processor time says nothing of those: whoever waits uses little of it, on the quietest machine too.

    Args:
        cores: how many the measurement uses at once; as many threads ask, outside of the interpreter's lock.
    Attributes:
        least: the lowest share that any probe got, in [0, 1].
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self.least = 1.0

    def probe(self) -> None:
        """Compute for some milliseconds on every core asked for."""
        with ThreadPoolExecutor(self._cores) as threads:
            shares = list(threads.map(_share_of_thread, range(self._cores)))
        self.least = min(self.least, *shares)


def _share_of_thread(_: int) -> float:
    block = bytes(_PROBED_BYTES)
    began, cpu_began = time.perf_counter(), time.thread_time()
    hashlib.sha256(block)
    return min((time.thread_time() - cpu_began) / (time.perf_counter() - began), 1.0)


@contextmanager
def torch_threads(count: int = 1) -> Iterator[None]:
    """Torch computes on so many threads, by default on one as actors do; afterwards on as many as before."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
