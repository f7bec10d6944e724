"""IMPACT, DQN and an algorithm from outside learn CartPole under mpirun, with actors that run int8 policies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import accel
from accel.config import TrainConfig
from tests.contracts.page_algorithm import code
from tests.contracts.ranks import ROOT
from tests.mpi.training_runs import TrainingRun

pytestmark = [pytest.mark.mpi, pytest.mark.learning]

IMPACT = {"algorithm": "impact", "envs_per_actor": 8, "unroll_length": 20, "network": "mlp:64x2"}
DQN = {
    "algorithm": "dqn", "envs_per_actor": 8, "unroll_length": 8, "network": "mlp:128x2", "activation": "relu",
    "reward_scale": 0.1, "learning_rate": 1e-3, "samples_per_insert": 16, "batch_size": 64,
    "target_interval_updates": 50, "publish_interval_updates": 32, "exploration_env_steps": 6000,
    "final_epsilon": 0.02,
}  # fmt: skip
A2C = {"algorithm": "a2c:factory", "envs_per_actor": 8, "unroll_length": 20, "network": "mlp:64x2"}


def words(options: dict[str, object]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@pytest.mark.parametrize(
    ("options", "reward", "steps"), [(IMPACT, 400, 400_000), (DQN, 300, 150_000), (A2C, 300, 400_000)],
    ids=["impact", "dqn", "a2c, of the page"],
)  # fmt: skip
def test_cartpole_is_learned(options: dict[str, object], reward: int, steps: int, tmp_path: Path) -> None:
    (tmp_path / "a2c.py").write_text(code())
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    limits = {"stop_at_return": reward, "stop_window": 20, "total_env_steps": steps, "compressor": "int8", "actors": 1}
    with TrainingRun(tmp_path, *words(options | limits), environment={"PYTHONPATH": path}) as job:
        assert job.finish() == 0, job.output
        summary = job.summary()
        assert summary.return_mean is not None and summary.return_mean >= reward, job.output
        assert summary.env_steps < steps and summary.scheme == "int8"


def test_the_pages_algorithm_learns_in_one_process(tmp_path: Path) -> None:
    config = TrainConfig.create(
        algorithm="tests.contracts.page_algorithm:factory", algorithm_arg=("entropy_cost=0.02",), actors=0, seed=1,
        total_env_steps=200_000, stop_at_return=200, stop_window=20, results_dir=tmp_path, name="run",
        learner_threads=1,
    )  # fmt: skip
    summary = accel.train(config)
    assert summary.return_mean is not None and summary.return_mean >= 200 and summary.env_steps < 200_000
