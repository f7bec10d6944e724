"""Several learners in one job, as a user starts them: one run, whose end is everybody's."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import accel
from accel.config import TrainConfig
from accel.config.files import load_toml
from accel.runs.directory import RunDirectory
from tests.mpi.training_runs import ENDLESS, TrainingRun

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux, whose /proc tells ranks apart"),
]
WORDS = ("--learners", "2", "--actors", "3", "--checkpoint-interval-s", "0.2", "--normalise-observations")


def resume_alone(run: Path, more_env_steps: int = 3000) -> accel.Summary:
    """Go on with a run of several learners in this process."""
    config = TrainConfig.create(**load_toml(run / "config.toml"))
    total = RunDirectory.open(run, read_only=True).load_checkpoint().env_steps + more_env_steps
    return accel.train(config.replace(actors=0, learners=1, total_env_steps=total, name="run"), resume=run)


def test_two_learners_share_three_actors_and_stop_on_request(tmp_path: Path) -> None:
    with TrainingRun(tmp_path, *WORDS, *ENDLESS) as job:
        ranks = job.wait_for_records(3)
        assert sorted(ranks) == [0, 1, 2, 3, 4]
        job.wait_for(lambda: job.records()[-1]["updates"] > 0, "an update")
        job.stop()
        summary, last = job.summary(), job.records()[-1]
        assert summary.reason == "stopped on request" and summary.dead_actors == 0 and summary.updates > 0
        assert last["actors_alive"] == 3
        # Every update learns from three unrolls, whose resets do not count; what is left over waited for its batch.
        assert 0.8 * summary.updates <= summary.env_steps / (3 * 8 * 16) <= summary.updates + 2
        assert job.leaves_no_rank(list(ranks.values()))


@pytest.mark.long
def test_the_first_ranks_of_an_mpirun_of_ones_own_learn(tmp_path: Path) -> None:
    words = ("--learners", "2", "--total-env-steps", "3000", "--algorithm", "ppo", "--minibatches", "2")
    with TrainingRun(tmp_path, *words, ranks=4) as job:
        assert job.finish() == 0, job.output
        assert job.summary().env_steps >= 3000 and job.summary().actors == 2


@pytest.mark.long
def test_too_few_ranks_for_the_learners_is_an_error_of_all(tmp_path: Path) -> None:
    with TrainingRun(tmp_path, "--learners", "2", "--actors", "2", ranks=3) as job:
        assert job.finish() != 0
        assert "too few ranks: 3 for 2 learner(s)" in job.output or "start 4 ranks" in job.output, job.output


@pytest.mark.few(1)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_learner_ends_the_job_which_goes_on_from_its_checkpoint(victim: int, tmp_path: Path) -> None:
    with TrainingRun(tmp_path, *WORDS, *ENDLESS) as job:
        job.wait_for(job.checkpoints, "a checkpoint")
        ranks = job.wait_for_records(2)
        os.kill(ranks[victim], signal.SIGKILL)
        assert job.finish(limit_s=45.0) != 0, job.output
        assert f"accel train --resume {job.path}" in job.output and not (job.path / "summary.json").exists()
        assert "Traceback" not in job.output, job.output
        assert job.leaves_no_rank(list(ranks.values()))
    summary = resume_alone(tmp_path / "run")
    assert summary.env_steps > 3000


@pytest.mark.long
def test_an_environment_that_fails_on_one_learner_ends_all_with_its_message(tmp_path: Path) -> None:
    with TrainingRun(tmp_path, *WORDS, "--env", "NoSuchEnvironment-v0") as job:
        assert job.finish() != 0
        assert "NoSuchEnvironment" in job.output and "Traceback" not in job.output, job.output
