"""Bundles of every rule of acting: what they do is what the trained policy does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import accel
from accel.compressors.checks.verify import relative_error
from accel.config import TrainConfig
from accel.exporting import run_policy

CASES: dict[str, dict[str, object]] = {
    "dqn": {"algorithm": "dqn", "env": "CartPole-v1"},
    "dqn, plain": {"algorithm": "dqn", "env": "CartPole-v1", "duelling": False},
    "apex": {"algorithm": "apex", "env": "CartPole-v1"},
    "r2d2": {"algorithm": "r2d2", "env": "CartPole-v1", "network": "mlp:8x1+lstm:4"},
    "d4pg": {"algorithm": "d4pg", "env": "Pendulum-v1"},
    "sac": {"algorithm": "sac", "env": "Pendulum-v1"},
}


def train(name: str, directory: Path) -> Path:
    """A run of a few steps, in which nothing is learned."""
    options = {"network": "mlp:8x1", **CASES[name]}
    config = TrainConfig.create(
        **options, actors=0, envs_per_actor=4, total_env_steps=128, learning_starts=64, replay_capacity=1000,
        samples_per_insert=4.0, results_dir=directory, name="run", learner_threads=1, compressor="fp32",
        calibration_size=32,
    )  # fmt: skip
    return Path(accel.train(config).path)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", CASES)
def test_a_bundle_acts_as_the_trained_policy(name: str, tmp_path: Path) -> None:
    run = train(name, tmp_path)
    bundle = accel.export(run, tmp_path / "bundle", scheme="fp32", episodes=2)
    run_policy.verify(bundle.path)
    action, outputs = bundle.contract["action"], bundle.contract["outputs"][0]["shape"][1]
    greedy, noisy = run_policy.Policy(bundle.path), run_policy.Policy(bundle.path, sample=True, seed=1)
    observation = {
        spec["name"]: np.full(spec["shape"][1:], 0.3, spec["dtype"]) for spec in bundle.contract["inputs"][:1]
    }
    chosen, params = greedy.act(observation, first=True)
    sampled = np.array([noisy.act(observation, first=True)[0] for _ in range(400)])
    if name in {"d4pg", "sac"}:
        assert outputs == (1 if name == "d4pg" else 2)
        assert float(chosen[0]) == pytest.approx(2.0 * float(np.tanh(params[0])), rel=1e-5)
        assert np.abs(sampled).max() <= 2.0
        if name == "d4pg":
            assert np.std(sampled) == pytest.approx(0.3 * 2.0, rel=0.15)
            assert np.mean(sampled) == pytest.approx(float(chosen[0]), abs=0.15)
        else:
            inside = np.arctanh(sampled[:, 0] / 2.0 * 0.999999)
            assert np.std(inside) == pytest.approx(float(np.exp(params[1])), rel=0.15)
    else:
        assert outputs == 2 + (name != "dqn, plain") and int(chosen) == int(params[:2].argmax())
        epsilon = action["sampling"]["epsilon"]
        assert np.mean(sampled != chosen) == pytest.approx(epsilon / 2, abs=0.04) and 0 < epsilon < 0.1
    noise = {"rule": "gaussian-noise", "noise": 0.1}
    for wrong in (noise | {"noise": 5.0} if name == "d4pg" else noise, {"rule": "none"}):
        with pytest.raises(ValueError, match=r"output|rule|noise"):
            run_policy.check_contract({**bundle.contract, "action": {**action, "sampling": wrong}})
    layers = ",".join(f"torso.{i}.block.{j}.convolution=int8" for i in range(10) for j in range(6))
    run_policy.check_contract({**bundle.contract, "scheme": f"int8({layers})"})
    with pytest.raises(ValueError, match="scheme"):
        run_policy.check_contract({**bundle.contract, "scheme": f"int8({40 * layers})"})


@pytest.mark.parametrize("shape", [(1, 3), (16, 1), (16, 5)])
def test_a_mismatch_is_relative_to_the_spread_and_of_constant_outputs_to_their_size(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(2.0, 3.0, shape).astype(np.float32)
    constant = np.broadcast_to(values[:1], shape).copy()
    for wanted in (values, constant, np.zeros(shape, np.float32)):
        found = np.nextafter(wanted, np.float32(np.inf))
        relative, greatest = run_policy.mismatch(found, wanted)
        assert relative == pytest.approx(relative_error(found, wanted)) and relative < 1e-6
        assert greatest == np.abs(found.astype(np.float64) - wanted).max()
    masked = np.concatenate([values, np.full(shape, -1e9, np.float32)], axis=1)
    assert run_policy.spread(masked) < 10.0
