"""Interleaved measurement: A B C A B C …, so that a slow moment of the machine falls on everything alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

WARM_UP_ROUNDS = 2
FEWEST_ROUNDS = 3
SAMPLE_S = 2e-3
_MOST_CALLS = 1000

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
    """Samples of every contestant, one of each in every round.

    Args:
        contestants: name to what takes one sample.
        seconds: no new round begins after so long, but three are always kept.
        repeats: rounds kept at most, after two that are not.
    """
    samples: dict[Key, list[Sample]] = {name: [] for name in contestants}
    for _ in range(WARM_UP_ROUNDS):
        for take in contestants.values():
            take()
    began, cpu_began = time.perf_counter(), time.process_time()
    for kept in range(max(repeats, 1)):
        if kept >= FEWEST_ROUNDS and time.perf_counter() - began > seconds:
            break
        for name, take in contestants.items():
            samples[name].append(take())
    return Rounds(samples, (time.process_time() - cpu_began) / (time.perf_counter() - began))


def timed_calls(run: Callable[[], object], sample_s: float = SAMPLE_S) -> Callable[[], float]:
    """A contestant for ``interleave``: microseconds of one call, averaged over as many as fill ``sample_s``."""
    run()
    began = time.perf_counter()
    run()
    once_s = max(time.perf_counter() - began, 1e-7)
    calls = min(max(round(sample_s / once_s), 1), _MOST_CALLS)

    def take() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            run()
        return (time.perf_counter() - start) / calls * 1e6

    return take


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
