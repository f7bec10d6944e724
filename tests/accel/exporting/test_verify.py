"""``accel verify`` and a bundle's own ``run_policy.py``: any damage is noticed, and only onnxruntime is needed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime as ort
import pytest
from gymnasium.spaces import flatten

from accel.cli import main
from accel.errors import BundleError
from accel.exporting import run_policy
from accel.exporting.build import export
from accel.exporting.verify import verify
from accel.runs.loading import load_run
from tests.accel.runs.trained_runs import make_run
from tests.environments.closed_form import FIRST_ACTION

PROJECT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bundles")
    run = make_run(
        directory / "runs",
        env="tests.environments:ClosedForm-v0",
        env_arg=("observation=dict",),
        network="mlp:16x1+lstm:8",
        calibration_size=32,
    )
    return export(run, directory / "bundle", scheme="fp32", episodes=2).path


@pytest.fixture
def bundle(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "bundle"))


def flip(path: Path, position: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def resum(bundle: Path, change: Callable[[dict[str, Any]], None] = lambda contract: None) -> None:
    """Change the contract and make every checksum right again: damage that only its meaning shows."""
    contract = json.loads((bundle / "contract.json").read_text())
    for name, facts in contract["files"].items():
        facts["sha256"] = hashlib.sha256((bundle / name).read_bytes()).hexdigest()
    change(contract)
    (bundle / "contract.json").write_text(json.dumps(contract))
    sums = {name: facts["sha256"] for name, facts in contract["files"].items()}
    sums["contract.json"] = hashlib.sha256((bundle / "contract.json").read_bytes()).hexdigest()
    (bundle / "SHA256SUMS").write_text(run_policy.sums_text(sums))


def test_a_copy_verifies(bundle: Path) -> None:
    result = verify(bundle)
    # vectors are of compiled kernels, whose sums of floats round otherwise
    assert result.scheme == "fp32" and float(str(result.vectors["relative"])) <= 1e-6
    resum(bundle)
    assert verify(bundle).vectors == result.vectors


def test_a_flipped_byte_anywhere_is_noticed(bundle: Path) -> None:
    rng = np.random.default_rng(0)
    names = sorted(path.name for path in bundle.iterdir())
    assert len(names) == 9
    for name in names:
        size = (bundle / name).stat().st_size
        for position in {0, size - 1, *rng.integers(0, size, 5).tolist()}:
            bit = int(rng.integers(0, 8))
            flip(bundle / name, position, bit)
            with pytest.raises(BundleError):
                verify(bundle)
            flip(bundle / name, position, bit)
    verify(bundle)


@pytest.mark.parametrize("name", ["SHA256SUMS", "contract.json", "model.onnx", "vectors.npz", "report.json"])
def test_missing_and_truncated_files_are_noticed(bundle: Path, name: str) -> None:
    content = (bundle / name).read_bytes()
    (bundle / name).write_bytes(content[:-1])
    with pytest.raises(BundleError):
        verify(bundle)
    (bundle / name).unlink()
    with pytest.raises(BundleError):
        verify(bundle)


def test_what_is_no_bundle_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BundleError, match="is no complete bundle"):
        verify(tmp_path)
    assert main(["verify", str(tmp_path / "nothing")]) == BundleError.exit_code
    captured = capsys.readouterr()
    assert captured.err.startswith("accel: ") and captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda contract: contract.update(format_version=99), "has format 99"),
        (lambda contract: contract.update(format="other"), "is not the contract"),
        (lambda contract: contract["model"].update(cpu_features=["vnni", "tensor-unit"]), "tensor-unit"),
        (lambda contract: contract["inputs"].pop(), "states are not the last inputs, or not the outputs after"),
        (
            lambda contract: contract["inputs"][0].update(shape=["batch", 99]),
            "model.onnx has other inputs than the contract says",
        ),
        (lambda contract: contract["outputs"][0].update(dtype="float64"), "wrong name or type"),
        (lambda contract: contract["vectors"].update(rows=1), r"says \[1, \d+\] float32 for the test vec"),
        (lambda contract: contract.update(model={}), "not one that this version understands"),
    ],
)
def test_contracts_that_do_not_hold_are_refused(
    bundle: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    resum(bundle, change)
    with pytest.raises(BundleError, match=message):
        verify(bundle)


def test_a_bundle_s_texts_reach_no_terminal_as_commands(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resum(bundle, lambda contract: contract["model"].update(cpu_features=["\x1b[2J"]))
    assert run_policy.main(["--verify", "--bundle", str(bundle)]) == 1
    assert main(["verify", str(bundle)]) == 1
    told = capsys.readouterr().err
    assert told.count("CPU features") == 2 and "\x1b" not in told


def test_a_model_that_computes_something_else_fails_its_vectors(bundle: Path) -> None:
    with np.load(bundle / "vectors.npz") as stored:
        arrays = dict(stored.items())
    arrays["output/params"] = arrays["output/params"] + 0.1 * arrays["output/params"].std(axis=0)
    np.savez_compressed(bundle / "vectors.npz", **arrays)
    resum(bundle)
    with pytest.raises(BundleError, match="output 'params' differs from the test vectors"):
        verify(bundle)
    done = run_program(bundle, "--verify")
    assert done.returncode == 1
    assert done.stderr.startswith("run_policy: output 'params' differs") and done.stderr.count("\n") == 1


def run_program(
    bundle: Path, *arguments: str, python: str = sys.executable, text: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, str(bundle / "run_policy.py"), *arguments],
        input=text,
        capture_output=True,
        text=True,
        cwd=PROJECT if python == sys.executable else bundle,
        env={**os.environ, "PYTHONPATH": str(PROJECT) if python == sys.executable else ""},
        check=False,
    )


def as_inputs(space: gymnasium.spaces.Dict, observation: dict[str, Any]) -> dict[str, list[float]]:
    """A Dict observation as a line gives it: each entry flattened, by its name."""
    return {name: np.asarray(flatten(space[name], observation[name]), np.float32).tolist() for name in observation}


def greedy_episode(run_path: Path) -> list[tuple[dict[str, list[float]], int]]:
    """(observation, action) of every step of the run in an episode, in a loop written out here."""
    run = load_run(run_path)
    env = gymnasium.make("tests.environments:ClosedForm-v0", observation="dict")
    steps = []
    observation, _ = env.reset(seed=0)
    over = False
    while not over:
        action = int(run.act(observation, first=not steps))
        steps.append((as_inputs(env.observation_space, observation), action))
        observation, _, terminated, truncated, _ = env.step(action)
        over = terminated or truncated
    return steps


def zeros(policy: run_policy.Policy) -> dict[str, np.ndarray]:
    """An observation by the names of the policy's inputs."""
    return {spec["name"]: np.zeros(spec["shape"][1:]) for spec in policy.contract["inputs"][:2]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1, 2, 3, 4]", 'the line has no "observation": give'),
        ("{}", 'the line has no "observation": give'),
        ("7", 'the line has no "observation": give'),
        ("{", "the line is no JSON: give"),
        ('{"observation": VALUES, "first": 1}', '"first" is 1: give true'),
        ('{"observation": [1, 2, 3, 4]}', "the observation is no dictionary of time, which"),
        ('{"observation": {"x": 1}}', "the observation lacks time, which"),
        ('{"observation": {"time": [1]}}', "the observation lacks which"),
        ('{"observation": {"time": [null, 1], "which": [0]}}', "is not an array of numbers"),
        ('{"observation": {"time": {"x": 1}, "which": [0]}}', "is not an array of numbers"),
        ('{"observation": {"time": [[1], 2], "which": [0]}}', "is not an array of numbers"),
        ('{"observation": {"time": [NaN, 1], "which": [0]}}', "not finite"),
        ('{"observation": {"time": [1e999, 1], "which": [0]}}', "not finite"),
        ('{"observation": {"time": [1e200, 1], "which": [0]}}', "not finite, or too great"),
        ('{"observation": {"time": [1], "which": [0]}}', "the observation's time has shape [1], the policy takes"),
    ],
)
def test_bad_lines_get_one_clear_message_each(
    line: str, message: str, original: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = run_policy.Policy(original)
    good = json.dumps({name: values.tolist() for name, values in zeros(policy).items()})
    line = line.replace("VALUES", good)
    monkeypatch.setattr("sys.stdin", io.StringIO(line + '\n{"observation": ' + good + "}\n"))
    run_policy.answer(policy)
    refused, answered = map(json.loads, capsys.readouterr().out.splitlines())
    assert refused.keys() == {"error"} and message in refused["error"] and "Error" not in refused["error"]
    assert answered.keys() == {"action", "params"}


def test_images_are_codes() -> None:
    assert run_policy.as_observation([0, 255], "uint8").tolist() == [0, 255]
    for values in ([256], [-1], [0.5]):
        with pytest.raises(ValueError, match="integers from 0 to 255"):
            run_policy.as_observation(values, "uint8")


def test_other_files_runs_and_damaged_checksums_are_named(bundle: Path, original: Path) -> None:
    (bundle / "notes.txt").touch()
    with pytest.raises(BundleError, match=r"none of the bundle's: notes\.txt; remove"):
        verify(bundle)
    (bundle / "notes.txt").unlink()
    sums = (bundle / "SHA256SUMS").read_text()
    (bundle / "SHA256SUMS").write_text(("1" if sums[0] == "0" else "0") + sums[1:])
    with pytest.raises(BundleError, match="is damaged, or SHA256SUMS is"):
        verify(bundle)
    with pytest.raises(BundleError, match="is not a bundle, it is a run: accel export"):
        verify(original.parent / "runs" / "run")


def test_a_program_of_ones_own_can_import_it(original: Path) -> None:
    policy = run_policy.Policy(original, sample=True, seed=3)
    observation = zeros(policy)
    counts = np.bincount([int(policy.act(observation, first=True)[0]) for _ in range(400)], minlength=6)
    assert counts[:FIRST_ACTION].sum() == 0 and counts.sum() == 400
    _, params = policy.act(observation, first=True)
    expected = np.exp(params - params.max()) / np.exp(params - params.max()).sum()
    np.testing.assert_allclose(counts[FIRST_ACTION:] / 400, expected, atol=0.1)
    with pytest.raises(ValueError, match="the policy takes"):
        policy.act({**observation, "which": np.zeros(1)})


@pytest.mark.parametrize("squash", [False, True])
def test_gaussian_actions_end_as_environments_take_them(squash: bool) -> None:
    action = {"kind": "gaussian", "sizes": [2], "shape": [1, 2], "low": [-1.0, "-inf"], "high": [3.0, "inf"]}
    action |= {"sampling": {"rule": "distribution"}}
    if squash:
        action |= {"low": [-1.0, 0.0], "high": [3.0, 2.0]}
    params = np.array([5.0, 0.5, -20.0, -20.0], np.float32)
    for rng in (None, np.random.default_rng(0)):
        found = run_policy.choose_action(params, {**action, "squash": squash}, rng)
        expected = [1 + 2 * np.tanh(5.0), 1 + np.tanh(0.5)] if squash else [3.0, 0.5]
        np.testing.assert_allclose(found, [expected], rtol=1e-5)
        assert found.dtype == np.float32


def test_multi_discrete_actions_take_the_best_of_every_part() -> None:
    action = {"kind": "multi_categorical", "sizes": [2, 3], "shape": [2], "start": [0, 10]}
    action["sampling"] = {"rule": "distribution"}
    found = run_policy.choose_action(np.array([0.0, 1.0, 5.0, 2.0, 3.0]), action, None)
    assert found.tolist() == [1, 10]


def test_the_round_trip_needs_numpy_and_onnxruntime_only(original: Path, tmp_path: Path) -> None:
    """A virtual environment of its own, with these two packages alone."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    site = next((tmp_path / "venv" / "lib").glob("python*")) / "site-packages"
    for package in (np, ort):
        source = Path(str(package.__file__)).parent
        for path in (source, source.with_name(f"{source.name}.libs")):
            if path.exists():
                (site / path.name).symlink_to(path)
    verified = run_program(original, "--verify", python=python)
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["vectors"]["relative"] <= 1e-6
    steps = greedy_episode(original.parent / "runs" / "run")
    requests = [json.dumps({"observation": row, "first": i == 0}) for i, (row, _) in enumerate(steps)]
    answered = run_program(original, python=python, text="\n".join([*requests, "", "{}", "nonsense"]) + "\n")
    assert answered.returncode == 0, answered.stderr
    replies = [json.loads(line) for line in answered.stdout.splitlines()]
    assert [reply["action"] for reply in replies[: len(steps)]] == [action for _, action in steps]
    assert [reply["error"].partition(":")[0] for reply in replies[len(steps) :]] == [
        'the line has no "observation"',
        "the line is no JSON",
    ]
    assert all("error" in reply for reply in replies[len(steps) :]) and len(replies) == len(steps) + 2
    flip(Path(shutil.copytree(original, tmp_path / "damaged")) / "model.onnx", 100)
    damaged = run_program(tmp_path / "damaged", "--verify", python=python)
    assert damaged.returncode == 1 and "checksum does not match" in damaged.stderr
