"""Environments of tensors on the learner's device: ours equal gymnasium's, and runs on them are like any other run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import accel
from accel.acting.rules import ActorPlace, RuleSpec, make_rule
from accel.config import TrainConfig
from accel.config.parts import RewardConfig
from accel.envs.base import EnvRequest
from accel.envs.device_backend import DeviceSteps
from accel.envs.factory import make_vector_env
from accel.envs.torch_classic import CartPole, Pendulum
from accel.errors import AccelError, ConfigError, EnvError
from accel.experience.faults import remove_faults
from accel.experience.on_device import DeviceRewards, DeviceUnroll, remove_faults_anywhere
from accel.experience.rewards import RewardTransform
from accel.experience.unroll import Unroll
from accel.runs.loading import load_run
from accel.runs.playing import play

CPU = torch.device("cpu")
CARTPOLE, PENDULUM = "accel.envs.torch_classic:CartPole", "accel.envs.torch_classic:Pendulum"
HERE = "tests.accel.envs.test_device_environments"


class Broken(Pendulum):
    """Gives what its argument says is wrong."""

    def __init__(self, num_envs: int, device: torch.device, wrong: str = "", **args: int) -> None:
        super().__init__(num_envs, device, **args)
        self.wrong, self.steps = wrong, 0
        if wrong == "count":
            self.num_envs += 1
        if wrong == "dict":
            self.single_observation_space = spaces.Dict({"policy": self.single_observation_space})  # type: ignore[assignment]

    def step(self, actions: torch.Tensor) -> tuple[Any, Any, Any, Any, Any]:
        observations, rewards, terminated, truncated, info = super().step(actions)
        self.steps += 1
        if self.wrong == "array":
            return observations, rewards.numpy(), terminated, truncated, info
        if self.wrong == "nan" and self.steps % 16 == 3:
            rewards[1] = float("nan")
        return observations, rewards, terminated, truncated, {} if self.wrong == "final" else info


class Shows(Pendulum):
    """Its reward is the action."""

    def step(self, actions: torch.Tensor) -> tuple[Any, Any, Any, Any, Any]:
        observations, _, terminated, truncated, info = super().step(actions)
        return observations, actions[:, 0], terminated, truncated, info


class Dones:
    """Pendulum as rsl_rl's wrappers have it: one flag for both ends, which ``time_outs`` tells apart."""

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self.inner = Pendulum(num_envs, device, max_episode_steps=3)
        self.observation_space, self.action_space = self.inner.single_observation_space, self.inner.single_action_space

    def reset(self) -> torch.Tensor:
        return self.inner.reset(seed=0)[0]

    def step(self, actions: torch.Tensor) -> tuple[Any, Any, Any, Any]:
        observations, rewards, terminated, truncated, _ = self.inner.step(actions)
        return observations, rewards, (terminated | truncated).long(), {"time_outs": truncated}


def from_dones(num_envs: int, device: torch.device) -> Any:
    """The wrapper of docs/device-environments.md around such a one."""
    page = (Path(__file__).parents[3] / "docs/device-environments.md").read_text()
    names: dict[str, Any] = {}
    exec(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0], names)
    return names["FromDones"](Dones(num_envs, device), num_envs, device)


def not_an_environment(num_envs: int, device: torch.device) -> object:
    return object()


def config(**options: object) -> TrainConfig:
    small: dict[str, object] = {
        "env": CARTPOLE, "backend": "device", "envs_per_actor": 32, "network": "mlp:8x1", "total_env_steps": 4 * 512,
        "device": "cpu", "calibration_size": 32, "log_interval_s": 0.01,
    }  # fmt: skip
    return TrainConfig(**small | options)


@pytest.mark.parametrize(
    ("made", "name", "steps"),
    [(CartPole, "CartPole-v1", 8), (Pendulum, "Pendulum-v1", 60)],
)
def test_ours_step_as_gymnasiums_do(made: type[CartPole | Pendulum], name: str, steps: int) -> None:
    rng, count = np.random.default_rng(0), 24
    theirs: list[Any] = [gymnasium.make(name).unwrapped for _ in range(count)]
    ours = made(count, CPU)
    assert ours.single_observation_space == theirs[0].observation_space
    assert ours.single_action_space == theirs[0].action_space
    widths = [0.2, 1.0, 0.1, 1.0] if made is CartPole else [3.0, 8.0]
    spread = rng.uniform(-1.0, 1.0, (count, len(widths))) * widths
    for number, (environment, state) in enumerate(zip(theirs, spread, strict=True)):
        environment.reset(seed=number)
        environment.state = np.array(state)
        environment.action_space.seed(int(rng.integers(1000)))
    alive = np.ones(count, bool)
    for _ in range(steps):
        ours.state = torch.tensor(np.stack([environment.state for environment in theirs], 1), dtype=torch.float32)
        actions = np.stack([environment.action_space.sample() for environment in theirs])
        observations, rewards, terminated, truncated, info = ours.step(torch.as_tensor(actions))
        assert not truncated.any()
        for place in np.flatnonzero(alive):
            observation, reward, ends, _, _ = theirs[place].step(actions[place])
            np.testing.assert_allclose(info["final_obs"][place], observation, rtol=1e-5, atol=1e-5)
            assert float(rewards[place]) == pytest.approx(float(reward), rel=1e-5, abs=1e-5)
            assert bool(terminated[place]) == ends
        alive &= ~terminated.numpy()
        np.testing.assert_array_equal(observations.numpy()[alive], info["final_obs"].numpy()[alive])
    assert alive.any() and (made is Pendulum or not alive.all())


def test_an_episode_that_ends_begins_anew_in_the_same_step() -> None:
    ours = CartPole(64, CPU, max_episode_steps=20)
    first, _ = ours.reset(seed=7)
    assert torch.equal(first, ours.reset(seed=7)[0]) and not torch.equal(first, ours.reset(seed=8)[0])
    ends = torch.zeros(64, dtype=torch.int32)
    for _ in range(20):
        observations, _, terminated, truncated, info = ours.step(torch.ones(64))
        ended = terminated | truncated
        ends += ended
        assert not truncated[terminated].any()  # They begin anew, and with them their time.
        assert (observations[ended].abs() <= 0.05).all() and (info["final_obs"][terminated].abs() > 0.2).any(-1).all()
    assert (ends > 0).all()


def test_a_policy_plays_a_device_environment_as_arrays() -> None:
    arrays = make_vector_env(PENDULUM, 3, backend="device", seed=1, env_args={"max_episode_steps": 2})
    assert arrays.spec.autoreset == "same_step" and arrays.implementation == "device"
    first = arrays.reset().copy()
    assert np.array_equal(first, arrays.reset(1)) and not np.array_equal(first, arrays.reset())
    before = arrays.step(np.zeros((3, 1), np.float32))[0].copy()
    after, rewards, terminated, truncated = arrays.step(np.full((3, 1), 2.0, np.float32))
    assert truncated.all() and not terminated.any() and rewards.dtype == np.float32 and after.shape == (3, 3)
    assert (np.abs(arrays.final_observations - before).max(-1) < 1.5).all()
    assert not np.array_equal(arrays.final_observations, after)
    arrays.close()


def test_the_wrapper_of_the_page_makes_one_of_an_environment_with_dones() -> None:
    steps = DeviceSteps(EnvRequest(f"{HERE}:from_dones", 4, {}, (), 0), CPU)
    observations = steps.reset(0)
    for step in range(1, 7):
        before = observations.clone()
        observations, _, terminated, truncated, final = steps.step(torch.zeros(4, 1))
        assert not terminated.any() and bool(truncated.all()) == (step % 3 == 0)
        assert final is not None and torch.equal(final, before)


@pytest.mark.parametrize("squash", [False, True])
def test_sampled_actions_reach_the_environment_as_the_actors_rule_makes_them(squash: bool) -> None:
    steps = DeviceSteps(EnvRequest(f"{HERE}:Shows", 5, {}, (), 0, squash), CPU)
    sampled = torch.linspace(-4.0, 4.0, 5).unsqueeze(-1)
    sampler = make_rule(RuleSpec(), steps.spec.action).bind(ActorPlace(5, 1), np.random.default_rng(0))
    np.testing.assert_allclose(steps.step(sampled)[1], sampler.to_env(sampled.numpy())[:, 0], rtol=1e-6)


def rows(seed: int) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    ends = torch.rand(6, 5, generator=rng) < 0.3
    return {
        "observations": torch.randn(7, 5, 3, generator=rng), "final_observations": torch.randn(6, 5, 3, generator=rng),
        "valid": torch.ones(6, 5, dtype=torch.bool), "rewards": torch.randn(6, 5, generator=rng) + 1.0,
        "terminated": ends & (torch.rand(6, 5, generator=rng) < 0.5), "truncated": ends,
        "behaviour_log_prob": torch.randn(6, 5, generator=rng), "behaviour_params": torch.randn(6, 5, 2, generator=rng),
    }  # fmt: skip


def on_host(tensors: dict[str, torch.Tensor], first: np.ndarray) -> Unroll:
    """The same steps as an actor sends them."""
    arrays: dict[str, Any] = {name: values.numpy().copy() for name, values in tensors.items()}
    arrays["valid"] = np.ones((7, 5), np.bool_)
    ended = arrays["terminated"] | arrays["truncated"]
    return Unroll(arrays | {"first": np.concatenate([first[None], ended]), "header": np.array([0, 0, 30, 0])})


@pytest.mark.parametrize(
    "options", [{}, {"normalise_rewards": True}, {"normalise_rewards": True, "reward_clip": 0.4, "reward_scale": 3.0}]
)
def test_rewards_are_transformed_as_on_the_host(options: dict[str, object]) -> None:
    kinds = RewardTransform, DeviceRewards
    host, device = (kind(RewardConfig(**options), 0.9) for kind in kinds)  # type: ignore[arg-type]
    first = np.ones(5, np.bool_)
    for seed in range(3):
        tensors = rows(seed)
        unroll, theirs = on_host(tensors, first), DeviceUnroll(tensors, {}, {}, True)
        first = np.asarray(unroll["first"][-1], np.bool_)
        host.observe(0, unroll)
        device.observe(0, theirs)
        np.testing.assert_allclose(np.asarray(device.transform(theirs)), host.transform(unroll), rtol=1e-5)
        assert device.moments.variance == pytest.approx(host.moments.variance, rel=1e-5)
    assert device.state()["returns"] == {}


@pytest.mark.parametrize("field", ["observations", "final_observations", "rewards"])
def test_faults_are_removed_as_on_the_host(field: str) -> None:
    tensors = rows(1)
    tensors["truncated"][2, 3] = True
    tensors[field][2, 3] = float("nan")
    expected = on_host(tensors, np.ones(5, np.bool_))
    unroll = DeviceUnroll(tensors, {"header": np.array([0, 0, 30, 0])}, {}, False)
    assert remove_faults_anywhere(unroll) == remove_faults(expected) != []
    assert unroll.valid_steps == expected.valid_steps == 24
    assert not unroll.tensors["valid"][:, 3].any() and torch.isfinite(unroll.tensors[field]).all()


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "gymnasium id": ({"env": "CartPole-v1"}, r"env = 'CartPole-v1' is no module:factory.*leave --backend out"),
    "actors": ({"actors": 2}, r"actors = 2 has nothing to act on there; leave it out"),
    "replay": ({"algorithm": "dqn"}, r"algorithm 'dqn' with store 'replay' keeps experience on the host; use"),
    "trajectories": ({"algorithm": "ptr-ppo"}, r"algorithm 'ptr-ppo'.*dppo"),
    "compressor": ({"compressor": "int8"}, r"compressor = 'int8'.*accel compress"),
    "recurrent": ({"network": "mlp:8x1+lstm:8"}, r"network = 'mlp:8x1\+lstm:8' is recurrent"),
    "task": ({"task": (PENDULUM,)}, r"task = .*leave it out"),
    "wrapper": ({"wrapper": ("a:b",)}, r"wrapper = .*its factory wraps"),
    "workers": ({"env_workers": 2}, r"env_workers = 2"),
    "torch actors": ({"actor_runtime": "torch"}, r"actor_runtime = 'torch'"),
    "learners": ({"learners": 2}, r"learners = 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_before_any_work(case: str) -> None:
    options, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        config(**options)


UNFIT = {
    f"{HERE}:not_an_environment": "has no num_envs, single_observation_space",
    f"{HERE}:missing": "has no function 'missing'",
    f"{HERE}:Broken?wrong=count": "has 33 environments on cpu, asked for 32",
    f"{HERE}:Broken?wrong=dict": "takes a Box of floats; flatten",
    f"{HERE}:Broken?wrong=array": "gave a reward of ndarray",
    f"{HERE}:Broken?wrong=final": r"truncates episodes without info\['final_obs'\]",
    f"{PENDULUM}?nonsense=3": "nonsense",
}


@pytest.mark.parametrize("env", UNFIT)
def test_an_environment_that_does_not_fit_is_an_error_that_says_why(env: str, tmp_path: Path) -> None:
    name, _, arguments = env.partition("?")
    args = (*([arguments] if arguments else []), "max_episode_steps=9") if "Broken" in env else (arguments,)
    with pytest.raises(AccelError, match=UNFIT[env]) as error:
        accel.train(config(env=name, env_arg=tuple(filter(None, args)), results_dir=tmp_path))
    assert isinstance(error.value, EnvError) and list(tmp_path.glob("*/checkpoints/*")) == []


def test_numbers_that_are_not_finite_cost_one_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = accel.train(config(env=f"{HERE}:Broken", env_arg=("wrong=nan",), results_dir=tmp_path))
    assert "environment 1 gave a reward that is not finite in row 2" in capsys.readouterr().out
    assert summary.env_steps % 496 == 0  # 16 steps of 31 environments


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("algorithm", "env"),
    [("dppo", CARTPOLE), ("ppo", PENDULUM), ("impala", CARTPOLE), ("a2c", PENDULUM), ("impact", CARTPOLE)],
)
def test_a_run_is_like_any_other(algorithm: str, env: str, tmp_path: Path) -> None:
    """Equal seeds give equal bits; it goes on where it was stopped, is evaluated, played, compressed."""
    options: dict[str, object] = {
        "env": env, "algorithm": algorithm, "results_dir": tmp_path, "stop_at_env_steps": 1024,
        "env_arg": ("max_episode_steps=20",),
    }  # fmt: skip
    if evaluates := algorithm == "dppo":
        options |= {"evaluate_every": 512, "evaluation_episodes": 2}
    summaries = [accel.train(config(**options, name=name)) for name in ("a", "b")]
    assert summaries[0].env_steps == 1024 and summaries[0].updates >= 2 and summaries[0].episodes >= 32
    assert (summaries[0].evaluation is not None) == evaluates and summaries[0].lag["lag_max"] in (0, 1)
    first, second = (load_run(tmp_path / name) for name in ("a", "b"))
    states = [run.algorithm.networks.state_dict() for run in (first, second)]
    assert all(torch.equal(values, states[1][name]) for name, values in states[0].items())
    resumed = accel.train(config(**options | {"stop_at_env_steps": None}, name="a"), resume=tmp_path / "a")
    assert resumed.env_steps == 2048 and resumed.updates > summaries[0].updates
    run = load_run(tmp_path / "a")
    games = play(run.compress("fp32"), run, episodes=3)
    assert len(games.returns) == 3 and games.lengths.max() <= 20
    np.testing.assert_allclose(games.returns, play(run.policy, run, episodes=3).returns, rtol=1e-4)


@pytest.mark.learning
@pytest.mark.parametrize(
    ("env", "steps", "target"),
    [(CARTPOLE, 1_000_000, 475.0), pytest.param(PENDULUM, 4_000_000, -250.0, marks=pytest.mark.long)],
)
def test_it_is_learned_with_the_defaults(env: str, steps: int, target: float, tmp_path: Path) -> None:
    """With a quarter of the environments, to be done in seconds."""
    summary = accel.train(
        TrainConfig(
            env=env, backend="device", envs_per_actor=1024, total_env_steps=steps, stop_at_return=target,
            results_dir=tmp_path, device="cpu", learner_threads=1,
        )
    )  # fmt: skip
    assert summary.return_mean is not None and summary.return_mean >= target
    assert "fp32 on torch on the device" in summary.text() and "--compressor" not in summary.text()
