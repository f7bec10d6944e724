"""Policies with recorded observations in place of an environment: compressed, measured, exported, swept; not played."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from accel.cli import main
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.checks.verify import run_artifact
from accel.config import TrainConfig
from accel.exporting import run_policy
from accel.imports.policy import import_policy
from tests.accel.imports.test_import_policy import ppo_weights, refuses, write_zip
from tests.accel.imports.test_programs import Parts, Recurrent, mlp, write_onnx, write_script

ANY = TrainConfig.create()


def recorded(path: Path, shape: Sequence[int], name: str = "rows", **others: np.ndarray) -> Path:
    rows = np.random.default_rng(1).standard_normal(shape)
    np.savez(path, **{name: rows, **others})
    return path


def said(words: Sequence[str], capsys: pytest.CaptureFixture[str], status: int = 0) -> str:
    assert main([*map(str, words)]) == status
    captured = capsys.readouterr()
    return captured.out if status == 0 else captured.err


@pytest.fixture
def robot(tmp_path: Path) -> list[str]:
    """The options of a continuous policy and 300 rows."""
    path = write_onnx(tmp_path / "p.onnx", mlp(6, 2), [torch.zeros(1, 6)], ["obs"], ["actions"])
    return ["--policy", str(path), "--observations", str(recorded(tmp_path / "rows.npz", (300, 6)))]


def test_compress_says_how_far_actions_are_from_full_precision(
    robot: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(["compress", *robot, "--out", tmp_path / "a.accel"], capsys)
    assert "returns are not measured" in text and "mean return" not in text
    found = re.search(r"on 150 rows of recorded observations: action error ([\d.]+)% of the range in the mean", text)
    with np.load(robot[3]) as file:
        rows = file["rows"].astype(np.float32)
    artifact = CompressedPolicy.read(tmp_path / "a.accel")
    full = mlp(6, 2)(torch.from_numpy(rows)).detach().numpy()
    error = np.abs(run_artifact(artifact, {"observations": rows})[0][:, :2] - full) / np.ptp(full, axis=0)
    assert 0.3 < float(found[1]) / (100 * error.mean()) < 3
    assert "same greedy action in 100" in said(
        ["compress", *robot, "--discrete", "--scheme", "fp32", "--out", tmp_path / "a.accel"], capsys
    )


@pytest.mark.long
def test_bench_sweep_and_export_take_the_rows(
    robot: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = said(["bench", "policy", *robot, "--batch", "1", "--runtimes", "onnxruntime", "--seconds", "0.2"], capsys)
    assert "recorded observations" in table
    sweep = ["sweep", *robot, "--trials", "2", "--rows", "32", "--out", tmp_path / "swept"]
    assert "kl" in said(sweep, capsys)
    assert "give no return" in said([*sweep[:-1], tmp_path / "other", "--constraint", "return>=1"], capsys, 2)
    assert "returns are not measured" in said(["export", *robot, "--out", tmp_path / "bundle"], capsys)
    run_policy.verify(tmp_path / "bundle")
    assert json.loads((tmp_path / "bundle" / "report.json").read_text())["returns"] is None
    for command in (["evaluate", *robot], ["bench", "actor", *robot]):
        assert "cannot be played" in said(command, capsys, 2)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("format", ["onnx", "c", "openvino"])
def test_activations_of_two_bytes_are_exported_in_operators_that_exist(
    format: str, robot: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scheme = "int8(module.0=x16,module.2=x16,module.4=x16)"
    out = tmp_path / "bundle"
    text = said(["export", *robot, "--scheme", scheme, "--format", format, "--out", out], capsys)
    assert "keeps the policy" in text
    report = json.loads((out / "report.json").read_text())
    assert report["mismatch"]["relative"] < 0.005
    run_policy.verify(out)
    operators = {node.op_type for node in onnx.load(out / "model.onnx").graph.node}
    products = {"MatMulInteger", "Cast", "Mul"} if format == "onnx" else {"QGemm"}
    assert operators == {"Clip", "QuantizeLinear", "DequantizeLinear", "Sub", "Add", "Elu", *products}


@pytest.mark.slow
def test_int8_of_q_values_far_above_their_differences_is_chosen_to_hold_or_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Outputs vary a hundred times as much as the distance between actions; every action is greedy somewhere."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    with torch.no_grad():
        net[4].weight += 3.0
        net[4].bias -= net(
            torch.from_numpy(np.random.default_rng(2).standard_normal((500, 6)).astype(np.float32))
        ).mean(0)
    path = write_onnx(tmp_path / "p.onnx", net, [torch.zeros(1, 6)], ["obs"], ["q"])
    source = ["--policy", path, "--observations", recorded(tmp_path / "rows.npz", (6000, 6)), "--discrete"]
    text = said(["compress", *source, "--out", tmp_path / "a.accel"], capsys)
    artifact = CompressedPolicy.read(tmp_path / "a.accel")
    assert artifact.scheme in ("int8", "mixed"), "by what it gains on this machine"
    assert f"{artifact.scheme} keeps the policy" in text and "in integers: " in text and "KL" not in text
    assert str(artifact.metadata["encoding"]).startswith("int8(module.2=")
    assert float(str(artifact.metadata["integer_share_after_observations"])) >= 0.75
    coarse = ["compress", *source, "--scheme", "int8(w3)", "--out", tmp_path / "b.accel"]
    assert "int8(w3) does not keep the policy" in said(coarse, capsys)
    export = ["export", *source, "--scheme", "int8(w3)", "--out", tmp_path / "bundle"]
    assert "--accept-loss" in said(export, capsys, 1) and not (tmp_path / "bundle").exists()
    assert "does not keep" in said([*export, "--accept-loss"], capsys)


def test_a_recurrent_policy_comes_to_its_states_row_by_row(tmp_path: Path) -> None:
    first = np.arange(40) % 10 == 0
    rows = recorded(tmp_path / "rows.npz", (40, 3), first=first)
    policy = import_policy(write_script(tmp_path / "p.pt", Recurrent()), ANY, observations=rows)
    inputs, module = policy.recorded, Recurrent().eval()
    states = [torch.zeros(1, 1, 8)] * 2
    with torch.no_grad():
        for row in range(40):
            states = [torch.zeros(1, 1, 8)] * 2 if first[row] else states
            np.testing.assert_allclose(inputs["state_0"][row], states[0].reshape(8), atol=1e-5)
            observed = torch.from_numpy(inputs["observations"][row])
            states = list(module.memory(observed.reshape(1, 1, 3), tuple(states))[1])
    assert np.abs(inputs["state_1"]).max() > 0.1


def test_several_named_inputs_are_several_arrays(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "p.onnx", Parts(), [torch.zeros(1, 2), torch.zeros(1, 1)], ["joints", "goal"], ["out"])
    joints = np.random.default_rng(2).standard_normal((50, 2))
    rows = recorded(tmp_path / "rows.npz", (50, 1), "goal", joints=joints)
    policy = import_policy(path, ANY, observations=rows)
    assert {*policy.policy.input_names} == {"goal", "joints"}
    inputs = policy.recorded
    wanted = Parts()(*(torch.from_numpy(inputs[name]) for name in ("joints", "goal"))).detach()
    found = run_artifact(policy.compress("fp32"), inputs)[0]
    np.testing.assert_allclose(found[:, :1], wanted, atol=1e-5)


def test_a_zip_file_says_its_actions_itself(tmp_path: Path) -> None:
    space = {":type:": "<class 'gymnasium.spaces.discrete.Discrete'>", "n": "2", "start": "0"}
    path = write_zip(tmp_path / "p.zip", ppo_weights(4, 2), action_space=space)
    policy = import_policy(path, ANY, observations=recorded(tmp_path / "rows.npz", (40, 4)))
    assert policy.spec.action.kind == "categorical" and policy.spec.action.sizes == (2,)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"rows": np.zeros((3, 6))}, "N at least 16"),
        ({"rows": np.zeros((40, 6)), "more": np.zeros((41, 6))}, "N at least 16"),
        ({"rows": np.zeros((40, 6)), "first": np.zeros(3)}, "N at least 16"),
        ({"rows": np.full((40, 6), np.nan)}, "no finite numbers"),
        ({"rows": np.zeros((40, 3, 8, 8))}, "images are bytes"),
        ({"rows": np.zeros((40, 5))}, r"takes 'obs' of \[6\], and observations have \[5\]"),
    ],
)
def test_rows_that_are_none_are_named(
    arrays: dict[str, np.ndarray], message: str, robot: list[str], tmp_path: Path
) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)
    refuses(message, Path(robot[1]), ANY, observations=tmp_path / "bad.npz")


@pytest.mark.few(1)
@pytest.mark.parametrize("scheme", ["fp32", "int8", "fp16"])
def test_a_bundle_has_standard_operators_and_needs_nothing_but_an_old_onnxruntime(
    scheme: str, robot: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bundle"
    said(["export", *robot, "--scheme", scheme, "--out", path], capsys)
    for name in ("model.onnx", "fp32.onnx"):
        model = onnx.load(path / name)
        assert model.ir_version == 8 and {entry.domain for entry in model.opset_import} == {""}
    card = (path / "MODEL_CARD.md").read_text()
    assert "`model.onnx` needs onnxruntime 1.16 or newer, and has standard operators only." in card
    absent = "import sys; [sys.modules.setdefault(n, None) for n in ('accel', 'onnx', 'torch', 'tyro', 'xxhash')]"
    run = f"{absent}; sys.argv[1:] = ['--verify']; import runpy; runpy.run_path('run_policy.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", run], cwd=path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
