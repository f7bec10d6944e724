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

from accel.compressors.artifact import CompressedPolicy
from accel.exporting import run_policy
from accel.exporting.build import export
from accel.sweep.sweep_file import load_sweep_file
from tests.accel.imports.test_import_policy import balancing_weights, write_zip
from tests.accel.runs.trained_runs import make_run

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


@pytest.mark.slow
def test_a_network_of_ones_own_is_trained_compressed_and_acts_in_a_script(tmp_path: Path) -> None:
    options = "--env CartPole-v1 --network own_network:residual --compressor int8 --calibration-size 16 --name run"
    sizes = "--actors 0 --envs-per-actor 2 --unroll-length 10 --total-env-steps 200"
    run("-m", "accel", "train", *f"{options} {sizes}".split(), directory=tmp_path)
    assert CompressedPolicy.read(tmp_path / "results/run/policy/final.accel").scheme == "int8"
    shown = run(str(EXAMPLES / "act_in_a_script.py"), "results/run", directory=tmp_path)
    assert float(shown.removeprefix("return ")) >= 8


@pytest.mark.slow
def test_a_policy_of_stable_baselines3_becomes_a_bundle(tmp_path: Path) -> None:
    write_zip(tmp_path / "ppo.zip", balancing_weights())
    words = ["ppo.zip", "--env", "CartPole-v1", "--out", "bundle", "--episodes", "2", "--accept-loss"]
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


@pytest.mark.long
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


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The loop in C++, compiled against the onnxruntime that Python has."""
    if headers() is None or shutil.which("g++") is None:
        pytest.skip(
            "needs g++ and the headers of onnxruntime (Debian 13: libonnxruntime-dev; or set ONNXRUNTIME_INCLUDE)"
        )
    directory = tmp_path_factory.mktemp("loop")
    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):  # the one is linked, the other loaded
        (directory / name).symlink_to(library)
    build = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{headers()}", str(EXAMPLES / "run_bundle.cpp")]
    link = [f"-L{directory}", f"-Wl,-rpath,{directory}", "-lonnxruntime", "-o", str(directory / "run_bundle")]
    subprocess.run([*build, *link], check=True)
    return directory / "run_bundle"


def answers(loop: Path, bundle: Path, episodes: list[list[np.ndarray]]) -> tuple[np.ndarray, str]:
    """Outputs [N, P] of the loop for episodes of observations [numbers], and what it says on standard error."""
    lines = "\n\n".join("\n".join(" ".join(map(str, row)) for row in episode) for episode in episodes)
    command = [loop, bundle / "model.onnx"]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    return np.array([line.split() for line in done.stdout.splitlines()], float), done.stderr


def test_the_loop_in_cpp_answers_as_the_policy_does(tmp_path: Path, loop: Path) -> None:
    run_path = make_run(tmp_path / "runs", env="Pendulum-v1", network="mlp:16x1+lstm:8", calibration_size=64)
    bundle = export(run_path, tmp_path / "bundle", scheme="int8", episodes=0).path
    episodes = list(map(list, np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)))
    found, told = answers(loop, bundle, episodes)
    policy = run_policy.Policy(bundle)
    wanted = [policy.act(row, first=step == 0)[1] for episode in episodes for step, row in enumerate(episode)]
    np.testing.assert_allclose(found, np.array(wanted), rtol=1e-4, atol=1e-5)
    without_state = [policy.act(row, first=True)[1] for row in episodes[0]]
    assert not np.allclose(found[:5], without_state, rtol=1e-4, atol=1e-5)
    assert '"names": ["observation[0]"' in told


@pytest.mark.parametrize(
    ("env", "network", "types"),
    [
        ("DictTarget-v0", "mlp:16x1", ["uint8", "float32", "float32"]),
        ("MaskedMemory-v0", "mlp:16x1+gru:8", ["float32", "uint8", "float32"]),
    ],
    ids=["image", "mask and memory"],
)
def test_the_loop_in_cpp_takes_every_type_of_input(
    env: str, network: str, types: list[str], tmp_path: Path, loop: Path
) -> None:
    options = {"network": network, "calibration_size": 64}
    run_path = make_run(tmp_path / "runs", env=f"tests.environments.structured:{env}", **options)
    bundle = export(run_path, tmp_path / "bundle", scheme="fp32", episodes=0).path
    policy, rng = run_policy.Policy(bundle), np.random.default_rng(0)
    specs = policy.contract["inputs"]
    assert [spec["dtype"] for spec in specs] == types
    states = [state["input"] for state in policy.contract["recurrent_state"]]
    parts = {spec["name"]: spec for spec in specs if spec["name"] not in states}

    def draw() -> dict[str, np.ndarray]:
        most = {name: 1 if name == "action_mask" else 255 for name in parts}
        found = {name: rng.integers(0, most[name], spec["shape"][1:], endpoint=True) for name, spec in parts.items()}
        found |= {name: rng.normal(size=spec["shape"][1:]) for name, spec in parts.items() if spec["dtype"] != "uint8"}
        return {name: values.astype(parts[name]["dtype"]) for name, values in found.items()}

    episodes = [[draw() for _ in range(3)] for _ in range(2)]
    rows = [
        [np.concatenate([part.reshape(-1) for part in drawn.values()]) for drawn in episode] for episode in episodes
    ]
    found, _ = answers(loop, bundle, rows)
    wanted = [policy.act(drawn, first=step == 0)[1] for episode in episodes for step, drawn in enumerate(episode)]
    np.testing.assert_allclose(found, np.array(wanted), rtol=1e-4, atol=1e-5)
    assert np.ptp(found, axis=0).max() > 1e-2, "the outputs do not depend on the inputs"
    done = subprocess.run([loop, bundle / "model.onnx"], input="1 2", capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "too few numbers" in done.stderr
