"""Policies of Stable-Baselines3, CleanRL and any torch code: read, played, compressed and exported as our own."""

from __future__ import annotations

import io
import json
import shlex
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import tyro
from safetensors.torch import save_file
from torch import Tensor, nn

import accel
from accel.cli import main
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.errors import VerificationError
from accel.compressors.kernels.library import kernels_here
from accel.compressors.runtime import PolicySession
from accel.config import TrainConfig
from accel.errors import AccelError, CheckpointError, ConfigError
from accel.exporting import run_policy
from accel.exporting.build import export
from accel.imports.policy import ImportedPolicy, import_policy
from accel.imports.policy_source import CLI, PolicySource
from accel.runs.playing import play
from tests.accel.imports import foreign_policies
from tests.compressors.policies import run_artifact

CARTPOLE, PENDULUM = TrainConfig.create(env="CartPole-v1"), TrainConfig.create(env="Pendulum-v1")
HERE = "tests.accel.imports.foreign_policies"


class Spaces:
    def __init__(self, env: str) -> None:
        with gymnasium.make(env) as made:
            self.single_observation_space, self.single_action_space = made.observation_space, made.action_space


def agent(kind: type[nn.Module], env: str) -> Any:
    torch.manual_seed(3)
    return kind(Spaces(env))


def refuses(
    message: str, source: Any, config: TrainConfig, kind: type[Exception] = ConfigError, **options: Any
) -> None:
    """That a policy is refused in these words."""
    with pytest.raises(kind, match=message):
        import_policy(source, config, **options)


def weights_of(sizes: Mapping[str, tuple[int, int]], **others: Tensor) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    weights = dict(others)
    for name, (outputs, inputs) in sizes.items():
        weights[f"{name}.weight"] = torch.randn(outputs, inputs, generator=generator) * 2 / inputs**0.5
        weights[f"{name}.bias"] = torch.randn(outputs, generator=generator) * 0.1
    return weights


def ppo_weights(observations: int, outputs: int, **others: Tensor) -> dict[str, Tensor]:
    """As ActorCriticPolicy.state_dict() of MlpPolicy names them."""
    return weights_of(
        {
            "mlp_extractor.policy_net.0": (64, observations),
            "mlp_extractor.policy_net.2": (64, 64),
            "mlp_extractor.value_net.0": (64, observations),
            "mlp_extractor.value_net.2": (64, 64),
            "action_net": (outputs, 64),
            "value_net": (1, 64),
        },
        **others,
    )


def balancing_weights() -> dict[str, Tensor]:
    """A policy that keeps CartPole-v1 upright: right where the weighted sum of its state is positive."""
    weights = {name: 0.05 * tensor for name, tensor in ppo_weights(4, 2).items()}
    signs = torch.ones(64)
    signs[::2] = -1
    weights["mlp_extractor.policy_net.0.weight"] += signs[:, None] * torch.tensor([0.05, 0.2, 1.0, 0.5])
    weights["mlp_extractor.policy_net.2.weight"] += torch.eye(64)
    weights["action_net.weight"] += torch.stack((-signs, signs)) / 8
    return weights


def write_zip(path: Path, weights: object, policy_kwargs: object = {}, **data: object) -> Path:
    """The layout of model.save(): JSON of which some values are pickles in base64, and torch files."""
    buffer = io.BytesIO()
    torch.save(weights, buffer)
    values = {
        "policy_class": {":type:": "<class 'abc.ABCMeta'>", ":serialized:": "gAWVOwAAAAA="},
        "verbose": 0,
        "policy_kwargs": policy_kwargs,
        "num_timesteps": 50_000,
        **data,
    }
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps(values))
        archive.writestr("policy.pth", buffer.getvalue())
        archive.writestr("_stable_baselines3_version", "2.3.2")
    return path


def linear(weights: Mapping[str, Tensor], name: str, x: np.ndarray) -> np.ndarray:
    return x @ weights[f"{name}.weight"].numpy().T + weights[f"{name}.bias"].numpy()  # type: ignore[no-any-return]


def ppo_outputs(weights: Mapping[str, Tensor], x: np.ndarray, activation: Any = np.tanh) -> np.ndarray:
    """MlpPolicy from its definition."""
    for layer in ("mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2"):
        x = activation(linear(weights, layer, x))
    return linear(weights, "action_net", x)


def test_a_discrete_ppo_file_gives_its_logits_and_compresses_without_loss(tmp_path: Path) -> None:
    weights = balancing_weights()
    policy = import_policy(write_zip(tmp_path / "ppo.zip", weights), CARTPOLE)
    x = np.random.default_rng(0).standard_normal((32, 4)).astype(np.float32)
    assert np.allclose(policy.policy(torch.from_numpy(x))[0].numpy(), ppo_outputs(weights, x), atol=1e-5)
    assert (policy.act(x) == ppo_outputs(weights, x).argmax(1)).all()
    assert (policy.env_steps, policy.scheme) == (50_000, "int8")
    in_torch = play(policy.policy, policy, episodes=8)
    result = accel.evaluate(policy, scheme="int8", episodes=8, baseline=True)
    assert in_torch.returns.min() > 400
    assert in_torch.returns.tolist() == result.baseline.returns.tolist() == result.episodes.returns.tolist()


def test_a_box_ppo_file_gives_its_mean_and_its_deviation(tmp_path: Path) -> None:
    weights = ppo_weights(3, 1, log_std=torch.tensor([-0.7]))
    weights["action_net.weight"] *= 4
    policy = import_policy(write_zip(tmp_path / "ppo.zip", weights), PENDULUM)
    x = np.random.default_rng(0).standard_normal((16, 3)).astype(np.float32)
    params = policy.policy(torch.from_numpy(x))[0].numpy()
    assert np.allclose(params[:, :1], ppo_outputs(weights, x), atol=1e-5)
    assert np.allclose(params[:, 1], -0.7)
    assert np.allclose(policy.act(x), np.clip(ppo_outputs(weights, x), -2, 2), atol=1e-4)
    assert np.abs(policy.act(x)).max() == 2.0


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("activation.ReLU", lambda x: np.maximum(x, 0)),
        ("activation.Softplus", lambda x: np.log1p(np.exp(x))),
        ("linear.Identity", lambda x: x),
        (None, np.tanh),
    ],
)
def test_the_activation_is_read_from_plain_text(
    tmp_path: Path, name: str | None, activation: Callable[[np.ndarray], np.ndarray]
) -> None:
    named = {"activation_fn": f"<class 'torch.nn.modules.{name}'>", ":serialized:": "gAWVAAAA"}
    weights = ppo_weights(4, 2)
    policy = import_policy(
        write_zip(tmp_path / "ppo.zip", weights, named if name else {"net_arch": [64, 64]}), CARTPOLE
    )
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    assert np.allclose(policy.policy(torch.from_numpy(x))[0].numpy(), ppo_outputs(weights, x, activation), atol=1e-4)


@pytest.mark.parametrize("name", ["my.Snake", "my.ReLU", "torch.nn.modules.activation.PReLU"])
def test_an_unknown_activation_has_to_be_given(name: str, tmp_path: Path) -> None:
    path = write_zip(tmp_path / "ppo.zip", ppo_weights(4, 2), {"activation_fn": f"<class '{name}'>"})
    refuses("--activation", path, CARTPOLE)
    assert import_policy(path, CARTPOLE, activation="elu").architecture == "PPO or A2C: 64-64 ELU"


def test_td3_squashes_its_actions(tmp_path: Path) -> None:
    """SAC: ``test_import_sb3``; DQN's Q-values: ``test_initial_policy``."""
    x = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
    weights = weights_of({"actor.mu.0": (32, 3), "actor.mu.2": (1, 32)})
    noise = weights_of({"critic.qf0.0": (32, 4), "critic.qf0.2": (1, 32)})
    policy = import_policy(write_zip(tmp_path / "a.zip", weights | noise), PENDULUM)
    wanted = 2 * np.tanh(linear(weights, "actor.mu.2", np.maximum(linear(weights, "actor.mu.0", x), 0)))
    assert np.allclose(policy.act(x), wanted, atol=1e-5)


@pytest.mark.parametrize("bound", [1.0, 100.0])
def test_the_deviation_assumed_of_a_squashing_policy_does_not_depend_on_the_bounds(
    bound: float, tmp_path: Path
) -> None:
    """Its outputs are tanh's arguments."""
    sac = weights_of({"actor.latent_pi.0": (32, 3), "actor.mu": (1, 32), "actor.log_std": (1, 32)})
    path = write_zip(tmp_path / "a.zip", sac)
    config = PENDULUM.replace(wrapper=(f"{HERE}:{'wide' if bound > 1 else 'narrow'}",))
    policy = import_policy(path, config)
    assert policy.spec.action.high == (bound,)
    assert policy.policy.log_std is not None and float(policy.policy.log_std) == pytest.approx(np.log(0.1))


def test_no_action_is_sampled_with_a_deviation_that_is_assumed(tmp_path: Path) -> None:
    sac = weights_of({"actor.latent_pi.0": (32, 3), "actor.mu": (1, 32), "actor.log_std": (1, 32)})
    with pytest.raises(ConfigError, match="of SAC or TQC: 32 ReLU the greedy actions alone are imported"):
        import_policy(write_zip(tmp_path / "a.zip", sac), PENDULUM, rule="stochastic")
    refuses("gives means without deviations", nn.Linear(3, 1), PENDULUM, rule="stochastic")
    assert import_policy(nn.Linear(3, 2), PENDULUM, rule="stochastic").rule_spec.name == "stochastic"


def test_bytes_are_what_stable_baselines3_makes_of_them(tmp_path: Path) -> None:
    """It divides images by 255 unless told otherwise, and no other bytes."""
    config = TrainConfig.create(env="tests.environments:ClosedForm-v0", env_arg=("observation=image",))
    config = config.replace(wrapper=(f"{HERE}:from_zero",))
    weights = ppo_weights(6 * 5 * 3, 4)
    x = np.random.default_rng(0).integers(0, 256, (8, 3, 6, 5), dtype=np.uint8)
    for options, scale in (({}, 255), ({"normalize_images": False}, 1)):
        policy = import_policy(write_zip(tmp_path / "a.zip", weights, options), config)
        with torch.no_grad():
            (logits,) = policy.policy(torch.from_numpy(x))
        assert np.allclose(logits.numpy(), ppo_outputs(weights, x.reshape(8, -1) / np.float32(scale)), atol=1e-4)
    refuses("observes bytes: leave it out", tmp_path / "a.zip", config, normaliser=tmp_path / "statistics.npz")
    board = config.replace(wrapper=(f"{HERE}:from_zero", f"{HERE}:as_a_board"))
    refuses("takes for no image", tmp_path / "a.zip", board)


class Bomb:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    trace = tmp_path / "it ran"
    hostile = {**ppo_weights(4, 2), "bomb": Bomb(trace)}
    path = write_zip(tmp_path / "hostile.zip", hostile)
    with zipfile.ZipFile(path) as archive:
        torch.load(io.BytesIO(archive.read("policy.pth")), weights_only=False)
    assert trace.exists()  # the file is what it claims
    trace.unlink()
    refuses("nothing is unpickled", path, CARTPOLE, kind=CheckpointError)
    torch.save({"actor": Bomb(trace)}, tmp_path / "hostile.pt")
    refuses("nothing is unpickled", tmp_path / "hostile.pt", CARTPOLE, module=f"{HERE}:Agent", kind=CheckpointError)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lstm_actor.weight_ih_l0": torch.zeros(8, 4)}, "lstm_actor.weight_ih_l0"),
        ({"features_extractor.net.0.weight": torch.zeros(4, 4)}, "features_extractor.*NatureCNN"),
        ({"mlp_extractor.policy_net.1.weight": torch.zeros(64)}, "mlp_extractor.policy_net"),
    ],
    ids=["recurrent", "custom extractor", "layer norm"],
)
def test_other_policies_are_refused_with_their_layer(tmp_path: Path, change: dict[str, Tensor], message: str) -> None:
    path = write_zip(tmp_path / "ppo.zip", ppo_weights(4, 2) | change)
    with pytest.raises(ConfigError, match=message) as refused:
        import_policy(path, CARTPOLE)
    assert "--module" in str(refused.value)


def test_a_file_of_another_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"fails in layer 'policy_net.0' \(Linear\(in_features=3.*\) on observations \(2, 4\)"
    ):
        import_policy(write_zip(tmp_path / "ppo.zip", ppo_weights(3, 2)), CARTPOLE)


def test_agents_of_cleanrl_are_taken_as_they_are() -> None:
    """From their files: ``test_policy_files``."""
    trained = agent(foreign_policies.ContinuousAgent, "Pendulum-v1")
    x = torch.randn(16, 3)
    params = import_policy(trained, PENDULUM).policy(x)[0]
    assert torch.equal(params, torch.cat((trained.actor_mean(x), torch.full((16, 1), -0.5)), 1))


def test_weights_of_another_module_are_refused_with_the_parameter(tmp_path: Path) -> None:
    state = agent(foreign_policies.Agent, "CartPole-v1").state_dict()
    save_file({name: tensor for name, tensor in state.items() if name != "actor.4.weight"}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=r"'actor\.4\.weight' is absent in the file"):
        import_policy(tmp_path / "x.safetensors", CARTPOLE, module=f"{HERE}:Agent")


def test_means_alone_are_played_exactly() -> None:
    torch.manual_seed(0)
    module = foreign_policies.Means()
    policy = import_policy(module, PENDULUM)
    x = torch.randn(8, 3)
    assert np.array_equal(policy.act(x.numpy()), module(x).detach().numpy())
    assert np.allclose(policy.policy(x)[0][:, 1], np.log(0.2))  # a tenth of half of [-2, 2]
    assert module.training
    assert all(parameter.requires_grad for parameter in module.parameters())


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("Uncopyable", "layer 'body' \\(Linear\\), for its attribute 'scale', cannot be copied"),
        ("three", "gives 3 numbers for categorical actions"),
        ("Means", "fails in layer 'layer' \\(Linear.* on observations"),
        ("RecurrentAgent", "'lstm' is none of CleanRL's layers"),
        ("DeviationLayer", "computes its deviations in layer 'actor_logstd'"),
        ("Lazy", "lazy layers without weights"),
        ("scripted", "is a TorchScript program"),
        ("Squeezed", r"Squeezed maps observations \(1, 4\) to \(2,\)"),
        ("Doubled", r"layer 'layer' .* in single precision: leave out \.double\(\)"),
    ],
)
def test_what_cannot_act_is_refused(factory: str, message: str) -> None:
    refuses(message, None, CARTPOLE, module=f"{HERE}:{factory}")


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (torch.full((1,), 0.2), "holds 0.2, where 0 is the greatest"),  # a deviation, not its logarithm
        (torch.full((1,), -200.0), "holds -200, where -20 is the least"),  # a value
        (torch.zeros(2, 3), "has \\(2, 3\\) numbers for 1 actions"),
        (None, "depends on the observation, as a value does"),
    ],
)
def test_a_second_output_that_may_be_no_log_deviation_is_refused(second: Tensor | None, message: str) -> None:
    refuses(message, foreign_policies.Pair(second), PENDULUM)


def test_of_several_outputs_the_log_deviations_or_the_logits_are_taken() -> None:
    policy = import_policy(foreign_policies.Pair(torch.full((1,), -1.5)), PENDULUM, rule="stochastic")
    assert policy.policy(torch.randn(4, 3))[0][:, 1].tolist() == [-1.5] * 4
    module = foreign_policies.Pair(None, inputs=4, outputs=2)
    x = torch.randn(16, 4)
    assert (import_policy(module, CARTPOLE).act(x.numpy()) == module(x)[0].argmax(1).numpy()).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own imports
def test_act_inference_and_compiled_modules_act() -> None:
    module = foreign_policies.Inference()
    x = torch.randn(16, 3)
    assert np.allclose(import_policy(module, PENDULUM).act(x.numpy()), module.actor(x).detach().numpy(), atol=1e-6)
    plain = nn.Linear(4, 2)
    wanted = plain(torch.ones(1, 4)).argmax(1).numpy()
    assert (import_policy(torch.compile(plain), CARTPOLE).act(np.ones((1, 4), np.float32)) == wanted).all()


@pytest.mark.parametrize("kind", ["Soft", "Twin"])
@pytest.mark.skipif(not kernels_here(), reason="needs compiled kernels for this CPU")
def test_cleanrls_actors_of_continuous_actions_run_in_the_kernels(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    policy = import_policy(None, PENDULUM, module=f"tests.accel.imports.foreign_policies:{kind}")
    rows = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
    session = PolicySession(policy.compress("fp32"), batch=8)
    session.inputs["observations"][...] = rows
    session.run()
    assert session.runtime == "native"
    with torch.no_grad():
        found = policy.policy.module(torch.from_numpy(rows))
    outputs = found if isinstance(found, tuple) else (found,)
    for place, wanted in enumerate(outputs):
        np.testing.assert_allclose(session.outputs["params"][:, place], wanted[:, 0], atol=1e-5)
    assert ("does not use action_scale" in caplog.text) == (kind == "Soft")


def test_a_branch_that_only_the_environment_shows_is_refused_with_its_layer() -> None:
    with pytest.raises(VerificationError, match=r"layer 'module\.(usual|rare)' acts on some observations"):
        import_policy(None, TrainConfig.create(env="Pendulum-v1"), module=f"{HERE}:Rare")


def test_statistics_of_vecnormalize_are_inside_the_graph(tmp_path: Path) -> None:
    """Other formats of their file: ``test_damaged_imports``."""
    statistics = {"mean": np.array([1.0, -2.0, 0.5]), "var": np.array([4.0, 0.25, 9.0]), "clip": np.array(1.5)}
    path = tmp_path / "normaliser.npz"
    np.savez(path, **statistics)
    weights = ppo_weights(3, 1, log_std=torch.zeros(1))
    policy = import_policy(write_zip(tmp_path / "ppo.zip", weights), PENDULUM, normaliser=path)
    x = np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32) * 3
    normalised = np.clip((x - statistics["mean"]) / np.sqrt(statistics["var"] + 1e-8), -1.5, 1.5)
    wanted = ppo_outputs(weights, normalised)
    found = run_artifact(policy.compress("fp32"), {"observations": x})[0]
    assert np.allclose(found[:, :1], wanted, atol=1e-4)
    assert not np.allclose(ppo_outputs(weights, x), wanted, atol=0.1)


def test_a_normaliser_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "normaliser.npz"
    for values, message in (
        ({"mean": np.zeros(3)}, "lacks 'var'"),
        ({"mean": np.zeros(4), "var": np.ones(4)}, "have shape \\(3,\\)"),
        ({"mean": np.zeros(3), "var": np.full(3, np.nan)}, "finite"),
        ({"mean": np.array([None] * 3), "var": np.ones(3)}, "pickles are not read"),
    ):
        np.savez(path, **values)
        refuses(message, foreign_policies.Means(), PENDULUM, normaliser=path)


def test_a_bundle_of_a_greedy_policy_is_no_distribution(tmp_path: Path) -> None:
    """Its outputs may be Q-values."""
    policy = import_policy(agent(foreign_policies.Agent, "CartPole-v1"), CARTPOLE)
    bundle = export(policy, tmp_path / "bundle", scheme="fp32", episodes=1)
    action = bundle.contract["action"]
    assert action["sampling"] == {"rule": "greedy"} and "sample" not in json.dumps(action)
    run_policy.verify(bundle.path)
    observation = np.full(4, 0.01, np.float32)
    chosen, outputs = run_policy.Policy(bundle.path).act(observation, first=True)
    assert int(chosen) == int(outputs.argmax())
    with pytest.raises(run_policy.BundleError, match="outputs are no distribution"):
        run_policy.Policy(bundle.path, sample=True)


def test_batch_norm_and_dropout_of_a_trained_policy_are_exported_in_eval_mode() -> None:
    torch.manual_seed(0)
    layers = nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 2)
    trained = nn.Sequential(*layers)
    trained(torch.randn(64, 4))  # in train mode: the statistics move
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    (found,) = run_artifact(accel.compress(trained, "fp32", env="CartPole-v1"), {"observations": x})
    assert trained.training
    wanted = trained.eval()(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    with pytest.raises(ConfigError, match="env"):
        accel.compress(trained)


@pytest.mark.slow
def test_the_commands_take_an_imported_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_zip(tmp_path / "ppo.zip", ppo_weights(4, 2))
    source = ["--policy", str(path), "--env", "CartPole-v1"]
    assert main(["compress", *source, "--out", str(tmp_path / "p.accel"), "--episodes", "4"]) == 0
    assert "on the same seeds" in capsys.readouterr().out
    assert CompressedPolicy.read(tmp_path / "p.accel").scheme in ("int8", "mixed"), "by what it gains on this machine"
    assert main(["export", *source, "--out", str(tmp_path / "bundle"), "--episodes", "4"]) == 0
    contract = json.loads((tmp_path / "bundle" / "contract.json").read_text())
    assert (contract["source"]["run"], contract["source"]["env_steps"]) == ("ppo.zip", 50_000)
    report = json.loads((tmp_path / "bundle" / "report.json").read_text())
    assert report["returns"]["verdict"]
    assert report["quality"]["holds"] and report["quality"]["rows"][0]["agreement"] >= 0.99
    assert accel.verify(tmp_path / "bundle").text()
    rows = tmp_path / "rows.json"
    schemes = ["--schemes", "int8", "--seconds", "0.1", "--json", str(rows)]
    for bench in (
        ["policy", "--runtimes", "onnxruntime", "--batch", "1", *schemes],
        ["actor", "--envs-per-actor", "2", "--unroll-length", "5", *schemes],
        ["refresh", *schemes],
    ):
        assert main(["bench", *bench, *source]) == 0
        found = json.loads(rows.read_text())
        assert {(row["scheme"], row["weights"], row["inputs"]) for row in found} == {
            (scheme, "trained", "environment") for scheme in ("fp32", "int8")
        }
        assert {row["network"] for row in found} == {"PPO or A2C: 64-64 Tanh"}


def test_an_actor_acts_with_what_int8_does_not_pay_for(tmp_path: Path) -> None:
    small = weights_of({"q_net.q_net.0": (4, 4), "q_net.q_net.2": (4, 4), "q_net.q_net.4": (2, 4)})
    path, rows = write_zip(tmp_path / "dqn.zip", small), tmp_path / "rows.json"
    words = "--env CartPole-v1 --schemes int8 --seconds 0.1 --envs-per-actor 2 --unroll-length 5".split()
    assert main(["bench", "actor", "--policy", str(path), "--json", str(rows), *words]) == 0
    assert {row["scheme"] for row in json.loads(rows.read_text())} == {"fp32", "int8"}


@pytest.mark.slow
def test_an_imported_policy_is_swept_and_its_front_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_zip(tmp_path / "my ppo.zip", balancing_weights())
    words = "--env CartPole-v1 --trials 3 --rows 64 --episodes 2 --constraint return>=0.9*fp32".split()
    arguments = ["sweep", "--policy", str(path), "--out", str(tmp_path / "swept"), *words]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "accel train" not in text and not (tmp_path / "swept" / "best").exists()
    (export, *_) = [line.strip() for line in text.splitlines() if line.strip().startswith("accel export")]
    document = json.loads((tmp_path / "swept" / "pareto.json").read_text())
    assert document["fp32"]["return"] == 500.0 and document["subject"]["weights"]
    assert main([*shlex.split(export)[1:], "--episodes", "2", "--accept-loss"]) == 0  # it was chosen by returns
    assert (tmp_path / "swept" / "exported").is_dir()
    write_zip(path, ppo_weights(4, 2))
    assert main(arguments) == 1
    assert "weights was" in capsys.readouterr().err


def test_options_that_make_a_policy_again(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", ppo_weights(3, 1, log_std=torch.tensor([-1.0])))
    given = {"env": "Pendulum-v1", "env_arg": ("g=9.8",), "activation": "relu", "rule": "stochastic"}
    policy = PolicySource(policy=path, **given).load()
    assert policy.arguments is not None
    again = tyro.cli(PolicySource, args=policy.arguments, config=CLI).load()
    assert again.identity == policy.identity and again.arguments == policy.arguments and again.config == policy.config
    assert import_policy(nn.Linear(3, 1), PENDULUM).arguments is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compress", "--out", "x"], "give one policy"),
        (["compress", "--policy", "a.zip", "--out", "x"], "give --env"),
        (["compress", "run", "--env", "CartPole-v1", "--out", "x"], "leave out --env"),
        (["export", "--policy", "a.zip", "--env", "CartPole-v1", "--out", "x", "--sample"], "--rule stochastic"),
        (["bench", "policy", "--policy", "a.zip", "--network", "mlp:8x1"], "leave out --network"),
        (["compress", "run", "--env-arg", "a=1", "--env-arg", "b=2", "--out", "x"], "leave out --env-arg"),
        (["bench", "policy", "--weights", "a.safetensors"], "--policy and --module"),
        (["bench", "actor", "--policy", "a.zip", "--run", "r"], "leave out --run"),
        (["bench", "refresh", "--module", "m:f", "--network", "mlp:8x1"], "leave out --network"),
        (["bench", "learner", "--module=m:f"], "an imported policy has no learner: leave out --module"),
    ],
)
def test_options_that_contradict_each_other(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


class Logarithm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.log()


def test_probabilities_are_not_sampled_as_logits() -> None:
    module = nn.Sequential(nn.Linear(4, 2), nn.Softmax(-1))
    assert not import_policy(module, CARTPOLE).has_distribution
    refuses("probabilities", module, CARTPOLE, rule="stochastic")
    import_policy(nn.Sequential(module, Logarithm()), CARTPOLE, rule="stochastic")


def test_a_stochastic_rule_samples(tmp_path: Path) -> None:
    weights = ppo_weights(3, 1, log_std=torch.tensor([-1.0]))
    policy: ImportedPolicy = import_policy(write_zip(tmp_path / "p.zip", weights), PENDULUM, rule="stochastic")
    x = np.zeros((4000, 3), np.float32)
    noise = policy.act(x, greedy=False) - policy.act(x)
    assert float(noise.std()) == pytest.approx(np.exp(-1.0), rel=0.1)
    greedy = import_policy(tmp_path / "p.zip", PENDULUM)
    assert np.array_equal(greedy.act(x, greedy=False), greedy.act(x))
    refuses("nonsense", tmp_path / "p.zip", PENDULUM, rule="nonsense", kind=AccelError)
