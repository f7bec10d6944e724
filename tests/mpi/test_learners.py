"""Several learners in one job, as a user starts them: one run, whose end is everybody's; synchronous ones and others.

How two of them share three actors and stop on request is in ``test_ports.py``.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.mpi.training_runs import ENDLESS, TrainingRun, resume_here

SYNCHRONOUS = ("--learners", "2", "--actors", "3", "--normalise-observations")
A3C = ("--algorithm", "a3c", "--learners", "2", "--network", "mlp:64x2", "--unroll-length", "20")
GORILA = ("--algorithm", "gorila", "--learners", "2", "--network", "mlp:64x2", "--exploration-env-steps", "4000")
UNTIL_STOPPED = (*ENDLESS, "--checkpoint-interval-s", "0.2")


@pytest.mark.long
def test_the_first_ranks_of_an_mpirun_of_ones_own_learn(tmp_path: Path) -> None:
    words = ("--learners", "2", "--total-env-steps", "3000", "--algorithm", "ppo", "--minibatches", "2")
    with TrainingRun(tmp_path, *words, ranks=4) as job:
        assert job.finish() == 0, job.output
        assert job.summary().env_steps >= 3000 and job.summary().actors == 2


@pytest.mark.parametrize(
    ("words", "victim"),
    [
        (SYNCHRONOUS, 0),
        pytest.param(SYNCHRONOUS, 1, marks=pytest.mark.long),
        *(pytest.param((*A3C, "--actors", "2"), victim, marks=pytest.mark.long) for victim in (0, 1)),
    ],
    ids=["learner 0", "learner 1", "a3c, learner 0", "a3c, learner 1"],
)
def test_a_killed_learner_ends_the_job_which_goes_on_from_its_checkpoint(
    words: tuple[str, ...], victim: int, tmp_path: Path
) -> None:
    with TrainingRun(tmp_path, *words, *UNTIL_STOPPED) as job:
        job.wait_for(job.checkpoints, "a checkpoint")
        ranks = job.wait_for_records(2)
        os.kill(ranks[victim], signal.SIGKILL)
        assert job.finish(limit_s=45.0) != 0, job.output
        assert f"accel train --resume {job.path}" in job.output and not (job.path / "summary.json").exists()
        assert "Traceback" not in job.output, job.output
        assert job.leaves_no_rank(list(ranks.values()))
    assert resume_here(job.path).env_steps > 3000


@pytest.mark.long
@pytest.mark.learning
@pytest.mark.parametrize(
    ("words", "goal", "steps"), [(A3C, 200, 200_000), (GORILA, 100, 40_000)], ids=["a3c", "gorila"]
)
def test_two_asynchronous_learners_with_int8_actors_learn_cartpole(
    words: tuple[str, ...], goal: int, steps: int, tmp_path: Path
) -> None:
    """From every unroll once, or from replays of their own."""
    limits = ("--actors", "2", "--stop-at-return", str(goal), "--stop-window", "10", "--total-env-steps", str(steps))
    with TrainingRun(tmp_path, *words, *limits) as job:
        assert job.finish() == 0, job.output
        summary = job.summary()
        assert summary.return_mean is not None and summary.return_mean >= goal, job.output
        assert job.mostly_acted_with("int8") and summary.actors == 2 and summary.dead_actors == 0
        # What learner 1 tells with its last message is counted, and no longer learned from: an unroll of its actor.
        assert summary.updates_owed <= 64 < summary.updates, "the ratio holds over both learners"
        assert any(row["gradient_lag_mean"] is not None for row in job.records()), "learner 1 sent no gradient"


@pytest.mark.long
def test_an_asynchronous_learner_that_pauses_keeps_no_other_waiting_and_a_signal_stops_both(tmp_path: Path) -> None:
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
