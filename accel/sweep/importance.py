"""Which parameters of a study decide each objective."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import optuna
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.study import Study
from optuna.trial import TrialState

from accel.sweep.quantities import Quantity

_MINIMAL_TRIALS = 8


def importances(study: Study, objectives: Sequence[Quantity]) -> dict[str, dict[str, float]]:
    """Objective to parameter to share, shares of an objective adding up to 1; empty with too few trials to tell.

    Source: PED-ANOVA, Watanabe et al. 2023, arXiv:2304.10255: how the best tenth of the trials differ from all.
    """
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(complete) < _MINIMAL_TRIALS or not any(trial.params for trial in complete):
        return {}
    found: dict[str, dict[str, float]] = {}
    for index, objective in enumerate(objectives):
        values = {trial.values[index] for trial in complete}
        if len(values) > 1:
            found[objective.name] = _shares(study, index, objective.sign)
    return found


def _shares(study: Study, index: int, sign: float) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it reminds that less must be better, which the sign sees to
        shares: Mapping[str, float] = optuna.importance.get_param_importances(
            study,
            evaluator=PedAnovaImportanceEvaluator(),
            target=lambda trial: sign * float(trial.values[index]),
        )
    return dict(shares)
