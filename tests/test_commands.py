"""Commands of README and docs start: training small and in one process, the others on what a short run left."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import accel
from accel.cli.train import parse
from accel.config import TrainConfig
from accel.system.module_path import add_working_directory
from accel.transport.launcher import detect_launch
from tests.accel.imports.test_import_policy import ppo_weights, write_zip
from tests.test_docs import PAGES, PROJECT, commands, fences

COMMANDS = dict.fromkeys(
    shlex.join(words[2:])
    for page in PAGES
    for words in commands(page)
    if words[1] == "train" and len(words) > 2 and not {"--help", "--resume", "--init-from", "ID"} & set(words)
)
OTHERS = dict.fromkeys(
    shlex.join(words)
    for page in PAGES
    for words in commands(page)
    if words[0] == "accel"
    and (len(words) > 2 or words[1] == "doctor")
    and (words[1] != "train" or words[2:] == ["--resume", "results/NAME"] or "--init-from" in words)
)
LESS: Mapping[str, Mapping[str, str]] = {
    "evaluate": {"--episodes": "2"},
    "export": {"--episodes": "2"},
    "compress": {"--episodes": "2"},
    "bench": {"--seconds": "0.5", "--repeats": "1"},
    "sweep": {"--trials": "2", "--episodes": "2"},
    "train": {"--total-env-steps": "1500"},
}
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


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of two short runs, the first with a best policy."""
    small = {"network": "mlp:16x1", "unroll_length": 32, "minibatches": 4, "evaluate_every": 500}
    directory = tmp_path_factory.mktemp("trained")
    options = {"env": "CartPole-v1", "actors": 0, "total_env_steps": 1000, "results_dir": directory, **small}
    accel.train(TrainConfig.create(**options, name="run"))
    accel.train(TrainConfig.create(**options, name="other", compressor="int8"))
    return directory


@pytest.mark.long
@pytest.mark.parametrize("command", OTHERS)
def test_another_command_of_a_page_does_what_it_says(command: str, trained: Path, tmp_path: Path) -> None:
    words = shlex.split(command)
    for word in words:
        if word.startswith("results/"):
            several = any(other.startswith(f"{word}/") for other in words)
            source = trained / ("other" if several or word.endswith("/B") else "run")
            shutil.copytree(source, tmp_path / word / "int8-s0" if several else tmp_path / word)
    write_zip(tmp_path / "ppo.zip", ppo_weights(4, 2))
    if words[1:] == ["verify", "bundle"]:
        accel.export(trained / "run", tmp_path / "bundle", scheme="int8", episodes=2)
    for name in ("sweep.toml", "population.toml"):
        text = (PROJECT / "scripts/examples" / name).read_text()
        for option, value in {"trials": "2", "total_env_steps": "1024", "stop_at_return": "9.0"}.items():
            text = re.sub(rf"^{option} = [\d_.]+", f"{option} = {value}", text, flags=re.MULTILINE)
        for place in (tmp_path / name, tmp_path / "scripts" / "examples" / name):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
    for option, value in LESS.get(" ".join(words[1:3]), LESS.get(words[1], {})).items():
        if option in words:
            words[words.index(option) + 1] = value
        elif "--population" not in words and ("--config" not in words or option == "--trials"):
            words += [option, value]
    if "--population" in words:
        words[words.index("--population") + 1], words[words.index("--generations") + 1] = "4", "1"
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(PROJECT)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0 and "Traceback" not in done.stderr, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
