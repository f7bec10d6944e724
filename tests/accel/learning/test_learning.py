"""It learns: every objective, corrector, kind of action and core reaches a known return within a bounded experience.

Runs in one process are deterministic, so that a threshold met once is met always on one machine; the limits leave
others several times as much experience.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import accel
from accel.config import TrainConfig
from accel.config.files import load_preset
from tests.mpi.training_runs import TrainingRun

pytestmark = pytest.mark.learning

QUICKSTART: dict[str, object] = {**load_preset("quickstart"), "total_env_steps": 1_500_000}
CARTPOLE = QUICKSTART | {"corrector": "vtrace", "publish_interval_updates": 1}
TARGETS: dict[str, object] = {
    "algorithm": "impala", "normalise_observations": False,
    "env": "tests.environments.learnable:Targets-v0", "network": "mlp:32x1", "envs_per_actor": 16, "unroll_length": 10,
    "learning_rate": 1e-2, "discount": 0.0, "entropy_cost": 0.001, "total_env_steps": 100_000,
}  # fmt: skip
BOX = TARGETS | {
    "env": "tests.environments.learnable:BoxTarget-v0", "learning_rate": 5e-3, "initial_log_std": -1.0,
}  # fmt: skip
# Unrolls that end within episodes: what is remembered must pass from one to the next.
MEMORY: dict[str, object] = {
    "algorithm": "impala", "normalise_observations": False,
    "env": "tests.environments.learnable:Memory-v0", "network": "mlp:16x1+lstm:16", "envs_per_actor": 32,
    "unroll_length": 7, "learning_rate": 1e-2, "discount": 0.95, "entropy_cost": 0.005, "total_env_steps": 60_000,
}  # fmt: skip
R2D2: dict[str, object] = {
    "env": "tests.environments.learnable:Memory-v0", "algorithm": "r2d2", "compressor": "int8", "discount": 0.95,
    "network": "mlp:24x1+lstm:32", "envs_per_actor": 16, "unroll_length": 10, "total_env_steps": 60_000,
    "learning_rate": 3e-3, "samples_per_insert": 4.0, "base_epsilon": 0.2, "target_interval_updates": 50,
}  # fmt: skip
PTR_PPO: dict[str, object] = {
    "algorithm": "ptr-ppo", "env": "CartPole-v1", "network": "mlp:64x2", "compressor": "int8", "envs_per_actor": 8,
    "unroll_length": 64, "passes": 4, "minibatches": 4, "replay_capacity": 8192, "total_env_steps": 200_000,
}  # fmt: skip
TD3: dict[str, object] = {
    "algorithm": "td3", "env": "Pendulum-v1", "network": "mlp:64x2", "batch_size": 64, "samples_per_insert": 64.0,
    "envs_per_actor": 4, "stop_window": 16, "total_env_steps": 30_000,
}  # fmt: skip

CASES: dict[str, tuple[dict[str, object], float]] = {
    "CartPole, V-trace, int8": (CARTPOLE, 300.0),
    "CartPole, half of each layer pruned": (CARTPOLE | {"compressor": "prune(0.5)+int8"}, 300.0),
    "CartPole, PTR-PPO, int8": (PTR_PPO, 300.0),
    "CartPole, qat": (QUICKSTART | {"compressor": "qat"}, 300.0),
    "CartPole, the preset": (QUICKSTART, 300.0),
    "LunarLander, the preset's first steps": (
        {**load_preset("lunarlander"), "stop_window": 50, "total_env_steps": 400_000}, -60.0,
    ),
    "HalfCheetah, the preset's first steps": (
        {**load_preset("halfcheetah"), "stop_window": 32, "total_env_steps": 300_000}, 100.0,
    ),
    "several discrete actions": (TARGETS, 9.5),
    "a set, int8": (TARGETS | {"network": "tests.accel.networks.sequence_torsos:Sets"}, 9.5),
    "attention, int8": (
        TARGETS | {"network": "tests.accel.networks.sequence_torsos:Attention", "learning_rate": 3e-3},
        9.5,
    ),
    "box": (BOX, 8.5),
    "squashed box, surrogate": (
        BOX | {"algorithm": "ppo", "passes": 4, "minibatches": 2, "squash_actions": True}, 8.5,
    ),
    "normalised observations and rewards": (
        BOX | {"normalise_observations": True, "normalise_rewards": True, "optimizer": "rmsprop"}, 8.0,
    ),
    "Pendulum, TD3, int8": (TD3, -300.0),
    "memory": (MEMORY, 0.95),
    "memory, R2D2, int8": (R2D2, 0.95),
    "memory, int8, Retrace": (MEMORY | {"compressor": "int8", "corrector": "retrace"}, 0.95),
    "memory, gru, int8": (MEMORY | {"compressor": "int8", "network": "mlp:16x1+gru:16"}, 0.95),
    "memory, transformer, int8": (
        MEMORY | {"compressor": "int8", "network": "mlp:16x1+transformer:16x1", "learning_rate": 3e-3}, 0.95,
    ),
    "memory, surrogate": (
        MEMORY | {"algorithm": "ppo", "passes": 3, "minibatches": 2, "learning_rate": 5e-3}, 0.95,
    ),
}  # fmt: skip


def train(path: Path, options: dict[str, object], goal: float) -> accel.Summary:
    fixed = {"actors": 0, "seed": 0, "learner_threads": 1, "log_interval_s": 1e6, "results_dir": path, "name": "run"}
    return accel.train(TrainConfig.create(**({"compressor": "int8"} | options | fixed | {"stop_at_return": goal})))


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CASES)
def test_it_learns(case: str, tmp_path: Path) -> None:
    options, goal = CASES[case]
    summary = train(tmp_path, options, goal)
    assert summary.return_mean is not None and summary.return_mean >= goal, summary.text()


@pytest.mark.few(2)
@pytest.mark.parametrize("algorithm", ["apex", "r2d2", "dqn"])
@pytest.mark.parametrize(
    ("env", "certain", "is_better"), [("Gamble-v0", 6.0, False), ("Bandit-v0", 10.0, False), ("Sure-v0", 11.0, True)]
)
def test_values_are_means(algorithm: str, env: str, certain: float, is_better: bool, tmp_path: Path) -> None:
    """The action of the higher mean is chosen, be the certain pay above the median of a gamble or below its prize."""
    explores = {"final_epsilon": 0.1} if algorithm == "dqn" else {"base_epsilon": 0.6}
    config = TrainConfig.create(
        algorithm=algorithm, env=f"tests.environments.learnable:{env}", actors=0, seed=0, learner_threads=1, n_step=1,
        network="mlp:32x1+lstm:16" if algorithm == "r2d2" else "mlp:32x1", learning_rate=1e-3, unroll_length=8,
        total_env_steps=30_000 if algorithm == "r2d2" else 12_000, results_dir=tmp_path, name="run", **explores,
    )  # fmt: skip
    accel.train(config)
    played = accel.evaluate(tmp_path / "run", episodes=100, seed=1).episodes
    chosen = sum(reward == certain for reward in played.returns)
    assert (chosen if is_better else 100 - chosen) > 80, played.returns


def test_without_a_memory_there_is_nothing_to_learn(tmp_path: Path) -> None:
    """That the task above needs its core: without, no return but chance."""
    summary = train(tmp_path, MEMORY | {"network": "mlp:16x1", "total_env_steps": 20_000}, 0.95)
    assert summary.return_mean is not None and 0.25 < summary.return_mean < 0.75


@pytest.mark.long
@pytest.mark.mpi
def test_int8_actors_under_mpirun_reach_the_quickstarts_return(tmp_path: Path) -> None:
    preset = ("--preset", "quickstart")
    sizes = ("--envs-per-actor", "64", "--unroll-length", "16", "--network", "mlp:64x2", "--calibration-size", "512")
    with TrainingRun(tmp_path, *preset, *sizes, "--stop-at-return", "400") as job:
        assert job.finish() == 0, job.output
        summary = job.summary()
        assert "reached 400" in summary.reason and job.mostly_acted_with("int8") and summary.actors == 1
        assert "int8" in job.output and "environment steps/s" in job.output
