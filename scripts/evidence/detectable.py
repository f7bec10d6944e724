"""What `auto` finds out about a level from returns, and in how many pairs of blocks: by simulation, as a table.

    python scripts/evidence/detectable.py              the table of docs/compression.md (ten seconds)

A pair is a block at the level and one at full precision, of 8 environments. In the first part, returns differ and
nothing is learned; in the second, returns rise while both act alike, more slowly at the level, and SNR is what full
precision gains in a block over the standard deviation of an episode's return. Each row is of 100 runs of 100 pairs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel.monitor.objective import Block, Comparison

RUNS, PAIRS, ENVS = 100, 100, 8

Floats = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Floats]


def gaussian(loss: float) -> Draw:
    """Of deviation 1."""
    return lambda random, shape: random.standard_normal(shape) - loss


def bimodal(loss: float) -> Draw:
    """0 or 1 at even odds, and a loss of the upper one's share."""
    return lambda random, shape: (random.random(shape) < 0.5 - loss).astype(np.float64)


def success(rate: float) -> Draw:
    """1 at a rate, else 0."""
    return lambda random, shape: (random.random(shape) < rate).astype(np.float64)


RETURNS: dict[str, tuple[Draw, Draw]] = {
    "Gaussian, no difference": (gaussian(0.0), gaussian(0.0)),
    "Gaussian, 0.1 deviations lower": (gaussian(0.1), gaussian(0.0)),
    "Gaussian, 0.25 deviations lower": (gaussian(0.25), gaussian(0.0)),
    "Gaussian, 1 deviation lower": (gaussian(1.0), gaussian(0.0)),
    "two modes, no difference": (bimodal(0.0), bimodal(0.0)),
    "two modes, the upper one in 40 % instead of 50 %": (bimodal(0.1), bimodal(0.0)),
    "success in 5 %, no difference": (success(0.05), success(0.05)),
    "success in 0 instead of 5 %": (success(0.0), success(0.05)),
    "success in 0 instead of 20 %": (success(0.0), success(0.2)),
}
EPISODES = (2, 10)
GAINS = ((1.0, 0.5), (0.75, 0.5), (0.75, 1.0), (0.75, 2.0), (0.5, 0.5), (0.5, 0.2), (0.0, 0.2), (1.5, 0.5), (3.0, 0.2))
"""What the level gains in a block over full precision's, and full precision's SNR."""
GAIN_EPISODES = 20


def compare_returns(
    draws: tuple[Draw, Draw],
    episodes: tuple[int, int],
    random: np.random.Generator,
    most_pairs: int = PAIRS,
    trend: float = 0.0,
) -> tuple[str, int]:
    """One run, whose blocks have so many episodes of an environment, while returns rise by ``trend`` a block: the
    verdict on returns and after how many pairs; all of them where it stays open."""
    comparison = Comparison("level", "full")
    while comparison.returns.verdict == "open" and comparison.pairs < most_pairs:
        places = random.permutation(2) + 2.0 * comparison.pairs
        blocks = [
            Block(20.0, 1, 1.0, draw(random, (count, ENVS)) + trend * place, np.full((count, ENVS), 20.0 * place))
            for draw, count, place in zip(draws, episodes, places, strict=True)
        ]
        comparison.add(*blocks)
    return comparison.returns.verdict, comparison.pairs


def compare_gains(factor: float, snr: float, random: np.random.Generator) -> tuple[str, int]:
    """Likewise, on gains."""
    comparison = Comparison("level", "full")
    times = np.repeat((np.arange(GAIN_EPISODES) + 0.5)[:, None] / GAIN_EPISODES, ENVS, axis=1)
    while comparison.gain.verdict == "open" and comparison.pairs < PAIRS:
        places = random.permutation(2) + 2.0 * comparison.pairs
        blocks = [
            Block(20.0, 1, 1.0, slope * times + random.standard_normal(times.shape), 20.0 * (times + place))
            for slope, place in zip((snr * factor, snr), places, strict=True)
        ]
        comparison.add(*blocks)
    return comparison.gain.verdict, comparison.pairs


def cell(found: list[tuple[str, int]]) -> str:
    """Shares of both verdicts, and the median of pairs until one."""
    ended = [pairs for verdict, pairs in found if verdict != "open"]
    shares = [sum(verdict == wanted for verdict, _ in found) / len(found) for wanted in ("worse", "better")]
    median = f"{int(np.median(ended))} pairs" if 2 * len(ended) >= len(found) else "–"
    return f"{100 * shares[0]:.0f} %, {100 * shares[1]:.0f} %, {median}"


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    random = np.random.default_rng(0)
    print("| returns at the level | worse, better, median: 2 episodes a block | 10 episodes a block |\n|---|---|---|")
    for name, draws in RETURNS.items():
        cells = [cell([compare_returns(draws, (count, count), random) for _ in range(RUNS)]) for count in EPISODES]
        print(f"| {name} | {' | '.join(cells)} |")
    print("\n| gain of the level over full precision's | SNR | worse, better, median |\n|---|---|---|")
    for factor, snr in GAINS:
        print(f"| {factor:g} | {snr:g} | {cell([compare_gains(factor, snr, random) for _ in range(RUNS)])} |")


if __name__ == "__main__":
    main()
