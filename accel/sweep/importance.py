"""Parameter importance: the share of an objective's variance that a parameter explains by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from accel.sweep.objectives import Metric, Values

MINIMAL_TRIALS = 30
METHOD = (
    "Share of variance that a parameter explains alone (ε²: η² corrected for chance); correlated parameters share what "
    "either explains"
)
_BINS = 6

Trials = Sequence[tuple[Mapping[str, object], Values]]
"""Parameters and measurements, by metric as far as measured, of each candidate once."""


@dataclass(frozen=True)
class Importance:
    """The importance of all parameters for one objective.

    Attributes:
        trials: number of distinct candidates for which it was measured.
        shares: by parameter, each from 0 to 1; they need not add up to 1. Empty if there is a remark.
        remark: why there are no shares, else None.
    """

    trials: int
    shares: Mapping[str, float]
    remark: str | None = None


def importances(trials: Trials, objectives: Sequence[Metric]) -> dict[str, Importance]:
    """The importance of every parameter, by objective."""
    return {objective.name: _importance(trials, objective.name) for objective in objectives}


def explained_share(parameter: Sequence[object], values: Sequence[float]) -> float:
    """The share of the variance of values that groups of equal parameters explain.

        η² = Σ_g n_g (ȳ_g − ȳ)² / Σ_i (y_i − ȳ)²;   ε² = max(0, 1 − (1 − η²) (n − 1) / (n − k))

    Args:
        parameter: [n]; numbers with more than 6 different values are binned into 6 groups of about equal size.
        values: [n], not all equal.
    Returns:
        ε²: 1 for a function of the groups, on average 0 for independent values, and 0 if every group has a single
        value.
    Source:
        Kelley 1935, "An unbiased correlation ratio measure", PNAS 21(9). Deviations: negative estimates are 0.
    """
    groups = _groups(parameter)
    y = np.asarray(values, dtype=np.float64)
    n, k = len(y), int(groups.max()) + 1
    if k < 2 or k >= n:
        return 0.0
    residual = sum(float(((y[groups == g] - y[groups == g].mean()) ** 2).sum()) for g in range(k))
    unexplained = residual / float(((y - y.mean()) ** 2).sum())
    return max(0.0, 1.0 - unexplained * (n - 1) / (n - k))


def _importance(trials: Trials, objective: str) -> Importance:
    known = [
        (parameters, measured[objective])
        for parameters, measured in trials
        if math.isfinite(measured.get(objective, math.nan))
    ]
    values = [value for _, value in known]
    distinct = len({tuple(sorted((name, repr(choice)) for name, choice in chosen.items())) for chosen, _ in known})
    if values and min(values) == max(values):
        return Importance(distinct, {}, f"all {distinct} trials have the same value, {values[0]:g}")
    if distinct < MINIMAL_TRIALS:
        return Importance(distinct, {}, f"too few trials: {distinct} different ones of at least {MINIMAL_TRIALS}")
    shares: dict[str, float] = {}
    for name in sorted({name for chosen, _ in known for name in chosen}):
        choices, column = zip(*((chosen[name], value) for chosen, value in known if name in chosen), strict=True)
        shares[name] = explained_share(choices, column) if min(column) < max(column) else 0.0
    return Importance(distinct, dict(sorted(shares.items(), key=lambda item: -item[1])))


def _groups(parameter: Sequence[object]) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """[n] group numbers from 0: of equal values, or of binned numbers."""
    numbers = [float(value) for value in parameter if isinstance(value, int | float)]
    if len(numbers) == len(parameter) and len(set(numbers)) > _BINS:
        column = np.asarray(numbers)
        edges = np.quantile(column, np.arange(1, _BINS) / _BINS)
        _, groups = np.unique(np.searchsorted(edges, column, side="right"), return_inverse=True)
    else:
        _, groups = np.unique([repr(value) for value in parameter], return_inverse=True)
    return groups.astype(np.intp)
