"""Parameter importances of studies with a known answer."""

from __future__ import annotations

import random

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial

from accel.sweep.importance import MINIMAL_TRIALS, importances
from accel.sweep.objectives import AFTER_TRAINING, IN_TRAINING

_SIZES = {"fp32": 19_676.0, "int8": 7_000.0, "int4": 3_100.0, "prune": 6_367.0}
_SPACE: dict[str, BaseDistribution] = {
    "compressor": CategoricalDistribution(list(_SIZES)),
    "learning_rate": FloatDistribution(1e-4, 1e-2),
    "unroll_length": CategoricalDistribution([8, 16, 32]),
    "share": FloatDistribution(0, 1),
}
_BYTES, _RETURN = IN_TRAINING["bytes"], IN_TRAINING["return"]
Candidates = list[tuple[FrozenTrial, dict[str, float]]]


def candidates(trials: int, seed: int = 0) -> Candidates:
    """The compressor alone decides the bytes, and the learning rate the return; only pruned ones have a share."""
    draw, found = random.Random(seed), []
    for _ in range(trials):
        compressor, rate = draw.choice(list(_SIZES)), draw.uniform(1e-4, 1e-2)
        parameters = {"compressor": compressor, "learning_rate": rate, "unroll_length": draw.choice([8, 16, 32])}
        if compressor == "prune":
            parameters["share"] = draw.random()
        space = {name: _SPACE[name] for name in parameters}
        trial = optuna.create_trial(params=parameters, distributions=space, value=0.0)
        found.append((trial, {"bytes": _SIZES[compressor], "return": 1e4 * rate, "kl": 0.5}))
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("trials", [MINIMAL_TRIALS, 300])
def test_the_parameter_that_decides_alone_is_the_most_important(seed: int, trials: int) -> None:
    found = importances(candidates(trials, seed), (_BYTES, _RETURN))
    assert next(iter(found["bytes"].shares)) == "compressor" and found["bytes"].shares["compressor"] > 0.5
    assert next(iter(found["return"].shares)) == "learning_rate" and found["return"].shares["learning_rate"] > 0.5
    assert found["bytes"].trials == trials
    assert found["bytes"].shares.keys() == _SPACE.keys() and sum(found["bytes"].shares.values()) == pytest.approx(1.0)


def test_candidates_that_were_not_played_count_where_they_were_measured() -> None:
    unplayed = [(trial, {"bytes": values["bytes"]}) for trial, values in candidates(60, seed=4)]
    found = importances([*candidates(5), *unplayed], (_BYTES, _RETURN))
    assert found["bytes"].trials == 65 and found["bytes"].remark is None
    assert found["return"].remark == f"too few trials: 5 different ones of at least {MINIMAL_TRIALS}"


def test_a_repeated_candidate_counts_once() -> None:
    found = importances(candidates(4) * 20, (_BYTES,))
    assert found["bytes"].trials == 4 and found["bytes"].shares == {}


def test_an_objective_that_never_differs_is_named_rather_than_left_out() -> None:
    found = importances(candidates(40), (_BYTES, AFTER_TRAINING["kl"]))
    assert found["kl"].remark == "all 40 trials have the same value, 0.5"
