"""The examples under ``scripts/examples`` do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from accel.sweep.sweep_file import load_sweep_file
from compressors.artifact import CompressedPolicy
from tests.accel.test_import_policy import balancing_weights, write_zip

PROJECT = Path(__file__).parents[1]
EXAMPLES = PROJECT / "scripts" / "examples"
PATH = os.pathsep.join([str(EXAMPLES), str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])])


def run(*words: str, directory: Path) -> str:
    """What a command prints; it has to succeed."""
    done = subprocess.run(
        [sys.executable, *words], cwd=directory, env={**os.environ, "PYTHONPATH": PATH}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.learning
def test_an_environment_of_ones_own_is_learned(tmp_path: Path) -> None:
    last = run(str(EXAMPLES / "own_environment.py"), directory=tmp_path).splitlines()[-1]
    assert float(last.removeprefix("return ")) >= 85


def test_a_network_of_ones_own_is_trained_compressed_and_acts_in_a_script(tmp_path: Path) -> None:
    options = "--env CartPole-v1 --network own_network:residual --compressor int8 --calibration-size 16 --name run"
    sizes = "--actors 0 --envs-per-actor 2 --unroll-length 10 --total-env-steps 200"
    run("-m", "accel", "train", *f"{options} {sizes}".split(), directory=tmp_path)
    assert CompressedPolicy.read(tmp_path / "results/run/policy/final.accel").scheme == "int8"
    shown = run(str(EXAMPLES / "act_in_a_script.py"), "results/run", directory=tmp_path)
    assert float(shown.removeprefix("return ")) >= 8


def test_a_policy_of_stable_baselines3_becomes_a_bundle(tmp_path: Path) -> None:
    write_zip(tmp_path / "ppo.zip", balancing_weights())
    words = ["ppo.zip", "--env", "CartPole-v1", "--out", "bundle", "--episodes", "2"]
    shown = run(str(EXAMPLES / "sb3_to_bundle.py"), *words, directory=tmp_path)
    assert "int8" in shown
    run("bundle/run_policy.py", "--verify", directory=tmp_path)


def test_the_sweep_file_is_one(tmp_path: Path) -> None:
    file = load_sweep_file(EXAMPLES / "sweep.toml")
    assert set(file.space) == {"compressor", "learning_rate", "passes"}
    assert file.sweep["objectives"] == ["training_s", "bytes"]


@pytest.mark.long
def test_the_sweep_runs(tmp_path: Path) -> None:
    words = ["--config", str(EXAMPLES / "sweep.toml"), "--trials", "2", "--out", "swept"]
    run("-m", "accel", "sweep", *words, directory=tmp_path)
    assert (tmp_path / "swept" / "pareto.md").is_file()


@pytest.mark.learning
def test_the_courier_learns_to_arrive_and_is_exported(tmp_path: Path) -> None:
    shown = run(str(EXAMPLES / "dict_observations.py"), directory=tmp_path)
    lines = shown.splitlines()
    reached = next(line for line in lines if line.startswith("return "))
    assert float(reached.removeprefix("return ")) > 0.9
    assert any(line.startswith("arrived after ") for line in lines)
    assert lines[-1] == "inputs of the model: map, place, action_mask"


def test_minigrids_view_is_trained_on(tmp_path: Path) -> None:
    pytest.importorskip("minigrid", reason="needs the package minigrid")
    options = "--env minigrid:MiniGrid-Empty-5x5-v0 --wrapper minigrid_wrapper:view --network impala-resnet:0.25"
    sizes = "--actors 0 --envs-per-actor 2 --unroll-length 10 --total-env-steps 200 --name run --compressor int8"
    run("-m", "accel", "train", *f"{options} {sizes} --calibration-size 16".split(), directory=tmp_path)
    shown = run("-c", "from accel.runs.loading import load_run; from pathlib import Path; "
                "print(*load_run(Path('results/run')).policy.input_names)", directory=tmp_path)  # fmt: skip
    assert shown.split() == ["direction", "view"]
