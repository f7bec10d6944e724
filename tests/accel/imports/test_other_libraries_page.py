"""Every command of docs/from-other-libraries.md works on files as these libraries write them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from accel.cli import main
from tests.accel.imports.foreign_policies import Agent
from tests.accel.imports.test_import_policy import agent, balancing_weights, write_zip
from tests.accel.imports.test_programs import Around, Normalised, rsl_rl, write_onnx, write_script

PAGE = Path(__file__).parents[3] / "docs" / "from-other-libraries.md"
COMMANDS = "".join(re.findall(r"```\n(.*?)```", PAGE.read_text(), re.DOTALL)).strip().splitlines()


class Padded(Around):
    """RLlib's export of a policy without state, which is left out."""

    def forward(self, obs: Tensor, state_ins: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(obs), state_ins


def write(name: str) -> None:
    """A file as the page names it, in the working directory."""
    path, row = Path(name), torch.zeros(1, 3)
    if name == "ppo.zip":
        write_zip(path, balancing_weights())
    elif name == "agent.safetensors":
        save_file(agent(Agent, "CartPole-v1").state_dict(), path)
        Path("ppo.py").write_text("from tests.accel.imports.foreign_policies import Agent\n")
    elif name == "model_1500.pt":
        torch.save(rsl_rl("5")[0], path)  # noqa: TID251 - as rsl_rl does
    elif name == "policy.pt":
        write_script(path, Normalised())
    elif name == "policy.onnx":
        write_onnx(path, Normalised(), [row], ["obs"], ["actions"])
    else:
        names, outputs = ["obs", "state_ins"], ["output", "state_outs"]
        write_onnx(path, Padded(3, 2), [row, torch.zeros(1)], names, outputs)


def test_each_library_has_a_command() -> None:
    titles = re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE)
    assert titles == ["Stable-Baselines3 and sb3-contrib", "CleanRL", "rsl_rl", "Isaac Lab", "RLlib"]
    assert len(COMMANDS) == len(titles) + 2


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_works(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program, *words = shlex.split(command)
    assert program == "accel"
    write(words[words.index("--policy") + 1])
    np.savez("rows.npz", np.random.default_rng(0).standard_normal((200, 3)))
    quick = {"compress": ["--episodes", "2"], "bench": ["--seconds", "0.2", "--runtimes", "onnxruntime"]}
    if "--observations" in words and words[0] == "compress":
        quick = {}
    if "--module" in words:  # found in the working directory of a process of its own
        paths = os.pathsep.join((str(PAGE.parents[1]), str(tmp_path)))
        run = [sys.executable, "-m", "accel", *words, *quick["compress"]]
        assert subprocess.run(run, env=os.environ | {"PYTHONPATH": paths}).returncode == 0
        return
    assert main([*words, *quick.get(words[0], [])]) == 0
    said = capsys.readouterr().out
    assert ("returns are not measured" in said or "recorded observations" in said) == ("--observations" in words)
