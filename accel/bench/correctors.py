"""Time of the correctors' recursion through time, and its share of a learner's update, on one device.

Each corrector call is timed right after a small network's forward and backward pass over the same T × B rows: slow
moments of the machine affect both, and the caches are as cold as in training (which doubles the time on a CPU). CUDA is
timed with events, a CPU with the monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from accel.bench.checks import check_counts
from accel.bench.rows import Row, provenance, spread
from accel.bench.timing import torch_threads
from accel.correctors import nstep, retrace, vtrace
from accel.errors import ConfigError

Run = Callable[[], object]

OBSERVATION_SIZE = 17
ACTIONS = 6
WIDTH = 64
WARM_UP = 3


def bench_correctors(
    lengths: Sequence[int] = (20, 80),
    batches: Sequence[int] = (32, 256),
    device: str = "cpu",
    repeats: int = 30,
    threads: int = 1,
) -> list[Row]:
    """Time every corrector at every unroll length and batch size, float32, with invalid rows and truncations.

    Args:
        lengths: unroll lengths T.
        batches: numbers of environments B.
        device: a torch device, such as ``cpu`` or ``cuda``.
        repeats: timed repetitions of each cell, after three of warm-up.
        threads: torch threads on the CPU.
    Returns:
        One flat row per corrector, T and B: ``corrector``, ``T``, ``B``, ``device``; ``us``, ``us_low``, ``us_high``
        (median, 10th and 90th percentile of a call, microseconds); ``learner_us`` (median of forward and backward of a
        64×2 MLP with 17 inputs on the same rows) and ``share`` = us / (us + learner_us), in [0, 1]; ``cpu_share``;
        torch's threads, machine and versions.
    Raises:
        ConfigError: an empty list, a number that is not positive, an unknown device.
    """
    lengths, batches = check_counts(lengths, "length"), check_counts(batches, "batch")
    check_counts((repeats,), "repeats")
    check_counts((threads,), "threads")
    where = _device(device)
    rows: list[Row] = []
    for length in lengths:
        for batch in batches:
            with torch_threads(threads):
                samples, cpu_share = _sample(_runs(length, batch, where), where, repeats)
            learner_us = float(np.median(samples.pop("learner")))
            for corrector, times_us in samples.items():
                us = float(np.median(times_us))
                cell: Row = {"corrector": corrector, "T": length, "B": batch, "device": str(where)}
                share: Row = {"learner_us": learner_us, "share": us / (us + learner_us)}
                share |= {"samples": len(times_us), "cpu_share": cpu_share}
                rows.append(cell | spread("us", times_us) | share)
    shared: Row = {"torch_threads": threads} | provenance()
    return [row | shared for row in rows]


def _device(name: str) -> torch.device:
    try:
        torch.zeros((), device=name)
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:
        first_line = str(error).partition("\n")[0]
        raise ConfigError(f"device {name!r} does not work here: {first_line}") from None


def _runs(length: int, batch: int, device: torch.device) -> Mapping[str, Run]:
    """The timed functions by name, on fixed random rows."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    shape = (length, batch)
    log_rhos, rewards, values, q_taken, cut_values = (drawn(*shape) for _ in range(5))
    discounts = torch.full(shape, 0.99, device=device).masked_fill(drawn(*shape) > 2.0, 0.0)
    bootstrap_value = drawn(batch)
    valid, cut = drawn(*shape) < 2.0, drawn(*shape) > 2.0
    state_rows = (log_rhos, rewards, discounts, values, bootstrap_value)
    action_rows = (log_rhos, rewards, discounts, q_taken, values, bootstrap_value)
    return {
        "none": lambda: nstep(*state_rows, valid=valid, cut=cut, cut_values=cut_values),
        "vtrace": lambda: vtrace(*state_rows, valid=valid, cut=cut, cut_values=cut_values),
        "retrace": lambda: retrace(*action_rows, valid=valid, cut=cut, cut_values=cut_values),
        "learner": _learner(drawn(length * batch, OBSERVATION_SIZE)),
    }


def _learner(observations: Tensor) -> Run:
    """Forward and backward of one actor-critic loss over all rows, without an optimiser step."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Linear(OBSERVATION_SIZE, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()]
        network = nn.Sequential(*layers, nn.Linear(WIDTH, ACTIONS + 1)).to(observations.device)

    def run() -> None:
        network.zero_grad(set_to_none=True)
        outputs = network(observations)
        log_probs = torch.log_softmax(outputs[:, :ACTIONS], -1)
        loss = outputs[:, ACTIONS].square().mean() - log_probs[:, 0].mean()
        loss.backward()

    return run


def _sample(runs: Mapping[str, Run], device: torch.device, repeats: int) -> tuple[dict[str, list[float]], float]:
    """Microseconds of each function per repetition, the learner's before each corrector's, and this thread's share of a
    core."""
    timed = _timed_cuda if device.type == "cuda" else _timed_host
    samples: dict[str, list[float]] = {name: [] for name in runs}
    correctors = [name for name in runs if name != "learner"]
    began, cpu_began = time.perf_counter(), time.thread_time()
    for repetition in range(-WARM_UP, repeats):
        for corrector in correctors:
            for name in ("learner", corrector):
                elapsed_us = timed(runs[name])
                if repetition >= 0:
                    samples[name].append(elapsed_us)
    return samples, (time.thread_time() - cpu_began) / (time.perf_counter() - began)


def _timed_host(run: Run) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e6


def _timed_cuda(run: Run) -> float:
    start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3
