"""`accel train` on real MPI ranks: asynchronous, bounded, stoppable, resumable, and honest about what it did."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

import accel
from accel.compressors.artifact import CompressedPolicy
from accel.config import TrainConfig
from accel.runs.checkpoint import CheckpointState
from accel.runs.directory import RunDirectory
from tests.environments.troubled import DIARY, SLOW_RANK, steps_taken
from tests.mpi.training_runs import ENDLESS, TrainingRun, records_of, resume_here

TROUBLED = "tests.environments.troubled:"
ROWS = 8 * 16  # of one unroll
AHEAD = 5  # unrolls: more than an actor could be ahead of another one if it had to wait for it


def checkpoint(run: Path) -> CheckpointState:
    return RunDirectory.open(run, read_only=True).load_checkpoint()


def leave_behind(taken: dict[int, int]) -> bool:
    """Whether the others took twice the steps of the slowest, and more than if they had to wait for it."""
    slowest = taken[SLOW_RANK]
    return slowest > AHEAD * ROWS and all(n > 2 * slowest for rank, n in taken.items() if rank != SLOW_RANK)


def test_three_actors_of_unequal_speed(tmp_path: Path) -> None:
    """The whole of a run at once, on more ranks than most test machines have cores."""
    words = ("--actors", "3", *ENDLESS, "--batch-unrolls", "1")
    words = (*words, "--wrapper", f"{TROUBLED}Slow", "--wrapper", f"{TROUBLED}Diary")
    with TrainingRun(tmp_path, *words, environment={DIARY: str(tmp_path)}) as job:
        job.wait_for_records(2)
        job.wait_for(lambda: leave_behind(steps_taken(tmp_path)), "leaving the slowest behind")
        job.stop()
        summary, records = job.summary(), job.records()
        # Actors import nothing of the learner's.
        reports = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("modules-*.json")}
        assert reports == {f"modules-{rank}": [] for rank in (1, 2, 3)}
        assert summary.actors == 3 and summary.dead_actors == 0
        # Counted is what was learned from: less than was stepped, for resets and unrolls under way at the end.
        assert 0 < summary.env_steps <= sum(steps_taken(tmp_path).values())
        lags = [summary.lag[f"lag_{which}"] for which in ("min", "mean", "max")]
        assert all(lag is not None for lag in lags) and lags == sorted(lags) and lags[2] > 0  # type: ignore[type-var, operator]
        assert all(r["actors_alive"] == 3 for r in records)
        met = [r for r in records if r["lag_min"] is not None]  # A record of a moment without an unroll has none.
        assert met and all(r["lag_min"] <= r["lag_mean"] <= r["lag_max"] for r in met)
        steps = [record["env_steps"] for record in records]
        assert steps == sorted(steps) and steps[-1] == summary.env_steps
        assert sum(summary.learner_s.values()) == pytest.approx(summary.training_s, rel=0.05, abs=0.05)
        assert sum(summary.actor_s.values()) < 3 * summary.wall_s
        # The directory is complete, and the user was told.
        assert {path.name.partition(".")[0] for path in job.path.iterdir() if not path.name.startswith(".")} >= {
            "config", "machine", "metrics", "events", "checkpoints", "policy", "summary",
        }  # fmt: skip
        assert job.checkpoints()[-1] == summary.env_steps == checkpoint(job.path).env_steps
        final = CompressedPolicy.from_bytes((job.path / "policy/final.accel").read_bytes())
        assert final.scheme == summary.scheme == "int8"
        for text in ("stopped on request", "policy lag", "3 actor(s), int8", f"accel train --resume {job.path}"):
            assert text in job.output, text


@pytest.mark.parametrize("algorithm", ["impala", pytest.param("a2c", marks=pytest.mark.long)])
def test_killed_actor_then_killed_learner(algorithm: str, tmp_path: Path) -> None:
    """A learner that takes one unroll of every actor waits for the living alone."""
    words = ("--algorithm", algorithm, "--actors", "2", *ENDLESS, "--checkpoint-interval-s", "0.3")
    with TrainingRun(tmp_path, *words) as job:
        ranks = job.wait_for_records(2)
        os.kill(ranks[2], signal.SIGKILL)
        job.wait_for(lambda: job.records()[-1]["actors_alive"] == 1, "noticing the dead actor")
        job.wait_for_records(2)
        job.wait_for(lambda: "actor 1 died; 1 of 2 go on" in job.output, "telling of the dead actor")
        job.wait_for(lambda: len(job.checkpoints()) >= 2, "two checkpoints")
        os.kill(ranks[0], signal.SIGKILL)
        assert job.finish() != 0
        assert job.leaves_no_rank(list(ranks.values()))
        assert "is gone" in job.output and "Traceback" not in job.output
        assert not (job.path / "summary.json").exists()
        left = job.checkpoints()[-1]
    summary = resume_here(job.path)
    steps = [record["env_steps"] for record in job.records()]
    assert summary.env_steps >= left + 3000 and steps == sorted(steps)


@pytest.mark.long
def test_a_checkpoint_is_written_when_there_is_something_new(tmp_path: Path) -> None:
    """There is no unroll."""
    words = (*ENDLESS, "--actors", "1", "--wrapper", f"{TROUBLED}HangsAtOnce", "--actor-timeout-s", "600")
    with TrainingRun(tmp_path, *words, "--checkpoint-interval-s", "0.05") as job:
        job.wait_for(lambda: len(job.records()) >= 5, "five records")
        assert job.records()[-1]["env_steps"] == 0 and not job.checkpoints()
        job.stop()
        assert not job.checkpoints() and "there is no checkpoint yet" in job.output


def test_without_fault_tolerance_a_dead_actor_ends_the_job_with_a_checkpoint(tmp_path: Path) -> None:
    words = (*ENDLESS, "--checkpoint-interval-s", "0.2")  # Its end is mpirun's, which may leave no time for one more.
    with TrainingRun(tmp_path, *words, ranks=3, fault_tolerant=False) as job:
        ranks = job.wait_for_records(2)
        job.wait_for(lambda: "ends the job when a rank or node is lost" in job.output, "saying what a lost rank means")
        job.wait_for(job.checkpoints, "a checkpoint")
        os.kill(ranks[2], signal.SIGKILL)
        assert job.finish() != 0
        assert job.leaves_no_rank(list(ranks.values()))
        left = job.checkpoints()[-1]
    assert resume_here(job.path).env_steps >= left + 3000


def test_ratios_are_taken_to_the_policy_that_really_acted(tmp_path: Path) -> None:
    """With a learning rate of nothing every version is the same policy: what is left of π/μ is the compression's."""
    config = TrainConfig.create(
        actors=0, envs_per_actor=8, unroll_length=16, network="mlp:64x2", compressor="fp32", learner_threads=1,
        algorithm="impala", normalise_observations=False, total_env_steps=1000, results_dir=tmp_path, name="run",
    )  # fmt: skip
    accel.train(config)
    with RunDirectory.open(tmp_path / "run") as run:
        state = run.load_checkpoint()
        for name, tensor in state.tensors.items():
            # A policy that tells observations apart, and not linearly: otherwise no scheme is far from it.
            tensor.mul_(200.0 if "policy_head" in name else 6.0 if "network.torso" in name else 1.0)
        run.save_checkpoint(state)
    found = {}
    still = config.replace(learning_rate=1e-30, max_publish_kl=None, envs_per_actor=32, unroll_length=32)
    for scheme in ("fp32", "int4"):
        total = checkpoint(tmp_path / "run").env_steps + 30_000
        accel.train(still.replace(compressor=scheme, total_env_steps=total), resume=tmp_path / "run")
        found[scheme] = [row for row in records_of(tmp_path / "run") if row.get("behaviour_kl") is not None][-1]
        assert found[scheme]["scheme"] == scheme
    exact, ruined = found["fp32"], found["int4"]
    assert abs(exact["behaviour_kl"]) < 1e-4 and abs(exact["rho_mean"] - 1) < 1e-3 and exact["rho_clipped"] < 0.005
    # a sampled mean over one batch: fifty times what is allowed of the exact one
    assert ruined["behaviour_kl"] > 0.005 and ruined["rho_clipped"] > 0.01, ruined
