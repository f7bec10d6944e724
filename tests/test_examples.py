"""The examples under ``scripts/examples`` do what they say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from accel.exporting import run_policy
from accel.exporting.build import export
from accel.sweep.sweep_file import load_sweep_file
from compressors.artifact import CompressedPolicy
from tests.accel.test_import_policy import balancing_weights, write_zip
from tests.accel.trained_runs import make_run

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
    options = "--env minigrid:MiniGrid-Empty-5x5-v0 --wrapper minigrid_wrapper:view --network impala-resnet:0.25"
    sizes = "--actors 0 --envs-per-actor 2 --unroll-length 10 --total-env-steps 200 --name run --compressor int8"
    run("-m", "accel", "train", *f"{options} {sizes} --calibration-size 16".split(), directory=tmp_path)
    shown = run("-c", "from accel.runs.loading import load_run; from pathlib import Path; "
                "print(*load_run(Path('results/run')).policy.input_names)", directory=tmp_path)  # fmt: skip
    assert shown.split() == ["direction", "view"]


def headers() -> Path | None:
    """Where the headers of onnxruntime's C++ interface are: ``ONNXRUNTIME_INCLUDE``, or a directory of the system."""
    places = [os.environ.get("ONNXRUNTIME_INCLUDE", ""), "/usr/include/onnxruntime", "/usr/local/include/onnxruntime"]
    return next((Path(place) for place in places if place and (Path(place) / "onnxruntime_cxx_api.h").is_file()), None)


@pytest.mark.skipif(
    headers() is None or shutil.which("g++") is None,
    reason="needs g++ and the headers of onnxruntime (Debian 13: libonnxruntime-dev; or set ONNXRUNTIME_INCLUDE)",
)
def test_the_loop_in_cpp_answers_as_the_policy_does(tmp_path: Path) -> None:
    run_path = make_run(tmp_path / "runs", env="Pendulum-v1", network="mlp:16x1+lstm:8", calibration_size=64)
    bundle = export(run_path, tmp_path / "bundle", scheme="int8", episodes=0).path
    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):  # the one is linked, the other loaded
        (tmp_path / name).symlink_to(library)
    build = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{headers()}", str(EXAMPLES / "run_bundle.cpp")]
    link = [f"-L{tmp_path}", f"-Wl,-rpath,{tmp_path}", "-lonnxruntime", "-o", str(tmp_path / "run_bundle")]
    subprocess.run([*build, *link], check=True)
    episodes = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    lines = "\n\n".join("\n".join(" ".join(map(str, row)) for row in episode) for episode in episodes)
    done = subprocess.run(
        [tmp_path / "run_bundle", bundle / "model.onnx"], input=lines, capture_output=True, text=True, check=True
    )
    policy = run_policy.Policy(bundle)
    wanted = [policy.act(row, first=step == 0)[1] for episode in episodes for step, row in enumerate(episode)]
    found = np.array([line.split() for line in done.stdout.splitlines()], float)
    np.testing.assert_allclose(found, np.array(wanted), rtol=1e-4, atol=1e-5)
    without_state = [policy.act(row, first=True)[1] for row in episodes[0]]
    assert not np.allclose(found[:5], without_state, rtol=1e-4, atol=1e-5)
    assert '"names": ["observation[0]"' in done.stderr
