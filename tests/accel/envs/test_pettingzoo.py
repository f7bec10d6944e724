"""PettingZoo's parallel environments: agents are rows of one policy, from the first reset to the bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import accel
from accel.config import TrainConfig
from accel.envs.factory import make_vector_env
from accel.errors import EnvError
from accel.runs.loading import load_run

pytest.importorskip("pettingzoo", reason="needs the extra pettingzoo")

GUIDES = "tests.environments.agents"
BASE: dict[str, object] = {
    "env": GUIDES, "backend": "pettingzoo", "network": "mlp:16x1", "envs_per_actor": 4, "unroll_length": 12,
    "learning_rate": 1e-2, "discount": 0.0, "actors": 0, "seed": 0, "learner_threads": 1, "log_interval_s": 1e6,
    "algorithm": "ppo", "calibration_size": 64, "compressor": "int8", "total_env_steps": 30_000,
}  # fmt: skip


def test_agents_are_rows_and_one_that_is_gone_is_a_row_of_zeros() -> None:
    environment = make_vector_env(GUIDES, 2, backend="pettingzoo", seed=1)
    assert environment.num_envs == 6 and environment.spec.agents == 3 and environment.implementation == "pettingzoo"
    observations = environment.reset().copy()
    assert observations[:, 0].tolist() == [0, 1, 2, 0, 1, 2]
    for t in range(1, 7):
        right = ((observations[:, 1] + 1) / 2).astype(np.int64)
        observations, rewards, terminated, truncated = (array.copy() for array in environment.step(right))
        gone = t > 2
        assert rewards.tolist() == [1, 1, 0 if gone else 1] * 2
        if t >= 3:
            assert not observations[[2, 5]].any()
        assert terminated.tolist() == [False, False, t == 6] * 2
        assert truncated.tolist() == [t == 6, t == 6, False] * 2
    observations, rewards, terminated, truncated = environment.step(right)
    assert observations[:, 0].tolist() == [0, 1, 2, 0, 1, 2], "the row after the end is the next episode's first"
    assert not rewards.any() and not terminated.any() and not truncated.any()
    environment.close()


def test_seeds_make_episodes_equal_and_environments_differ() -> None:
    first, again = (make_vector_env(GUIDES, 3, backend="pettingzoo", seed=5).reset().copy() for _ in range(2))
    assert np.array_equal(first, again)
    assert len({tuple(rows) for rows in first[:, 1].reshape(3, 3).tolist()}) > 1


@pytest.mark.parametrize(
    ("id", "options", "message"),
    [
        (GUIDES, {"env_args": {"odd": True}}, "agents a and b have different spaces.*pad_observations_v0"),
        ("tests.environments.held", {}, "has no function 'parallel_env'.*module:function"),
        ("no_such_package.at_all", {}, "no_such_package"),
        (GUIDES, {"env_args": {"size": 3}}, "making it with arguments {'size': 3} failed"),
    ],
)
def test_what_cannot_be_shared_or_made_is_refused(id: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        make_vector_env(id, 1, backend="pettingzoo", **options)  # type: ignore[arg-type]


@pytest.mark.few(1)
@pytest.mark.learning
@pytest.mark.parametrize("mask", ["", pytest.param("observation", marks=pytest.mark.long), "info"])
def test_a_shared_policy_is_learned_with_int8_actors_and_plays(mask: str, tmp_path: Path) -> None:
    best = (6 + 6 + 2) / 3
    options = BASE | {"results_dir": tmp_path, "name": "run", "env_arg": (f"mask={mask}",)}
    options["stop_at_return"] = 0.95 * best
    summary = accel.train(TrainConfig.create(**options))
    assert summary.return_mean is not None and summary.return_mean >= 0.95 * best and summary.scheme == "int8"
    played = accel.evaluate(tmp_path / "run", scheme="int8", episodes=6)
    assert played.episodes.returns.tolist() == [6, 6, 2] * 2
    run = load_run(tmp_path / "run")
    plain, allowed = np.array([0, 1], np.float32), np.array([1, 1, 0])
    given = {"": plain, "observation": {"x": plain, "action_mask": allowed}}
    assert run.act(given.get(mask, {"observations": plain, "action_mask": allowed})) == 1
    bundle = accel.export(tmp_path / "run", tmp_path / "bundle", scheme="int8", episodes=2)
    assert accel.verify(bundle.path).scheme == bundle.contract["scheme"]


@pytest.mark.parametrize(("id", "agents"), [("classic/rps_v2", 2), ("mpe2.simple_spread_v3", 3)])
def test_a_real_environment_is_trained(id: str, agents: int, tmp_path: Path) -> None:
    options = BASE | {"env": id, "results_dir": tmp_path, "name": "run", "total_env_steps": 1500}
    summary = accel.train(TrainConfig.create(**options))
    assert summary.env_steps >= 1500 and load_run(tmp_path / "run").spec.agents == agents
