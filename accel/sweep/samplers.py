"""Optuna's samplers and pruners by name, set up for sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import optuna
from optuna.samplers import BaseSampler

SamplerName = Literal["tpe", "nsga2", "nsga3", "random"]
PrunerName = Literal["none", "median", "hyperband", "halving"]

# How often a whole training run reports an intermediate value.
REPORTS = 20


def make_sampler(name: SamplerName, trials: int, entropy: Sequence[int]) -> BaseSampler:
    """The sampler of a study of so many trials, seeded for one worker."""
    seed = int(np.random.SeedSequence(list(entropy)).generate_state(1)[0])
    if name == "tpe":
        startup = max(5, min(20, trials // 5))
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup)
    population = max(8, min(50, trials // 6))
    if name == "nsga2":
        return optuna.samplers.NSGAIISampler(seed=seed, population_size=population)
    if name == "nsga3":
        return optuna.samplers.NSGAIIISampler(seed=seed, population_size=population)
    return optuna.samplers.RandomSampler(seed=seed)


def make_pruner(name: PrunerName, trials: int, interval: int) -> optuna.pruners.BasePruner:
    """The pruner; intermediate values come at the same steps in all trials, every ``interval`` environment steps."""
    if name == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=max(4, min(8, trials // 4)), n_min_trials=3)
    if name == "hyperband":
        return optuna.pruners.HyperbandPruner(2 * interval, REPORTS * interval)
    if name == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(2 * interval, reduction_factor=3)
    return optuna.pruners.NopPruner()
