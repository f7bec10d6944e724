"""Algorithms learn under mpirun, with int8 actors; others: tests/accel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mpi.training_runs import LEARNING_LIMIT_S, TrainingRun

pytestmark = [pytest.mark.learning, pytest.mark.timeout(LEARNING_LIMIT_S + 60.0)]

CONTINUOUS = {
    "env": "Pendulum-v1", "network": "mlp:64x2", "learning_rate": 1e-3, "batch_size": 64, "samples_per_insert": 32,
    "envs_per_actor": 4, "stop_window": 16,
}  # fmt: skip
CASES: dict[str, tuple[dict[str, object], int, int]] = {
    "a2c": ({"algorithm": "a2c", "actors": 2}, 300, 400_000),
    "dppo": ({"algorithm": "dppo", "actors": 2}, 400, 300_000),
    "impact": ({"algorithm": "impact", "envs_per_actor": 8, "unroll_length": 20, "network": "mlp:64x2"}, 300, 400_000),
    "dqn": ({"algorithm": "dqn", "network": "mlp:128x2"}, 120, 150_000),
    "apex": ({"algorithm": "apex", "network": "mlp:128x2", "actors": 2}, 300, 150_000),
    # From −1200 to −300 over episodes of 200 steps, two thirds of which it takes to get up.
    "sac": ({"algorithm": "sac", **CONTINUOUS}, -300, 60_000),
    "d4pg": ({"algorithm": "d4pg", **CONTINUOUS}, -300, 60_000),
}


def words(options: dict[str, object]) -> list[str]:
    found = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        found += [f"--no-{flag}"] if value is False else [f"--{flag}", str(value)]
    return found


@pytest.mark.parametrize("case", [pytest.param(n, marks=() if n == "dqn" else pytest.mark.long) for n in CASES])
def test_it_is_learned(case: str, tmp_path: Path) -> None:
    options, goal, steps = CASES[case]
    limits = {"actors": 1, "stop_window": 20, "stop_at_return": goal, "total_env_steps": steps}
    with TrainingRun(tmp_path, *words(limits | options)) as job:
        assert job.finish(LEARNING_LIMIT_S) == 0, job.output
        summary = job.summary()
        assert summary.return_mean is not None and summary.return_mean >= goal, job.output
        assert summary.env_steps < steps and job.mostly_acted_with("int8")


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
