"""From training to a bundle: a policy that has really learnt, its returns, and the gate on them."""

from __future__ import annotations

from pathlib import Path

import pytest

import accel
from accel.config import TrainConfig
from accel.launch.train import train

SOLVED = 400.0


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CartPole-v1 after a few seconds in one process."""
    values = {"env": "CartPole-v1", "algorithm": "ppo", "compressor": "int8", "actors": 0, "seed": 1}
    runs = tmp_path_factory.mktemp("runs")
    return Path(train(TrainConfig.create(**values, total_env_steps=60_000, results_dir=runs, name="cartpole")).path)


@pytest.mark.learning
def test_a_trained_policy_keeps_its_return_in_int8(trained: Path) -> None:
    result = accel.evaluate(trained, scheme="int8", episodes=16, baseline=True)
    assert result.mean is not None and result.mean.estimate > SOLVED
    assert result.difference is not None and result.difference.high > -50
    final = accel.evaluate(trained, artifact=trained / "policy" / "final.accel", episodes=16)
    assert final.scheme == "int8" and final.mean is not None and final.mean.estimate > SOLVED


@pytest.mark.learning
def test_the_gate_on_returns_lets_a_good_policy_pass(trained: Path, tmp_path: Path) -> None:
    bundle = accel.export(trained, tmp_path / "int8", scheme="int8", episodes=16, max_return_loss=0.1)
    returns = bundle.report["returns"]
    assert returns["fp32"]["mean"] > SOLVED and returns["loss"] <= 0.1
