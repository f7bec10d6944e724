"""``--init-from``: a run begins with the layers, the normaliser and the actions of a policy, or says what differs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors.torch import save_file
from torch import Tensor

import accel
from accel.config import TrainConfig
from accel.errors import ConfigError
from accel.launch.initial_policy import options_of, read_initial_policy, start_from
from accel.learning.learner import Learner
from accel.networks.policy import PolicyNetwork
from accel.runs.loading import load_run
from tests.accel.imports.foreign_policies import Agent
from tests.accel.imports.test_import_policy import balancing_weights, linear, ppo_weights, weights_of, write_zip
from tests.accel.imports.test_programs import rsl_rl, write_onnx

SAC = {"actor.latent_pi.0": (32, 3), "actor.latent_pi.2": (32, 32), "actor.mu": (1, 32), "actor.log_std": (1, 32)}
DQN = {"q_net.q_net.0": (32, 4), "q_net.q_net.2": (16, 32), "q_net.q_net.4": (2, 16)}


class CartPoleSpaces:
    """What CleanRL's agents read of a vector environment."""

    single_observation_space, single_action_space = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)


def started(options: dict[str, Any], **others: Any) -> Learner:
    """A learner whose run started from a policy, with the options that this gives."""
    source = read_initial_policy(TrainConfig.create(**options))
    config = TrainConfig.create(**{**options_of(source), **options, **others})
    learner = Learner(config, source.spec, (0,), lambda: 1)
    start_from(source, learner)
    return learner


def outputs_of(network: PolicyNetwork, rows: Tensor) -> np.ndarray:
    with torch.no_grad():
        found: np.ndarray = network.acting_module()(rows)[0].numpy()
    return found


@pytest.mark.slow
def test_a_run_begins_with_the_return_of_the_policy_that_it_starts_from(tmp_path: Path) -> None:
    """Random actions keep the pole up for 22 steps."""
    weights = balancing_weights()
    weights["action_net.weight"] *= 8  # so that sampled actions are nearly the greedy ones
    path = write_zip(tmp_path / "ppo.zip", weights)
    options: dict[str, Any] = {"env": "CartPole-v1", "actors": 0, "device": "cpu", "results_dir": tmp_path}
    options |= {"network": "mlp:64x2", "normalise_observations": False}
    for name, source in (("first", path), ("second", tmp_path / "first")):
        brief = {"learning_rate": 1e-5, "total_env_steps": 6_000}
        summary = accel.train(TrainConfig.create(**options, **brief, name=name, init_from=source))
        assert summary.return_mean is not None and summary.return_mean > 400


@pytest.mark.slow
def test_the_command_takes_the_network_from_the_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from accel.cli.train import parse
    from accel.transport.launcher import LaunchInfo

    path = write_zip(tmp_path / "dqn.zip", weights_of(DQN))
    words = ["--preset", "quickstart", "--algorithm", "dqn", "--init-from", str(path), "--learning-rate", "1e-4"]
    config = parse(words, LaunchInfo(0, 1, 0, None)).config  # type: ignore[arg-type]
    policy = config.policy
    assert (policy.network, policy.activation, policy.normalise_observations) == ("mlp:32-16", "relu", False)
    assert config.optimiser.learning_rate == 1e-4 and policy.init_from == path


@pytest.mark.long
def test_a_run_of_the_command_ends_in_good_order(tmp_path: Path) -> None:
    """What trains is a fork of the command, which must not have used torch before."""
    path = write_zip(tmp_path / "ppo.zip", balancing_weights())
    words = ["--init-from", str(path), "--results-dir", str(tmp_path)]
    command = [sys.executable, "-m", "accel", "train", *"--env CartPole-v1 --total-env-steps 2000".split(), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "its process was ended" not in done.stdout + done.stderr, done.stderr


@pytest.mark.parametrize("duelling", [True, False])
def test_q_values_are_those_of_the_file_and_the_target_networks_too(duelling: bool, tmp_path: Path) -> None:
    weights = weights_of(DQN)
    path = write_zip(tmp_path / "dqn.zip", weights)
    learner = started({"env": "CartPole-v1", "algorithm": "dqn", "init_from": path, "duelling": duelling})
    rows = torch.randn(16, 4)
    x = rows.numpy()
    for layer in (0, 2):
        x = np.maximum(linear(weights, f"q_net.q_net.{layer}", x), 0)
    algorithm: Any = learner.algorithm
    for network in (algorithm.network, algorithm.target):
        q = algorithm.q_values(torch.from_numpy(outputs_of(network, rows)))
        np.testing.assert_allclose(q, linear(weights, "q_net.q_net.4", x), atol=1e-5)


def test_squashed_means_are_those_of_the_file(tmp_path: Path) -> None:
    weights = weights_of(SAC)
    path = write_zip(tmp_path / "sac.zip", weights)
    x = rows = np.random.default_rng(0).standard_normal((16, 3)).astype(np.float32)
    for layer in (0, 2):
        x = np.maximum(linear(weights, f"actor.latent_pi.{layer}", x), 0)
    wanted = linear(weights, "actor.mu", x)
    for algorithm in ("sac", "td3", "ppo"):
        learner = started({"env": "Pendulum-v1", "algorithm": algorithm, "init_from": path})
        assert learner.config.environment.squash_actions
        found = outputs_of(learner.algorithm.network, torch.from_numpy(rows))
        np.testing.assert_allclose(found[:, :1], wanted, atol=1e-5)
        if algorithm != "td3":
            np.testing.assert_allclose(found[:, 1], np.log(0.1), atol=1e-5)


def test_statistics_of_observations_come_along_and_move_on(tmp_path: Path) -> None:
    mean, var = np.array([1.0, -2.0, 0.5]), np.array([4.0, 0.25, 9.0])
    np.savez(tmp_path / "n.npz", mean=mean, var=var)
    path = write_zip(tmp_path / "a.zip", ppo_weights(3, 1, log_std=torch.tensor([-0.7])))
    learner = started({"env": "Pendulum-v1", "init_from": path, "init_normaliser": tmp_path / "n.npz"})
    normaliser = learner.algorithm.network.normaliser
    np.testing.assert_allclose(normaliser.variance, var, rtol=1e-4)
    normaliser.update(torch.from_numpy(mean).float().expand(10, 3))
    np.testing.assert_allclose(normaliser.mean, mean, atol=1e-5)
    np.testing.assert_allclose(normaliser.rstd, var**-0.5, rtol=1e-3)


def test_a_checkpoint_of_rsl_rl_starts_a_run_with_its_widths_and_its_own_normaliser(tmp_path: Path) -> None:
    checkpoint, _, statistics = rsl_rl("5")
    torch.save(checkpoint, tmp_path / "model_7.pt")  # noqa: TID251 - as rsl_rl does
    learner = started({"env": "Pendulum-v1", "init_from": tmp_path / "model_7.pt"})
    assert (learner.config.policy.network, learner.config.policy.activation) == ("mlp:32-16", "elu")
    normaliser = learner.algorithm.network.normaliser
    np.testing.assert_allclose(normaliser.rstd, 1 / (statistics["_std"].reshape(-1) + 0.01), rtol=1e-5)


@pytest.mark.parametrize("kind", ["onnx", "weights"])
def test_programs_and_weights_start_a_run_and_no_critic_comes_along(kind: str, tmp_path: Path) -> None:
    """Layers of every kind of program are read alike: ``test_programs``."""
    torch.manual_seed(7)
    agent, path, options = Agent(CartPoleSpaces), tmp_path / "policy", {}
    if kind == "onnx":
        write_onnx(path, agent.actor, [torch.zeros(1, 4)], ["obs"], ["logits"])
    else:
        save_file(agent.state_dict(), path)
        options = {"init_module": "tests.accel.imports.foreign_policies:Agent"}
    learner = started({"env": "CartPole-v1", "algorithm": "ppo", "init_from": path, **options})
    assert (learner.config.policy.network, learner.config.policy.activation) == ("mlp:64x2", "tanh")
    rows = torch.randn(16, 4)
    with torch.no_grad():
        np.testing.assert_allclose(outputs_of(learner.algorithm.network, rows), agent.actor(rows), atol=1e-5)
        critics = [t for t in learner.algorithm.networks.parameters() if t.shape == agent.critic[0].weight.shape]
    assert critics and not any(torch.equal(tensor, agent.critic[0].weight) for tensor in critics)


def test_a_run_gives_everything_to_a_run_of_its_algorithm_and_its_policy_to_others(tmp_path: Path) -> None:
    options = {"env": "CartPole-v1", "network": "mlp:16x1", "actors": 0, "device": "cpu", "total_env_steps": 3_000}
    accel.train(TrainConfig.create(**options, results_dir=tmp_path, name="run", passes=1))
    run = load_run(tmp_path / "run")
    learner = started({"init_from": tmp_path / "run"})
    for name, tensor in run.algorithm.networks.state_dict().items():
        assert torch.equal(learner.algorithm.networks.state_dict()[name], tensor), name
    assert learner.rewards.moments.count > 1000
    other = started({"init_from": tmp_path / "run", "algorithm": "impala"})
    rows = torch.randn(8, 4)
    np.testing.assert_array_equal(outputs_of(other.algorithm.network, rows), run.policy(rows)[0].numpy())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"network": "mlp:32x2"}, "has the layers Linear .* leave --network out"),
        ({"activation": "relu"}, "outputs differ .* activation = 'tanh'"),
        ({"normalise_observations": True}, "trained without a normaliser .* set normalise_observations = False"),
        ({"env": "Acrobot-v1"}, "trained on|fails in layer"),
        ({"algorithm": "sac", "env": "Pendulum-v1"}, "trained on|fails in layer"),
        ({"init_module": "a:b"}, "brings its own network"),
    ],
)
def test_what_does_not_fit_is_told(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_zip(tmp_path / "ppo.zip", ppo_weights(4, 2))
    with pytest.raises(ConfigError, match=message):
        started({"env": "CartPole-v1", "init_from": path, **options})
