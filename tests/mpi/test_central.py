"""Central inference as a user starts it: actors that ask one rank, which may die as they may."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.mpi.training_runs import ENDLESS, LEARNING_LIMIT_S, TrainingRun, resume_here

SEED = ("--algorithm", "seed", "--compressor", "int8", "--actors", "2")
UNTIL_STOPPED = (*ENDLESS, "--checkpoint-interval-s", "0.2")
INFERENCE, LAST = 1, 3


@pytest.mark.learning
@pytest.mark.timeout(LEARNING_LIMIT_S + 60.0)
@pytest.mark.parametrize(
    ("algorithm", "acts"),
    [
        ("seed", "int8"),
        pytest.param("seed", "torch", marks=pytest.mark.long),
        pytest.param("ga3c", "int8", marks=pytest.mark.long),
    ],
)
def test_actors_that_only_step_environments_learn(algorithm: str, acts: str, tmp_path: Path) -> None:
    limits = ("--stop-at-return", "100", "--stop-window", "20", "--total-env-steps", "200000")
    network = ("--network", "mlp:64x2", "--unroll-length", "20")
    how = ("--actor-runtime", "torch", "--compressor", "fp32") if acts == "torch" else SEED[2:4]
    with TrainingRun(tmp_path, "--algorithm", algorithm, *how, "--actors", "2", *network, *limits) as job:
        assert job.finish(LEARNING_LIMIT_S) == 0, job.output
        summary = job.summary()
        assert summary.return_mean is not None and summary.return_mean >= 100.0, job.output
        assert job.mostly_acted_with("fp32" if acts == "torch" else "int8")
        assert (summary.actor_runtime == "torch on cpu, central") == (acts == "torch")
        assert summary.actors == 2 and summary.dead_actors == 0


@pytest.mark.long
def test_an_actor_killed_while_it_asks_is_replaced(tmp_path: Path) -> None:
    with TrainingRun(tmp_path, *SEED, *UNTIL_STOPPED) as job:
        job.wait_for_records(2)
        for _ in range(2):
            before = job.records()[-1]["actor_restarts"]
            os.kill(job.children()[LAST], signal.SIGKILL)
            job.wait_for(lambda: job.records()[-1]["actor_restarts"] > before, "replacing the process")  # noqa: B023
        job.wait_for_records(2)
        assert job.records()[-1]["actors_alive"] == 2
        job.stop()


def test_a_killed_inference_rank_ends_the_job_which_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    with TrainingRun(tmp_path, *SEED, *UNTIL_STOPPED) as job:
        job.wait_for(job.checkpoints, "a checkpoint")
        ranks = job.wait_for_records(2)
        assert sorted(ranks) == [0, INFERENCE, 2, LAST] and sorted(job.children()) == [2, LAST]
        steps = job.records()[-1]["env_steps"]
        os.kill(ranks[INFERENCE], signal.SIGKILL)
        assert job.finish() != 0, job.output
        assert "the inference rank is gone" in job.output and "Traceback" not in job.output, job.output
        assert job.checkpoints()[-1] >= steps, "what was learned last is kept"
        assert job.leaves_no_rank(list(ranks.values()))
    assert resume_here(job.path).env_steps > 3000


@pytest.mark.long
def test_an_inference_rank_that_hangs_ends_the_job(tmp_path: Path) -> None:
    with TrainingRun(tmp_path, *SEED, *UNTIL_STOPPED) as job:
        ranks = job.wait_for_records(2)
        os.kill(ranks[INFERENCE], signal.SIGSTOP)
        assert job.finish(60.0) != 0, job.output
        assert "the inference rank gives no sign of life" in job.output, job.output
        assert job.leaves_no_rank(list(ranks.values()))


@pytest.mark.long
def test_every_learner_has_an_inference_rank_of_its_own(tmp_path: Path) -> None:
    words = (*SEED, "--learners", "2", "--total-env-steps", "3000")
    with TrainingRun(tmp_path, *words) as job:
        assert job.finish() == 0, job.output
        assert job.summary().env_steps >= 3000
