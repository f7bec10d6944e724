"""Parameter importance, by Optuna's PED-ANOVA: what distinguishes the best quarter of the candidates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial

from accel.sweep.objectives import Metric, Values

MINIMAL_TRIALS = 30
_QUANTILE = 0.25  # with 0.1, a study of 60 trials may rank an unrelated parameter first
METHOD = (
    "PED-ANOVA (Watanabe et al. 2023): how much a parameter's distribution among the best quarter of the candidates "
    "differs from that among all; the shares of an objective add up to 1"
)


@dataclass(frozen=True)
class Importance:
    """The importance of all parameters for one objective.

    Attributes:
        trials: number of distinct candidates for which it was measured.
        shares: by parameter, greatest first; they add up to 1. Empty if there is a remark.
        remark: why there are no shares, else None.
    """

    trials: int
    shares: Mapping[str, float]
    remark: str | None = None


def importances(
    candidates: Sequence[tuple[FrozenTrial, Values]], objectives: Sequence[Metric]
) -> dict[str, Importance]:
    """The importance of every parameter, by objective.

    Args:
        candidates: a trial for each, with its measurements by metric, as far as it was measured.
        objectives: each on its own; all candidates that have its measurement count.
    """
    return {objective.name: _importance(candidates, objective) for objective in objectives}


def _importance(candidates: Sequence[tuple[FrozenTrial, Values]], objective: Metric) -> Importance:
    known = {
        repr(sorted(trial.params.items())): (trial, values[objective.name])
        for trial, values in candidates
        if math.isfinite(values.get(objective.name, math.nan))
    }
    values = [value for _, value in known.values()]
    if values and min(values) == max(values):
        return Importance(len(known), {}, f"all {len(known)} trials have the same value, {values[0]:g}")
    if len(known) < MINIMAL_TRIALS:
        return Importance(len(known), {}, f"too few trials: {len(known)} different ones of at least {MINIMAL_TRIALS}")
    study = optuna.create_study(direction="minimize")
    for trial, value in known.values():
        study.add_trial(
            optuna.create_trial(params=trial.params, distributions=trial.distributions, value=objective.sign * value)
        )
    evaluator = PedAnovaImportanceEvaluator(target_quantile=_QUANTILE)
    return Importance(len(known), get_param_importances(study, evaluator=evaluator))
