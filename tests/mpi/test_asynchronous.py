"""Learners that exchange gradients asynchronously, as a user starts them: they learn, and wait for no other."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.mpi.test_learners import resume_alone
from tests.mpi.training_runs import ENDLESS, TrainingRun

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux, whose /proc tells ranks apart"),
]
A3C = ("--algorithm", "a3c", "--learners", "2", "--network", "mlp:64x2", "--unroll-length", "20")
GORILA = ("--algorithm", "gorila", "--learners", "2", "--network", "mlp:64x2", "--exploration-env-steps", "4000")
UNTIL_STOPPED = (*ENDLESS, "--checkpoint-interval-s", "0.2")


@pytest.mark.learning
@pytest.mark.long
def test_two_learners_with_int8_actors_learn_cartpole(tmp_path: Path) -> None:
    limits = ("--stop-at-return", "200", "--stop-window", "20", "--total-env-steps", "200000")
    with TrainingRun(tmp_path, *A3C, "--actors", "2", *limits) as job:
        assert job.finish() == 0, job.output
        summary = job.summary()
        assert summary.return_mean is not None and summary.return_mean >= 200.0, job.output
        assert job.mostly_acted_with("int8") and summary.actors == 2 and summary.dead_actors == 0
        assert any(row["gradient_lag_mean"] is not None for row in job.records()), "learner 1 sent no gradient"


@pytest.mark.long
@pytest.mark.learning
def test_two_gorila_learners_learn_cartpole_from_replays_of_their_own(tmp_path: Path) -> None:
    limits = ("--stop-at-return", "100", "--stop-window", "10", "--total-env-steps", "40000")
    with TrainingRun(tmp_path, *GORILA, "--actors", "2", "--compressor", "int8", *limits) as job:
        assert job.finish() == 0, job.output
        summary = job.summary()
        assert summary.return_mean is not None and summary.return_mean >= 100.0, job.output
        assert job.mostly_acted_with("int8") and summary.dead_actors == 0
        # What learner 1 tells with its last message is counted, and no longer learned from: an unroll of its actor.
        assert summary.updates_owed <= 64 < summary.updates, "the ratio holds over both learners"
        assert any(row["gradient_lag_mean"] is not None for row in job.records()), "learner 1 sent no gradient"


@pytest.mark.long
def test_a_learner_that_pauses_keeps_no_other_waiting_and_a_signal_stops_both(tmp_path: Path) -> None:
    with TrainingRun(tmp_path, *A3C, "--actors", "3", *UNTIL_STOPPED) as job:
        ranks = job.wait_for_records(2)
        job.wait_for(lambda: job.records()[-1]["gradient_lag_max"] is not None, "learner 1's gradient")
        os.kill(ranks[1], signal.SIGSTOP)
        before = job.records()[-1]["updates"]
        job.wait_for(lambda: job.records()[-1]["updates"] > before + 20, "updates of learner 0 alone")
        os.kill(ranks[1], signal.SIGCONT)
        seen = len(job.records())
        job.wait_for(
            lambda: any(row["gradient_lag_max"] is not None for row in job.records()[seen:]), "learner 1's return"
        )
        job.stop()
        summary, last = job.summary(), job.records()[-1]
        assert summary.reason == "stopped on request" and last["actors_alive"] == 3
        assert job.leaves_no_rank(list(ranks.values()))


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_learner_ends_the_job_which_goes_on_from_its_checkpoint(victim: int, tmp_path: Path) -> None:
    with TrainingRun(tmp_path, *A3C, "--actors", "2", *UNTIL_STOPPED) as job:
        job.wait_for(job.checkpoints, "a checkpoint")
        ranks = job.wait_for_records(2)
        os.kill(ranks[victim], signal.SIGKILL)
        assert job.finish() != 0, job.output
        assert f"accel train --resume {job.path}" in job.output and not (job.path / "summary.json").exists()
        assert "Traceback" not in job.output, job.output
        assert job.leaves_no_rank(list(ranks.values()))
    assert resume_alone(tmp_path / "run").env_steps > 3000
