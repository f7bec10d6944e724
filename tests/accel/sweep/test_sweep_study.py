"""How trials end and are counted: candidates that cannot be built, proposals that repeat others."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

from accel.errors import SweepError
from accel.sweep.directory import check_directory, write_about
from accel.sweep.experiment import Measurement
from accel.sweep.study import UNBUILT, done_trials, tally
from tests.accel.sweep.sweeping import opened, plan_for, work_on


@pytest.mark.long
def test_candidates_that_cannot_be_built_do_not_count_and_do_not_go_on_for_ever(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, trials=5)
    proposed: list[float] = []

    def evaluate(trial: optuna.Trial) -> Measurement:
        proposed.append(trial.suggest_float("x", 0, 1))
        if len(proposed) > 4:
            return Measurement({}, {"can be built": 1.0}, f"{UNBUILT}: no")
        return Measurement({"return": proposed[-1], "bytes": 1.0})

    with opened(plan) as study:
        work_on(study, plan, evaluate)
        assert len(done_trials(study)) == 4 and len(proposed) == 54
        assert tally(study.trials) == "4 candidates: 4 measured, 50 could not be built; 0 proposals repeated others"


def test_repeats_hand_over_to_a_random_sampler_which_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plan = plan_for(tmp_path, trials=5)

    def evaluate(trial: optuna.Trial) -> Measurement:
        trial.suggest_float("x", 0, 1)
        if 0 < trial.number < 4:
            trial.set_user_attr("same_as", 0)
        return Measurement({"return": 1.0, "bytes": 1.0})

    with opened(plan) as study, caplog.at_level("INFO", "accel"):
        work_on(study, plan, evaluate)
        told = tally(study.trials)
    assert told.endswith("; 3 proposals repeated others, after which 2 proposals were sampled at random")
    assert told.startswith("5 candidates: 5 measured;")
    assert [r.message for r in caplog.records if "sampling at random" in r.message] == [
        "the last 2 proposals repeated others: sampling at random until there is a new one"
    ]


def test_a_directory_with_something_else_in_it_is_refused_and_kept(tmp_path: Path) -> None:
    check_directory(tmp_path, {"study": "a"})
    (tmp_path / "study.log").touch()  # another worker's, which has not yet said what it is
    check_directory(tmp_path, {"study": "a"})
    (tmp_path / "trials.log.lock").touch()
    check_directory(tmp_path, {"study": "a"}, tmp_path / "trials.log")
    with pytest.raises(SweepError, match="holds 'trials"):
        check_directory(tmp_path, {"study": "a"}, tmp_path.parent / "trials.log")
    (tmp_path / "trials.log.lock").unlink()
    (tmp_path / "best").mkdir()
    with pytest.raises(SweepError, match="holds 'best' and is no sweep's directory: give another --out"):
        check_directory(tmp_path, {"study": "a"})
    write_about(tmp_path, {"study": "a"})
    check_directory(tmp_path, {"study": "a"})
    with pytest.raises(SweepError, match=r"holds another study: study was a and is b; space was None .* another --out"):
        check_directory(tmp_path, {"study": "b", "space": "x"})
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(SweepError, match=r"study.json is damaged .*another --out"):
        check_directory(tmp_path, {"study": "a"})
