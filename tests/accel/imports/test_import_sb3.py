"""What a file of Stable-Baselines3 says of its policy in plain text is heeded: its class, its spaces, VecNormalize."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from accel.config import TrainConfig
from accel.errors import CheckpointError, ConfigError
from accel.exporting import run_policy
from accel.exporting.build import export
from accel.imports.policy import import_policy
from tests.accel.imports.test_import_policy import (
    HERE,
    linear,
    ppo_outputs,
    ppo_weights,
    refuses,
    weights_of,
    write_zip,
)

CARTPOLE, PENDULUM = TrainConfig.create(env="CartPole-v1"), TrainConfig.create(env="Pendulum-v1")
CONTRIB = "sb3_contrib.{}.policies"


def policy_class(module: str, name: str = "Policy") -> dict[str, str]:
    return {":type:": "<class 'abc.ABCMeta'>", "__module__": module, "__init__": f"<function {name}.__init__ at 0x7f>"}


def box(shape: str, low: str, high: str) -> dict[str, str]:
    return {":type:": "<class 'gymnasium.spaces.box.Box'>", "shape": shape, "low": low, "high": high}


def discrete(n: int) -> dict[str, str]:
    return {":type:": "<class 'gymnasium.spaces.discrete.Discrete'>", "n": str(n), "start": "0"}


def relu_net(weights: dict[str, Tensor], prefix: str, x: np.ndarray) -> np.ndarray:
    return linear(weights, f"{prefix}.2", np.maximum(linear(weights, f"{prefix}.0", x), 0))


def test_a_policy_of_another_class_is_refused_though_its_layers_fit(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", ppo_weights(4, 2), policy_class=policy_class("__main__"))
    refuses(r"its policy is a class of its own.*--module", path, CARTPOLE)
    sb3 = policy_class("stable_baselines3.common.policies")
    kinds = [f"<class '{name}'>" for name in ("stable_baselines3.common.torch_layers.FlattenExtractor", "__main__.Own")]
    path, own = (
        write_zip(tmp_path / name, ppo_weights(4, 2), {"features_extractor_class": kind}, policy_class=sb3)
        for name, kind in zip(("a.zip", "own.zip"), kinds, strict=True)
    )
    refuses(r"features extractor is a class of its own.*__main__\.Own", own, CARTPOLE)
    assert import_policy(path, CARTPOLE).architecture.startswith("PPO or A2C")


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        (
            {"action_space": box("[4]", "[-1. -1. -1. -1.]", "[1. 1. 1. 1.]")},
            r"actions Box \(4,\), and .* Discrete \(2,\)",
        ),
        ({"action_space": discrete(3)}, r"actions Discrete \(3,\), and .* has Discrete \(2,\)"),
        ({"observation_space": box("[6]", "[-1.]", "[1.]")}, r"observations of shape \(6,\), and .* has \(4,\)"),
    ],
)
def test_spaces_of_another_environment_are_refused(spaces: dict[str, Any], message: str, tmp_path: Path) -> None:
    refuses(message, write_zip(tmp_path / "a.zip", ppo_weights(4, 2), **spaces), CARTPOLE)


def test_bounds_of_actions_are_compared_where_the_file_has_them_all(tmp_path: Path) -> None:
    for low, high in (("[-2.]", "[2.]"), ("[-1. ... -1.]", "[1. ... 1.]")):
        path = write_zip(tmp_path / "a.zip", ppo_weights(3, 1), action_space=box("[1]", low, high))
        import_policy(path, PENDULUM)
    path = write_zip(tmp_path / "a.zip", ppo_weights(3, 1), action_space=box("[1]", "[-1.]", "[1.]"))
    refuses(r"trained with actions in \[\[-1\.\], \[1\.\]\]", path, PENDULUM)


def test_actions_that_do_not_begin_with_zero_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="numbers its actions from 2"):
        import_policy(write_zip(tmp_path / "a.zip", ppo_weights(4, 2)), CARTPOLE.replace(wrapper=(f"{HERE}:from_two",)))


def test_a_forgotten_normaliser_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen = {":type:": "<class 'numpy.ndarray'>"}
    path = write_zip(tmp_path / "a.zip", ppo_weights(4, 2), _last_original_obs=seen)
    with caplog.at_level(logging.WARNING):
        import_policy(path, CARTPOLE)
        assert "was trained with VecNormalize" in caplog.text
        caplog.clear()
        import_policy(write_zip(tmp_path / "b.zip", ppo_weights(4, 2), _last_original_obs=None), CARTPOLE)
        np.savez(tmp_path / "n.npz", mean=np.zeros(4), var=np.ones(4))
        import_policy(path, CARTPOLE, normaliser=tmp_path / "n.npz")
        dqn = weights_of({"q_net.q_net.0": (32, 4), "q_net.q_net.2": (2, 32)})
        import_policy(write_zip(tmp_path / "d.zip", dqn, _last_original_obs=seen), CARTPOLE)  # which always has them
    assert not caplog.text


def test_quantiles_are_averaged(tmp_path: Path) -> None:
    weights = weights_of({"quantile_net.quantile_net.0": (32, 4), "quantile_net.quantile_net.2": (2 * 5, 32)})
    home = policy_class(CONTRIB.format("qrdqn"))
    policy = import_policy(write_zip(tmp_path / "a.zip", weights, {"n_quantiles": 5}, policy_class=home), CARTPOLE)
    x = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
    values = relu_net(weights, "quantile_net.quantile_net", x).reshape(64, 5, 2).mean(axis=1)
    assert (policy.act(x) == values.argmax(axis=1)).all() and len(set(values.argmax(axis=1).tolist())) == 2
    with pytest.raises(CheckpointError, match="10 outputs, no multiple of 3 quantiles"):
        import_policy(write_zip(tmp_path / "a.zip", weights, {"n_quantiles": 3}, policy_class=home), CARTPOLE)


@pytest.mark.parametrize(
    ("name", "options", "squashes"),
    [("ARSPolicy", {}, True), ("ARSPolicy", {"squash_output": False}, False), ("ARSLinearPolicy", {}, False)],
)
def test_ars_ends_in_tanh_as_its_class_does(
    name: str, options: dict[str, bool], squashes: bool, tmp_path: Path
) -> None:
    weights = weights_of({"action_net.0": (16, 3), "action_net.2": (1, 16)})
    described = {"policy_class": policy_class(CONTRIB.format("ars"), name), "action_space": box("[1]", "[-2.]", "[2.]")}
    policy = import_policy(write_zip(tmp_path / "a.zip", weights, options, **described), PENDULUM)
    x = np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32)
    outputs = relu_net(weights, "action_net", x)
    wanted = 2 * np.tanh(outputs) if squashes else np.clip(outputs, -2, 2)
    assert np.allclose(policy.act(x), wanted, atol=1e-5)


@pytest.mark.parametrize("hidden", [True, False])
def test_sac_with_state_dependent_noise_keeps_its_clamp(hidden: bool, tmp_path: Path) -> None:
    sizes = {"actor.latent_pi.0": (32, 3), "actor.mu.0": (1, 32)} if hidden else {"actor.mu.0": (1, 3)}
    weights = {name: 4 * tensor for name, tensor in weights_of(sizes).items()}
    described = {"policy_class": policy_class("stable_baselines3.sac.policies"), "use_sde": True}
    path = write_zip(tmp_path / "a.zip", weights | {"actor.log_std": torch.zeros(32, 1)}, {}, **described)
    x = np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32)
    features = np.maximum(linear(weights, "actor.latent_pi.0", x), 0) if hidden else x
    means = linear(weights, "actor.mu.0", features)
    assert np.abs(means).max() > 2.5
    assert np.allclose(import_policy(path, PENDULUM).act(x), 2 * np.tanh(np.clip(means, -2, 2)), atol=1e-5)


@pytest.mark.parametrize("of_dict", [False, True], ids=["one array", "a Dict"])
def test_a_recurrent_ppo_keeps_its_lstms_state(of_dict: bool, tmp_path: Path) -> None:
    torch.manual_seed(3)
    lstm, critic = nn.LSTM(4, 16), nn.LSTM(4, 16)
    weights = weights_of({"mlp_extractor.policy_net.0": (8, 16), "mlp_extractor.value_net.0": (8, 16)})
    weights |= weights_of({"action_net": (2, 8), "value_net": (1, 8)})
    for name, module in (("lstm_actor", lstm), ("lstm_critic", critic)):
        weights |= {f"{name}.{part}": tensor for part, tensor in module.state_dict().items()}
    described = {"policy_class": policy_class("sb3_contrib.common.recurrent.policies")}
    config = CARTPOLE
    if of_dict:
        described["observation_space"] = dict_space("goal", "joints")
        config = CARTPOLE.replace(wrapper=(f"{HERE}:in_parts",))
    policy = import_policy(write_zip(tmp_path / "a.zip", weights, **described), config).policy
    assert policy.state_shapes == ((16,), (16,))
    rows = torch.randn(6, 3, 4)
    hidden = lstm(rows)[0].detach().numpy()
    wanted = linear(weights, "action_net", np.tanh(linear(weights, "mlp_extractor.policy_net.0", hidden)))
    states = [torch.zeros(3, 16)] * 2
    for row, expected in zip(rows, wanted, strict=True):
        with torch.no_grad():
            found, *states = policy(*((row[:, :1], row[:, 1:]) if of_dict else (row,)), *states)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    lost = {name: tensor for name, tensor in weights.items() if not name.startswith("lstm_actor")}
    with pytest.raises(CheckpointError, match="recurrent, and layer 'lstm_actor"):
        import_policy(write_zip(tmp_path / "b.zip", lost, **described), config)


@pytest.mark.parametrize("last", [False, True], ids=["between", "also last"])
def test_batch_renormalisation_of_crossq_is_inside_its_layers(last: bool, tmp_path: Path) -> None:
    weights = weights_of({"actor.latent_pi.1": (16, 3), "actor.latent_pi.4": (8, 16), "actor.mu": (1, 8)})
    weights |= weights_of({"actor.log_std": (1, 8)})
    generator = np.random.default_rng(5)
    norms = {0: 3, 3: 16} | ({6: 8} if last else {})
    for index, size in norms.items():
        for part, low in (("scale", 0.5), ("bias", -0.5), ("ra_mean", -1.0), ("ra_var", 0.1)):
            drawn = generator.uniform(low, low + 1.5, size).astype(np.float32)
            weights[f"actor.latent_pi.{index}.{part}"] = torch.from_numpy(drawn)
        weights[f"actor.latent_pi.{index}.steps"] = torch.tensor(10)
    path = write_zip(tmp_path / "a.zip", weights, policy_class=policy_class(CONTRIB.format("crossq")))
    policy = import_policy(path, PENDULUM)

    def normalised(index: int, x: np.ndarray) -> np.ndarray:
        scale, bias, mean, variance = (
            weights[f"actor.latent_pi.{index}.{part}"].numpy() for part in ("scale", "bias", "ra_mean", "ra_var")
        )
        return (x - mean) / np.sqrt(variance + 0.001) * scale + bias

    rows = torch.randn(9, 3)
    x = np.maximum(linear(weights, "actor.latent_pi.1", normalised(0, rows.numpy())), 0)
    x = np.maximum(linear(weights, "actor.latent_pi.4", normalised(3, x)), 0)
    wanted = linear(weights, "actor.mu", normalised(6, x) if last else x)
    np.testing.assert_allclose(policy.policy(rows)[0][:, :1], wanted, atol=1e-5)
    assert policy.config.environment.squash_actions and policy.architecture == "CrossQ: 16-8 ReLU"


def dict_space(*entries: str) -> dict[str, str]:
    spaces = ", ".join(f"'{name}': Box(-inf, inf, (1,), float32)" for name in entries)
    return {":type:": "<class 'gymnasium.spaces.dict.Dict'>", "spaces": "{" + spaces + "}"}


def test_entries_of_a_dict_are_joined_in_their_order(tmp_path: Path) -> None:
    config = CARTPOLE.replace(wrapper=(f"{HERE}:in_parts",))
    weights = ppo_weights(4, 2)
    joined = write_zip(tmp_path / "joined.zip", weights, observation_space=dict_space("goal", "joints"))
    rows = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
    policy = import_policy(joined, config).policy
    with torch.no_grad():
        found = policy(torch.from_numpy(rows[:, :1]), torch.from_numpy(rows[:, 1:]))[0]
    np.testing.assert_allclose(found, ppo_outputs(weights, rows), atol=1e-5)
    path = write_zip(tmp_path / "a.zip", weights, observation_space=dict_space("joints", "goal"))
    refuses(r"entries \['joints', 'goal'\], and CartPole-v1 has \['goal', 'joints'\]", path, config)
    eye = {"features_extractor.extractors.eye.cnn.0.weight": torch.zeros(32, 3, 8, 8)}
    path = write_zip(tmp_path / "a.zip", weights | eye, observation_space=dict_space("goal", "joints"))
    refuses(r"convolutions for the entries \['eye'\].* is no image", path, config)
    np.savez(tmp_path / "n.npz", mean=np.zeros(4), var=np.ones(4))
    refuses("are a Dict: leave it out", joined, config, normaliser=tmp_path / "n.npz")
    refuses("takes one array", write_zip(tmp_path / "b.zip", weights), config)


@pytest.mark.slow
def test_masks_of_the_environment_are_inside_the_graph(tmp_path: Path) -> None:
    weights = ppo_weights(4, 2)
    home = policy_class(CONTRIB.format("common.maskable"))
    path = write_zip(tmp_path / "a.zip", weights, policy_class=home)
    np.savez(tmp_path / "n.npz", mean=np.full(4, 0.1), var=np.full(4, 4.0))
    policy = import_policy(path, CARTPOLE.replace(wrapper=(f"{HERE}:OnlyRight",)), normaliser=tmp_path / "n.npz")
    rows = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
    mask = np.random.default_rng(1).integers(0, 2, (16, 2)).astype(np.uint8)
    with torch.no_grad():
        found = policy.policy(torch.from_numpy(rows), torch.from_numpy(mask))[0].numpy()
    np.testing.assert_allclose(
        found, np.where(mask, ppo_outputs(weights, (rows - 0.1) / 2), -1e9), rtol=1e-5, atol=1e-5
    )
    bundle = export(policy, tmp_path / "bundle", scheme="int8", episodes=0).path
    player = run_policy.Policy(bundle)
    assert {int(player.act({"observations": row, "action_mask": [0, 1]}, first=True)[0]) for row in rows} == {1}
    refuses(r"needs masks of allowed actions, and the environment gives none", path, CARTPOLE)
    plain = write_zip(tmp_path / "b.zip", weights)
    refuses("masks:without_masks", plain, CARTPOLE.replace(wrapper=(f"{HERE}:OnlyRight",)))
    unmasked = CARTPOLE.replace(wrapper=(f"{HERE}:OnlyRight", "accel.envs.masks:without_masks"))
    assert import_policy(plain, unmasked).policy.input_names == ("observations",)


def test_a_mask_beside_a_dict_is_none_of_its_entries(tmp_path: Path) -> None:
    weights = ppo_weights(4, 2)
    described = {"policy_class": policy_class(CONTRIB.format("common.maskable"))}
    path = write_zip(tmp_path / "a.zip", weights, observation_space=dict_space("goal", "joints"), **described)
    policy = import_policy(path, CARTPOLE.replace(wrapper=(f"{HERE}:in_parts", f"{HERE}:OnlyRight"))).policy
    assert policy.input_names == ("goal", "joints", "action_mask")
    rows, mask = torch.randn(16, 4), torch.from_numpy(np.random.default_rng(1).integers(0, 2, (16, 2)).astype(np.uint8))
    with torch.no_grad():
        found = policy(rows[:, :1], rows[:, 1:], mask)[0]
    np.testing.assert_allclose(found, np.where(mask, ppo_outputs(weights, rows.numpy()), -1e9), rtol=1e-5, atol=1e-5)
