"""``load_run``: what was saved comes back, and whatever is wrong is one clear message."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from accel.compressors.errors import CalibrationError, SchemeError
from accel.errors import CheckpointError, ConfigError, EnvError
from accel.runs.loading import load_run
from tests.accel.runs.trained_runs import ENV_STEPS, VERSION, make_network, make_run


def test_a_run_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path, env="CartPole-v1", network="mlp:16x2"))
    assert (run.env_steps, run.version, run.config.policy.network) == (ENV_STEPS, VERSION, "mlp:16x2")
    fresh = make_network(run.config, run.spec).acting_module()
    observations = torch.randn(5, 4)
    assert torch.equal(run.policy(observations)[0], fresh(observations)[0])
    assert not any(parameter.requires_grad for parameter in run.policy.parameters())


def test_artifacts_of_a_run_carry_its_version_and_action_space(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path, env="Pendulum-v1", network="mlp:16x1+lstm:8"))
    artifact = run.compress("fp32")
    assert (artifact.scheme, artifact.version) == ("fp32", VERSION)
    assert [spec.name for spec in artifact.inputs] == ["observations", "state_0", "state_1"]
    assert artifact.metadata["action"] == run.spec.action.to_json()
    with pytest.raises(CalibrationError):
        run.compress("int8")
    with pytest.raises(SchemeError, match="choose from"):
        run.compress("int3")


def test_a_run_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        load_run(make_run(tmp_path, checkpoint=False))


def test_a_configuration_of_another_version_says_which_option(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    with (path / "config.toml").open("a") as file:
        file.write("\nfrobnicate = 3\n")
    with pytest.raises(ConfigError, match="frobnicate"):
        load_run(path)


@pytest.mark.parametrize("counters", [{"spec": None}, {"spec": {"kind": "?"}}, {"version": None}])
def test_a_checkpoint_without_the_layout_is_refused(tmp_path: Path, counters: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match="another version of accel"):
        load_run(make_run(tmp_path, counters=counters))


def test_another_environment_under_the_same_name_is_refused(tmp_path: Path) -> None:
    path = make_run(tmp_path, env="tests.environments:ClosedForm-v0")
    text = (path / "config.toml").read_text().replace("env_arg = []\n", "")
    (path / "config.toml").write_text(text + '\nenv_arg = ["box_actions=true"]\n')
    with pytest.raises(EnvError, match="is not the one that"):
        load_run(path).make_env(2, 0)


def test_a_run_acts_in_a_script_as_it_is_played(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path, env="CartPole-v1", network="mlp:16x2"))
    observations = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
    with torch.no_grad():
        wanted = run.policy(torch.from_numpy(observations))[0].argmax(1).numpy()
    assert set(wanted) == {0, 1}
    assert (run.act(observations) == wanted).all()
    assert [int(run.act(row)) for row in observations] == wanted.tolist()
    with gymnasium.make("CartPole-v1") as env:
        env.reset(seed=0)
        env.step(run.act(env.reset(seed=0)[0]))
    assert len({int(run.act(observations[0], greedy=False)) for _ in range(1000)}) == 2
    with pytest.raises(ConfigError, match="flatten"):
        run.act([0.0, 1.0])


def test_a_recurrent_run_keeps_its_state_until_an_episode_begins(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path, env="Pendulum-v1", network="mlp:16x1+lstm:8"))
    observation = np.array([0.5, -0.5, 1.0], np.float32)
    begun = run.act(observation, first=True)
    assert begun.shape == (1,)
    assert run.act(observation) != begun
    assert run.act(observation, first=True) == begun
