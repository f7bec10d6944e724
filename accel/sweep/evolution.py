"""Population-based training without runs: a population's first parameters, and its next ones from what they earned.

Truncation selection: of N members, ranked by return, each of the last k = max(⌊N/4⌋, 1) takes weights and parameters of
one of the first k, drawn uniformly, and changes the parameters: h ← clip(h·f, low, high) with f drawn from {0.8, 1.25}.

Source:
    Jaderberg et al. 2017, arXiv:1711.09846, section 4.1.1. Deviations: a quarter instead of a fifth; 1.25
    instead of 1.2, so that a step up undoes a step down; a category is drawn anew with probability 1/4, as it has no
    order; a member copies nobody who earned no more than itself; all members are compared at the same step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution

from accel.errors import SweepError
from accel.sweep.sweep_file import Distribution, Value

FACTORS, SELECTED, RESAMPLED = (0.8, 1.25), 0.25, 0.25

Parameters = Mapping[str, Value]
Space = Mapping[str, Distribution]


def draw(space: Space, members: int, seed: int) -> list[dict[str, Value]]:
    """Parameters for each member, independent and uniform; log-uniform where the distribution says so."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return [dict(study.ask(dict(space)).params) for _ in range(members)]


def evolve(
    returns: Sequence[float | None], parameters: Sequence[Parameters], space: Space, generator: np.random.Generator
) -> list[tuple[int, Parameters]]:
    """Select and perturb.

    Args:
        returns: by member; −inf for one without an episode, None for one that failed, which is replaced.
        generator: consumed alike for equal arguments.
    Returns:
        By member of the next generation, the one whose weights it goes on with, itself where it keeps them, and the
        parameters it trains with.
    Raises:
        SweepError: every member failed.
    """
    sound = {member: value for member, value in enumerate(returns) if value is not None}
    if not sound:
        raise SweepError("every member of the population failed")
    selected = max(int(SELECTED * len(returns)), 1)
    ranked = sorted(sound, key=lambda member: (-sound[member], member))
    best, last = ranked[:selected], set(ranked[max(len(returns) - selected, 1) :])
    found: list[tuple[int, Parameters]] = []
    for member, own in enumerate(parameters):
        parent = member
        if member in last or member not in sound:
            chosen = best[int(generator.integers(len(best)))]
            if member not in sound or sound[chosen] > sound[member]:
                parent = chosen
        found.append((parent, own if parent == member else perturb(parameters[parent], space, generator)))
    return found


def perturb(parameters: Parameters, space: Space, generator: np.random.Generator) -> dict[str, Value]:
    """Every parameter changed independently of the others."""
    return {name: _perturb(parameters[name], space[name], generator) for name in space}


def _perturb(value: Value, distribution: Distribution, generator: np.random.Generator) -> Value:
    if isinstance(distribution, CategoricalDistribution):
        choices = cast(tuple[Value, ...], distribution.choices)
        return choices[int(generator.integers(len(choices)))] if generator.uniform() < RESAMPLED else value
    before, low, step = float(value), distribution.low, distribution.step
    after = before * FACTORS[int(generator.integers(len(FACTORS)))]
    if step and abs(after - before) < step:  # a small whole number would round back to itself
        after = before + math.copysign(step, after - before)
    if step:
        after = low + step * round((after - low) / step)
    after = min(max(after, low), distribution.high)
    return round(after) if isinstance(distribution, IntDistribution) else after
