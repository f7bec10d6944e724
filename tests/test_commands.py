"""Training commands of README and docs start: small, in one process, until something was learned from."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

import accel
from accel.cli.train import parse
from accel.config import TrainConfig
from accel.system.module_path import add_working_directory
from accel.transport.launcher import detect_launch
from tests.test_docs import PAGES, PROJECT, commands, fences

COMMANDS = dict.fromkeys(
    shlex.join(words[2:])
    for page in PAGES
    if page.parent != PROJECT / "results"  # whose commands are evidence's, in part with … for options
    for words in commands(page)
    if words[1] == "train" and len(words) > 2 and not {"--help", "--resume", "ID"} & set(words)
)
QUICK = ("--env LunarLander-v3", "--env Pendulum-v1 --actors 0")

MY_PACKAGE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.spaces import Box
from gymnasium.wrappers import FrameStackObservation, GrayscaleObservation, TransformObservation
from torch import nn


class MyEnv(CartPoleEnv):
    def __init__(self, difficulty=1, **options):
        super().__init__(**options)


def frame_skip(env):
    return env


def frame_stack(env):
    small = Box(0, 255, (105, 80), "uint8")
    return FrameStackObservation(TransformObservation(GrayscaleObservation(env), lambda o: o[::2, ::2], small), 4)


def make_torso(spec):
    return nn.Sequential(nn.Flatten(), nn.Linear(spec.observation_shape[0], 16), nn.Tanh())


gymnasium.register("MyEnv-v0", entry_point=MyEnv, max_episode_steps=100)
"""


@pytest.mark.parametrize(
    "command", [pytest.param(line, marks=() if line in QUICK else pytest.mark.long) for line in COMMANDS]
)
def test_a_training_command_of_a_page_starts(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    add_working_directory()
    algorithm = next(block for block in fences(PROJECT / "docs/adding-an-algorithm.md", "python") if "factory" in block)
    Path("a2c.py").write_text(algorithm)
    Path("my_package.py").write_text(f"{MY_PACKAGE}\n\nfrom a2c import factory as make_algorithm\n")
    Path("run.toml").write_text('env = "CartPole-v1"\n')
    config = parse(shlex.split(command), detect_launch({})).config
    small: dict[str, object] = {
        "actors": 0, "learners": 1, "total_env_steps": 1, "envs_per_actor": 2, "env_workers": 0, "hosts": None,
        "task": (),
    }  # fmt: skip
    options = {name: value for name, value in config.options().items() if name not in {"batch_unrolls", "name"}}
    summary = accel.train(TrainConfig.create(**{**options, **{name: small[name] for name in small if name in options}}))
    assert summary.finished and summary.env_steps
