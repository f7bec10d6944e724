"""Which parameters decide each objective: the share of its variance that a parameter explains by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from accel.sweep.quantities import Quantity, Values

MINIMAL_TRIALS = 30
METHOD = (
    "share of variance that a parameter explains alone (ε²: η² less what chance explains); parameters that a sampler "
    "moves together share what either explains"
)
_BINS = 6


@dataclass(frozen=True)
class Sample:
    """One candidate, once, however often it was proposed.

    Attributes:
        parameters: what it chose.
        measured: by quantity, as far as it came.
    """

    parameters: Mapping[str, object]
    measured: Values


@dataclass(frozen=True)
class Importance:
    """Of one objective.

    Attributes:
        trials: distinct candidates of which it was measured, whether or not they were played.
        shares: by parameter, each from 0 to 1; they need not add up to 1. Empty where there is a remark.
        remark: why there are no shares, None where there are.
    """

    trials: int
    shares: Mapping[str, float]
    remark: str | None = None


def importances(samples: Sequence[Sample], objectives: Sequence[Quantity]) -> dict[str, Importance]:
    """The importance of every parameter, by objective."""
    return {objective.name: _importance(samples, objective.name) for objective in objectives}


def explained_share(parameter: Sequence[object], values: Sequence[float]) -> float:
    """The share of the variance of values that groups of equal parameters explain.

        η² = Σ_g n_g (ȳ_g − ȳ)² / Σ_i (y_i − ȳ)²;   ε² = max(0, 1 − (1 − η²) (n − 1) / (n − k))

    Args:
        parameter: [n]; numbers of more than 6 different values go into as many groups of about equal size.
        values: [n], not all equal.
    Returns:
        ε², 1 for a function of the groups and 0 on average for values that have nothing to do with them; 0 where
        every group has a single value.
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


def _importance(samples: Sequence[Sample], objective: str) -> Importance:
    known = [s for s in samples if math.isfinite(s.measured.get(objective, math.nan))]
    values = [s.measured[objective] for s in known]
    distinct = len({tuple(sorted((name, repr(value)) for name, value in s.parameters.items())) for s in known})
    if values and min(values) == max(values):
        return Importance(distinct, {}, f"all {distinct} trials have the same value, {values[0]:g}")
    if distinct < MINIMAL_TRIALS:
        return Importance(distinct, {}, f"too few trials to tell: {distinct} different ones of {MINIMAL_TRIALS}")
    shares: dict[str, float] = {}
    for name in sorted({name for sample in known for name in sample.parameters}):
        having = [sample for sample in known if name in sample.parameters]
        column = [sample.measured[objective] for sample in having]
        varies = min(column) < max(column)
        shares[name] = explained_share([s.parameters[name] for s in having], column) if varies else 0.0
    return Importance(distinct, dict(sorted(shares.items(), key=lambda item: -item[1])))


def _groups(parameter: Sequence[object]) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """[n] from 0: equal values together, or numbers of about the same size."""
    numbers = [float(value) for value in parameter if isinstance(value, int | float)]
    if len(numbers) == len(parameter) and len(set(numbers)) > _BINS:
        column = np.asarray(numbers)
        edges = np.quantile(column, np.arange(1, _BINS) / _BINS)
        _, groups = np.unique(np.searchsorted(edges, column, side="right"), return_inverse=True)
    else:
        _, groups = np.unique([repr(value) for value in parameter], return_inverse=True)
    return groups.astype(np.intp)
