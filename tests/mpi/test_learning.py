"""Algorithms of the package, and one from outside, learn under mpirun, with int8 actors; others: tests/accel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import accel
from accel.config import TrainConfig
from tests.contracts.page_algorithm import code
from tests.contracts.ranks import ROOT
from tests.mpi.training_runs import LEARNING_LIMIT_S, TrainingRun

pytestmark = [pytest.mark.learning, pytest.mark.timeout(LEARNING_LIMIT_S + 60.0)]

IMPACT = {"algorithm": "impact", "envs_per_actor": 8, "unroll_length": 20, "network": "mlp:64x2"}
DQN = {"algorithm": "dqn", "network": "mlp:128x2"}
APEX = {"algorithm": "apex", "network": "mlp:128x2"}
A2C = {"algorithm": "a2c"}
DPPO = {"algorithm": "dppo"}
CONTINUOUS = {
    "network": "mlp:64x2",
    "learning_rate": 1e-3,
    "batch_size": 64,
    "samples_per_insert": 32,
    "envs_per_actor": 4,
}
SAC = {"algorithm": "sac", **CONTINUOUS}
D4PG = {"algorithm": "d4pg", **CONTINUOUS}
PAGE = {"algorithm": "a2c:factory", "envs_per_actor": 8, "unroll_length": 20, "network": "mlp:64x2"}


def words(options: dict[str, object]) -> list[str]:
    found = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        found += [f"--no-{flag}"] if value is False else [f"--{flag}", str(value)]
    return found


@pytest.mark.parametrize(
    ("options", "reward", "steps", "actors"),
    [pytest.param(A2C, 300, 400_000, 2, marks=pytest.mark.long),
     pytest.param(DPPO, 400, 300_000, 2, marks=pytest.mark.long),
     pytest.param(IMPACT, 300, 400_000, 1, marks=pytest.mark.long),
     (DQN, 120, 150_000, 1),
     pytest.param(APEX, 300, 150_000, 2, marks=pytest.mark.long),
     pytest.param(PAGE, 300, 400_000, 1, marks=pytest.mark.long)],
    ids=["a2c", "dppo", "impact", "dqn", "apex", "of the page"],
)  # fmt: skip
def test_cartpole_is_learned(options: dict[str, object], reward: int, steps: int, actors: int, tmp_path: Path) -> None:
    (tmp_path / "a2c.py").write_text(code())
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    limits = {"stop_at_return": reward, "stop_window": 20, "total_env_steps": steps, "actors": actors}
    with TrainingRun(tmp_path, *words(options | limits), environment={"PYTHONPATH": path}) as job:
        assert job.finish(LEARNING_LIMIT_S) == 0, job.output
        summary = job.summary()
        assert summary.return_mean is not None and summary.return_mean >= reward, job.output
        assert summary.env_steps < steps and job.mostly_acted_with("int8")


@pytest.mark.parametrize(
    "options",
    [pytest.param(SAC, id="sac", marks=pytest.mark.long), pytest.param(D4PG, id="d4pg", marks=pytest.mark.long)],
)
def test_a_pendulum_is_swung_up(options: dict[str, object], tmp_path: Path) -> None:
    """From −1200 to −300 over episodes of 200 steps, two thirds of which it takes to get up."""
    limits = {"env": "Pendulum-v1", "stop_at_return": -300, "stop_window": 16, "total_env_steps": 60_000, "actors": 1}
    with TrainingRun(tmp_path, *words(options | limits)) as job:
        assert job.finish(LEARNING_LIMIT_S) == 0, job.output
        summary = job.summary()
        assert summary.return_mean is not None and summary.return_mean >= -300, job.output
        assert summary.env_steps < 60_000 and job.mostly_acted_with("int8")


def test_one_policy_learns_two_tasks_whose_returns_are_told_apart(tmp_path: Path) -> None:
    """Half of the actors are paid twice as much for the same: 10 and 20 at best, 10/3 and 20/3 at random.

    Ends at its steps: which task's episodes the mean over both counts, depends on which actor is faster at the time.
    """
    tasks = {"env": "tests.environments.learnable:Targets-v0", "task": "tests.environments.learnable:RichTargets-v0"}
    options = {"algorithm": "impala", "normalise_observations": False, "compressor": "int8", "network": "mlp:32x1",
               "envs_per_actor": 16, "unroll_length": 10, "learning_rate": 1e-2, "discount": 0.0, "actors": 2,
               "entropy_cost": 0.001, "total_env_steps": 80_000}  # fmt: skip
    with TrainingRun(tmp_path, *words(tasks | options)) as job:
        assert job.finish() == 0, job.output
        last = job.records()[-1]
    poor, rich = (float(str(last[f"return_mean/{task}"])) for task in tasks.values())
    assert 8.0 < poor <= 10.0 and 16.0 < rich <= 20.0, (poor, rich)


def test_the_pages_algorithm_learns_in_one_process(tmp_path: Path) -> None:
    config = TrainConfig.create(
        algorithm="tests.contracts.page_algorithm:factory", algorithm_arg=("entropy_cost=0.02",), actors=0, seed=1,
        total_env_steps=200_000, stop_at_return=200, stop_window=20, results_dir=tmp_path, name="run",
        learner_threads=1,
    )  # fmt: skip
    summary = accel.train(config)
    assert summary.return_mean is not None and summary.return_mean >= 200 and summary.env_steps < 200_000
