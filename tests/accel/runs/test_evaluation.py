"""Playing trained policies: episodes counted without bias, repeatable, the same on onnxruntime and in torch."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import imageio.v3
import imageio_ffmpeg
import numpy as np
import pytest
import torch

from accel.acting.torch_policy import TorchSession
from accel.cli import main
from accel.compressors.errors import SchemeError
from accel.compressors.runtime import PolicySession
from accel.envs.seeding import env_seeds
from accel.errors import CheckpointError, ConfigError, EnvError
from accel.runs.evaluation import evaluate, paired_difference
from accel.runs.loading import TrainedRun, load_run
from accel.runs.player import Player
from accel.runs.playing import collect_inputs, play
from accel.runs.video import record_episode
from tests.accel.runs.trained_runs import make_run
from tests.environments.closed_form import SCRIPT, episode_return

CLOSED_FORM = "tests.environments:ClosedForm-v0"
DICT_TARGET = "tests.environments.structured:DictTarget-v0"


@pytest.fixture
def cartpole(tmp_path: Path) -> TrainedRun:
    return load_run(make_run(tmp_path / "runs", env="CartPole-v1", network="mlp:16x2"))


@pytest.mark.parametrize("env", [CLOSED_FORM, "tests.environments:ClosedFormSameStep-v0"])
def test_returns_and_lengths_are_those_of_the_first_episodes_started(tmp_path: Path, env: str) -> None:
    run = load_run(make_run(tmp_path, env=env, network="mlp:8x1"))
    constant = ConstantPolicy(run)
    episodes = play(constant, run, episodes=11, seed=3, envs=4)
    streams = set()
    for i, (total, length) in enumerate(zip(episodes.returns, episodes.lengths, strict=True)):
        number, row = divmod(i, 4)
        seeds = env_seeds((3, 1_000_000, number), 4)
        stream = (seeds[row] if env == CLOSED_FORM else seeds[0] + row) % len(SCRIPT)
        streams.add(stream)
        assert length == SCRIPT[stream][0]
        assert total == episode_return(0, length, length * constant.action)
    assert len(set(episodes.lengths)) > 2
    assert episodes.distinct == len(streams) <= 5
    assert episodes.caveat is not None and f"only {len(streams)} of 11 games differ" in episodes.caveat


def test_games_of_one_length_and_return_differ_where_they_end_differently(cartpole: TrainedRun) -> None:
    episodes = play(ConstantPolicy(cartpole), cartpole, episodes=20)
    assert len(set(zip(episodes.returns, episodes.lengths, strict=True))) < 10
    assert episodes.distinct == 20 and episodes.caveat is None


class ConstantPolicy(torch.nn.Module):
    """Always prefers the last action."""

    def __init__(self, run: TrainedRun) -> None:
        super().__init__()
        self.size = run.spec.action.param_size
        self.action = self.size - 1

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return torch.arange(self.size).float().expand(len(observations), -1)


@pytest.mark.parametrize("greedy", [True, False])
def test_the_same_seed_gives_the_same_episodes_on_onnxruntime_and_in_torch(cartpole: TrainedRun, greedy: bool) -> None:
    artifact = cartpole.compress("fp32")
    first, again, in_torch, other = (
        play(policy, cartpole, episodes=7, envs=3, seed=seed, greedy=greedy)
        for policy, seed in ((artifact, 1), (artifact, 1), (cartpole.policy, 1), (artifact, 2))
    )
    assert np.array_equal(first.returns, again.returns)
    assert np.array_equal(first.returns, in_torch.returns)
    assert not np.array_equal(first.returns, other.returns)
    assert np.array_equal(first.returns, first.lengths)


def test_recurrent_state_is_carried_and_zeroed_where_an_episode_begins(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path, env="Pendulum-v1", network="mlp:8x1+lstm:8"))
    artifact = run.compress("fp32")
    players = (
        Player(PolicySession(artifact, batch=2), run.spec),
        Player(TorchSession(run.policy, run.example_inputs, 2), run.spec),
    )
    rng = np.random.default_rng(0)
    observations = rng.standard_normal((4, 2, 3)).astype(np.float32)
    starts = [np.array([True, True]), None, np.array([False, True]), None]
    for player in players:
        steps = [player.params(row, first).copy() for row, first in zip(observations, starts, strict=True)]
        fresh = Player(PolicySession(artifact, batch=2), run.spec).params(observations[2], np.array([True, True]))
        np.testing.assert_allclose(steps[2][1], fresh[1], rtol=1e-5, atol=1e-6)
        assert not np.allclose(steps[2][0], fresh[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(players[0].inputs()["state_0"], players[1].inputs()["state_0"], rtol=1e-4, atol=1e-6)


def test_collected_inputs_are_real_repeatable_and_spread_over_episodes(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path, env=CLOSED_FORM, network="mlp:8x1+lstm:4"))
    inputs = collect_inputs(run, 60, seed=4, envs=4, steps=40)
    again = collect_inputs(run, 60, seed=4, envs=4, steps=40)
    assert {name: array.shape for name, array in inputs.items()} == {
        "observations": (60, 3),
        "state_0": (60, 4),
        "state_1": (60, 4),
    }
    assert all(np.array_equal(inputs[name], again[name]) for name in inputs)
    episode, t, _ = inputs["observations"].T
    assert episode.max() > 5
    begins = t == 0
    assert begins.any() and not inputs["state_0"][begins].any()
    assert inputs["state_0"][~begins].any(axis=1).all()


def test_an_evaluation_compares_a_scheme_with_full_precision(cartpole: TrainedRun) -> None:
    result = evaluate(cartpole, scheme="int8", episodes=6, baseline=True)
    assert result.scheme == ("int8" if result.mixed is None else "mixed")
    assert result.baseline is not None
    full = play(cartpole.compress("fp32"), cartpole, episodes=6)
    assert np.array_equal(result.baseline.returns, full.returns)
    expected = float((result.episodes.returns - full.returns).mean())
    assert result.difference is not None
    assert result.difference.estimate == pytest.approx(expected)
    text = result.text()
    assert f"{result.scheme}: mean return" in text and (result.mixed or "") in text
    assert "fp32: mean return" in text and "same seeds" in text
    assert json.loads(json.dumps(result.to_json()))["episodes"]["returns"] == result.episodes.returns.tolist()


def test_one_episode_has_a_mean_and_no_interval(cartpole: TrainedRun) -> None:
    result = evaluate(cartpole, episodes=1, baseline=True)
    assert (result.mean, result.difference) == (None, None)
    assert "mean return" in result.text()
    assert paired_difference(result.episodes, result.episodes) is None


def test_an_artifact_is_played_as_it_is_or_refused(cartpole: TrainedRun, tmp_path: Path) -> None:
    path = tmp_path / "policy.accel"
    path.write_bytes(cartpole.compress("fp16").to_bytes())
    assert evaluate(cartpole, artifact=path, episodes=2).scheme == "fp16"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="checksum"):
        evaluate(cartpole, artifact=path, episodes=2)
    with pytest.raises(ConfigError, match="cannot read"):
        evaluate(cartpole, artifact=tmp_path / "nothing", episodes=2)
    with pytest.raises(ConfigError, match="not both"):
        evaluate(cartpole, artifact=path, scheme="int8")
    other = load_run(make_run(tmp_path / "other", env="Pendulum-v1", network="mlp:8x1"))
    path.write_bytes(other.compress("fp32").to_bytes())
    with pytest.raises(ConfigError, match="is not the policy of"):
        evaluate(cartpole, artifact=path)


def test_bad_numbers_and_schemes_are_named(cartpole: TrainedRun) -> None:
    with pytest.raises(ConfigError, match="0 episodes"):
        evaluate(cartpole, episodes=0)
    for numbers in ({"episodes": 10**12}, {"episodes": 10**6, "envs": 10**6}):
        with pytest.raises(ConfigError, match=r"at most 1,000,000, .* on 4,096"):
            evaluate(cartpole, **numbers)
    with pytest.raises(SchemeError, match="choose from"):
        evaluate(cartpole, scheme="int9")
    with pytest.raises(ConfigError, match="at least one"):
        collect_inputs(cartpole, 0)


def test_an_episode_without_an_end_is_an_error(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path, env="Pendulum-v1", network="mlp:8x1", env_arg=("max_episode_steps=-1",)))
    with pytest.raises(EnvError, match="has not ended after 50 steps"):
        play(run.compress("fp32"), run, episodes=1, max_episode_steps=50)


def test_a_reward_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    wrapper = ("tests.environments.troubled:NanReward",)
    run = load_run(make_run(tmp_path, env="CartPole-v1", network="mlp:8x1", wrapper=wrapper))
    with pytest.raises(EnvError, match=r"environment 0 of 'CartPole-v1' gave the reward nan in step .*: mend the"):
        play(run.compress("fp32"), run, episodes=60, envs=1)


@pytest.mark.parametrize(
    ("env", "trouble"),
    [("CartPole-v1", None), ("CartPole-v1", "NanObservation"), (DICT_TARGET, None), (DICT_TARGET, "NanPart")],
)
def test_observations_that_are_not_finite_are_said(
    env: str, trouble: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrapper = () if trouble is None else (f"tests.environments.troubled:{trouble}",)
    run = load_run(make_run(tmp_path, env=env, network="auto", wrapper=wrapper))
    play(run.compress("fp32"), run, episodes=60, envs=1)
    said = [record.message for record in caplog.records if "not finite" in record.message]
    assert [message.startswith(f"{env} gave observations that are") for message in said] == [True] * bool(trouble)


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        ("Raises", r"raised in step .* ValueError: the simulator broke"),
        ("Exits", r"an environment left through exit\(0\): mend"),
        ("Bare", "an environment raised BareError: the simulator broke: mend"),
    ],
)
def test_an_episode_whose_environment_raises_has_no_return(trouble: str, told: str, tmp_path: Path) -> None:
    wrapper = (f"tests.environments.troubled:{trouble}",)
    run = load_run(make_run(tmp_path, env="CartPole-v1", network="mlp:8x1", wrapper=wrapper))
    policy = run.compress("fp32")
    for use in (lambda: play(policy, run, episodes=400, envs=2), lambda: collect_inputs(run, 2000, envs=1)):
        with pytest.raises(EnvError, match=told) as caught:
            use()
        assert len(str(caught.value)) < 5000


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_an_episode_becomes_a_video(cartpole: TrainedRun, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"episode{suffix}"
    episodes = record_episode(cartpole.compress("fp32"), cartpole, path)
    if suffix == ".gif":
        frames = imageio.v3.imread(path, index=None)
        assert frames.shape[1:] == (400, 600, 3)
        count = len(frames)
    else:
        count, _ = imageio_ffmpeg.count_frames_and_secs(str(path))
    assert abs(count - episodes.lengths[0]) <= 2
    assert [entry.name for entry in tmp_path.iterdir() if "partial" in entry.name] == []


def test_a_video_that_cannot_be_written_says_so(cartpole: TrainedRun, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must end in"):
        evaluate(cartpole, video=tmp_path / "episode.avi")
    with pytest.raises(ConfigError, match="cannot write video"):
        evaluate(cartpole, video=tmp_path / "nowhere" / "episode.gif")


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_a_video_that_its_writer_could_not_finish_is_one_message(suffix: str, tmp_path: Path) -> None:
    """ffmpeg meets the full disk, and says so in its log alone; imageio's writer of GIFs meets it over and over."""
    path = make_run(tmp_path, env="CartPole-v1", network="mlp:16x2")
    command = [sys.executable, "-m", "accel", "evaluate", str(path), "--episodes", "1"]
    done = subprocess.run(
        [*command, "--video", str(tmp_path / f"episode{suffix}")], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},  # the limit would cut the interpreter's own files too
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024)),
    )  # fmt: skip
    assert done.returncode == ConfigError.exit_code
    assert done.stderr.count("accel: cannot write video") == 1, done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr
    assert not [*tmp_path.glob(f"*{suffix}"), *tmp_path.glob(f".*{suffix}")]


def test_the_command_prints_figures_and_one_line_for_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_run(tmp_path, env="CartPole-v1", network="mlp:16x2")
    assert main(["evaluate", str(path), "--episodes", "3", "--sample", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["episodes"]["returns"]) == 3
    empty = make_run(tmp_path / "empty", checkpoint=False)
    assert main(["evaluate", str(empty)]) == CheckpointError.exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("accel: ") and captured.err.count("\n") == 1
