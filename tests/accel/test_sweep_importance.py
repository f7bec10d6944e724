"""Parameter importances of studies with a known answer, and plots of values that do not differ."""

from __future__ import annotations

import random

import pytest

from accel.sweep.importance import MINIMAL_TRIALS, Trials, explained_share, importances
from accel.sweep.objectives import AFTER_TRAINING, IN_TRAINING
from accel.sweep.pareto import Candidate
from accel.sweep.plots import FrontFigure, draw_importances

_SIZES = {"fp32": 19_676.0, "int8": 7_000.0, "int4": 3_100.0, "prune(0.5)": 6_367.0}
_BYTES, _RETURN = IN_TRAINING["bytes"], IN_TRAINING["return"]


def study(trials: int, seed: int = 0) -> Trials:
    """Candidates whose bytes are a function of the compressor alone, and whose rate of learning decides the return."""
    draw = random.Random(seed)
    found: list[tuple[dict[str, object], dict[str, float]]] = []
    for _ in range(trials):
        compressor, rate = draw.choice(list(_SIZES)), draw.uniform(1e-4, 1e-2)
        parameters = {"compressor": compressor, "learning_rate": rate, "unroll_length": draw.choice([8, 16, 32])}
        found.append((parameters, {"bytes": _SIZES[compressor], "return": 1e4 * rate, "kl": 0.5}))
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("trials", [MINIMAL_TRIALS, 300])
def test_what_alone_decides_has_the_whole_share_and_the_rest_next_to_none(seed: int, trials: int) -> None:
    found = importances(study(trials, seed), (_BYTES, _RETURN))
    assert found["bytes"].shares["compressor"] == pytest.approx(1.0)
    assert found["return"].shares["learning_rate"] > 0.9
    most = 0.35 if trials == MINIMAL_TRIALS else 0.05
    assert found["bytes"].shares["learning_rate"] < most and found["bytes"].shares["unroll_length"] < most
    assert found["return"].shares["compressor"] < most
    assert found["bytes"].trials == trials


def test_shares_are_the_correlation_ratio_less_chance() -> None:
    # by hand: group means 2 and 5, total 17.5 + ..., η² = 13.5 / 17.5, ε² = 1 − (4 / 17.5)(5 / 4)
    assert explained_share(["a"] * 3 + ["b"] * 3, [1, 2, 3, 4, 5, 6]) == pytest.approx(1 - 4 / 17.5 * 5 / 4)
    draw = random.Random(1)
    noise = [explained_share([draw.randrange(7) for _ in range(30)], [draw.random() for _ in range(30)])
             for _ in range(300)]  # fmt: skip
    assert sum(noise) / len(noise) < 0.1, "seven groups of thirty explain 0.2 by chance"
    assert explained_share(list("abcd"), [1, 2, 3, 4]) == 0.0, "groups of one explain anything"


def test_candidates_that_were_not_played_count_where_they_were_measured() -> None:
    played, unplayed = study(5), [(chosen, {"bytes": found["bytes"]}) for chosen, found in study(60, seed=4)]
    found = importances([*played, *unplayed], (_BYTES, _RETURN))
    assert found["bytes"].trials == 65 and found["bytes"].remark is None
    assert found["return"].remark == f"too few trials: 5 different ones of at least {MINIMAL_TRIALS}"


def test_a_candidate_proposed_again_and_again_is_one() -> None:
    found = importances([*study(4)] * 20, (_BYTES,))
    assert found["bytes"].trials == 4 and found["bytes"].shares == {}


def test_an_objective_that_never_differs_is_named_rather_than_left_out() -> None:
    found = importances(study(40), (_BYTES, AFTER_TRAINING["kl"]))
    assert found["kl"].remark == "all 40 trials have the same value, 0.5"
    with_line, without = draw_importances(found, "t"), draw_importances({"bytes": found["bytes"]}, "t")
    assert len(with_line) > len(without)


def test_an_axis_of_equal_values_begins_at_nothing_and_says_so() -> None:
    rows = [Candidate(n, str(n), {"return": 500.0, "bytes": float(size)}) for n, size in enumerate((100, 150, 180))]
    figure = FrontFigure(rows, rows[:1], (_RETURN, _BYTES), {"return": 500.0, "bytes": 200.0}, {"return": 475.0}, "t")
    panel = figure.figure().axes[0]
    assert panel.get_ylim() == (0.0, 600.0)
    assert "all equal: 500" in [text.get_text() for text in panel.texts]
    assert not any("all equal" in text.get_text() for text in FrontFigure(
        [*rows, Candidate(3, "3", {"return": 480.0, "bytes": 90.0})], rows[:1], (_RETURN, _BYTES), {}, {}, "t",
    ).figure().axes[0].texts)  # fmt: skip
