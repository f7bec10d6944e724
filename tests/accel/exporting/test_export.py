"""``accel.export``: every format computes the policy, says what it is, and is written whole or not at all."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from accel.cli import main
from accel.compressors.errors import SchemeError
from accel.compressors.runtime import PolicySession
from accel.errors import BundleError, CheckpointError, ConfigError, ExportError, MissingExtraError
from accel.exporting import run_policy
from accel.exporting.appearing import partial_of
from accel.exporting.build import Bundle, export
from accel.exporting.contract import FLOAT_BOUND, INTEGER_BOUND
from accel.exporting.formats import FORMATS
from accel.exporting.standard_operators import (
    dequantised_products,
    integer_products,
    operators,
    standard_artifact,
    standard_float,
)
from accel.exporting.verify import verify
from accel.runs.loading import load_run
from accel.runs.playing import collect_inputs
from tests.accel.runs.trained_runs import ENV_STEPS, VERSION, make_run

ALWAYS = {
    *("MODEL_CARD.md", "SHA256SUMS", "contract.json", "example.py", "fp32.onnx", "report.json"),
    *("run_policy.py", "vectors.npz"),
}
OWN = {
    "onnx": {"model.onnx"},
    "ort": {"model.ort"},
    "openvino": {"model.onnx", "model.xml", "model.bin"},
    "c": {"model.onnx", "policy.c", "policy.h", "check.c", "vectors.h"},
}


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain: dict[str, Any] = {"network": "mlp:32x2", "normalise_observations": False, "calibration_size": 64}
    return make_run(tmp_path_factory.mktemp("cartpole"), env="CartPole-v1", **plain)


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recurrent: dict[str, Any] = {"network": "mlp:16x1+lstm:8", "squash_actions": True, "calibration_size": 64}
    return make_run(tmp_path_factory.mktemp("pendulum"), env="Pendulum-v1", normalise_observations=True, **recurrent)


def left_in(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


@pytest.mark.slow
@pytest.mark.few(2)
@pytest.mark.parametrize("format", FORMATS)
def test_a_bundle_is_whole_and_computes_the_policy(format: str, cartpole: Path, tmp_path: Path) -> None:
    bundle = export(cartpole, tmp_path / "bundle", scheme="int8", format=format, episodes=4)
    assert set(left_in(tmp_path / "bundle")) == ALWAYS | OWN[format]
    assert left_in(tmp_path) == ["bundle"]
    check_contract(bundle, format)
    check_report(bundle, format)
    result = verify(bundle.path)
    assert (result.scheme, result.format) == (bundle.contract["scheme"], format)
    assert bundle.contract["scheme"] in ("int8", "mixed"), "the latter where int8 does not pay"
    assert float(str(result.vectors["relative"])) <= INTEGER_BOUND
    assert json.loads(json.dumps(result.to_json()))["latency"]["p50_us"] > 0
    assert run_policy.verify(bundle.path)["vectors"]["relative"] <= INTEGER_BOUND


def check_contract(bundle: Bundle, format: str) -> None:
    contract = json.loads((bundle.path / "contract.json").read_text())
    assert contract == json.loads(json.dumps(bundle.contract))
    assert contract["inputs"] == [{"name": "observations", "dtype": "float32", "shape": ["batch", 4]}]
    assert contract["outputs"] == [{"name": "params", "dtype": "float32", "shape": ["batch", 2]}]
    assert contract["action"]["kind"] == "categorical" and "greatest logit" in contract["action"]["post_processing"]
    assert contract["observation"]["normalisation"] == {"inside_the_graph": True, "method": "none"}
    assert contract["model"]["opset"]["ai.onnx"] == 17
    assert contract["source"]["policy_version"] == VERSION and contract["source"]["env_steps"] == ENV_STEPS
    assert contract["versions"]["onnxruntime"] and contract["versions"]["accel"]
    assert contract["target"]["format"] == format
    assert contract["target"]["batch"] == (1 if format == "c" else "any")
    assert set(contract["files"]) == set(left_in(bundle.path)) - {"contract.json", "SHA256SUMS"}
    done = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=bundle.path, capture_output=True)
    assert done.returncode == 0, done.stderr


def check_report(bundle: Bundle, format: str) -> None:
    report = json.loads((bundle.path / "report.json").read_text())
    compared = [(row["model"], row["inputs"]) for row in report["parity"]]
    assert compared == [(model, kind) for kind in ("real", "random") for model in ("fp32 onnx", format)]
    full = [row for row in report["parity"] if row["model"] == "fp32 onnx"]
    assert all(row["batches"] == [1, 4, 32] for row in full)
    assert max(row["relative"] for row in full) < FLOAT_BOUND
    assert 0 < report["mismatch"]["relative"] < 0.2
    assert len(report["returns"]["model"]["returns"]) == len(report["returns"]["fp32"]["returns"]) == 4
    assert report["returns"]["engine"] == format
    latency = report["latency"]["model"]
    assert 0 < latency["p50_us"] <= latency["p95_us"] <= latency["p99_us"]
    assert report["bytes"]["model"] > 0
    card = (bundle.path / "MODEL_CARD.md").read_text()
    assert f"CartPole-v1 policy, {bundle.contract['scheme']}" in card and report["returns"]["verdict"] in card
    assert sorted(re.findall(r"^- `([\w.]+)`: ", card, re.MULTILINE)) == sorted(
        ALWAYS - {"MODEL_CARD.md"} | OWN[format]
    )
    if format == "c":
        compiled = bundle.contract["target"]["compiled"]
        assert compiled["code_bytes"] == report["bytes"]["model"] and compiled["static_bytes"] == 0
        assert 0 < compiled["stack_bytes"] < 100_000


@pytest.mark.slow
@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("format", "scheme"),
    [
        ("ort", "fp16"),
        ("openvino", "int8"),
        ("onnx", "prune(0.5)+int8"),
        ("c", "fp32"),
    ],
)
def test_recurrent_policies_and_other_schemes(format: str, scheme: str, pendulum: Path, tmp_path: Path) -> None:
    bundle = export(pendulum, tmp_path / "bundle", scheme=scheme, format=format, episodes=0)
    assert bundle.report["returns"] is None
    states = bundle.contract["recurrent_state"]
    assert [state["input"] for state in states] == ["state_0", "state_1"]
    assert bundle.contract["action"]["squash"] is True
    assert "deviation" in bundle.contract["observation"]["normalisation"]["method"]
    vectors = verify(bundle.path).vectors
    assert float(str(vectors["relative"])) <= float(str(vectors["bound"]))
    assert float(str(vectors["bound"])) == (INTEGER_BOUND if "int8" in scheme else FLOAT_BOUND)


@pytest.fixture(scope="module")
def recurrent(pendulum: Path) -> Bundle:
    return export(pendulum, pendulum.parent / "bundle", scheme="int8", episodes=0)


def test_models_say_what_they_take_and_give(recurrent: Bundle) -> None:
    bundle = recurrent
    for name in ("model.onnx", "fp32.onnx"):
        model = onnx.load_from_string((bundle.path / name).read_bytes())
        found = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
        assert found["accel.action"] == bundle.contract["action"] and found["accel.scheme"] == bundle.contract["scheme"]
        assert found["accel.observation"] == bundle.contract["observation"]
        assert [state["initial"] for state in found["accel.recurrent_state"]] == [0.0, 0.0]
    observation, action = bundle.contract["observation"], bundle.contract["action"]
    assert observation["names"] == ["observation[0]", "observation[1]", "observation[2]"]
    assert (observation["low"], observation["high"]) == ([-1.0, -1.0, -8.0], [1.0, 1.0, 8.0])
    assert (action["names"], action["units"], action["low"], action["high"]) == (["action[0]"], [""], [-2.0], [2.0])


def test_the_loop_in_python_answers_as_the_policy_does(recurrent: Bundle) -> None:
    """Ten steps on zeros, in one episode of a recurrent policy."""
    command = [sys.executable, str(recurrent.path / "example.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", line)[-2:] for line in done.stdout.splitlines()]
    policy = run_policy.Policy(recurrent.path)
    wanted = [policy.act(np.zeros(3), first=step == 0)[1] for step in range(10)]
    np.testing.assert_allclose(np.array(lines, float), wanted, rtol=1e-5)
    assert np.ptp(np.array(wanted), axis=0).max() > 1e-4  # the state matters


@pytest.mark.parametrize("format", ["c", "openvino"])
def test_what_a_format_cannot_take_is_named(format: str, cartpole: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="MatMulNBits"):
        export(cartpole, tmp_path / "bundle", scheme="int4", format=format, episodes=0)
    assert left_in(tmp_path) == []


def test_the_gate_on_mismatch_refuses_and_leaves_nothing(cartpole: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"not exported: its parameters differ .*, over max-mismatch 1e-05"):
        export(cartpole, tmp_path / "new" / "bundle", scheme="int8", episodes=0, max_mismatch=1e-5)
    assert left_in(tmp_path) == []
    assert export(cartpole, tmp_path / "bundle", scheme="fp32", episodes=0, max_mismatch=1e-5).path.is_dir()


def test_directories_that_exist_or_cannot_be_written_are_refused(cartpole: Path, tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    with pytest.raises(ExportError, match="exists already"):
        export(cartpole, tmp_path / "bundle", scheme="fp32")
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match="cannot write"):
        export(cartpole, tmp_path / "file" / "bundle", scheme="fp32")
    with pytest.raises(ExportError, match="cannot write"):
        export(cartpole, Path("/proc/self/bundle"), scheme="fp32")
    assert left_in(tmp_path) == ["bundle", "file"]


@contextmanager
def exporting(run: Path, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An export without end in a process of its own, which has begun to write."""
    command = [sys.executable, "-m", "accel", "export", str(run), "--episodes", "1000000", "--out", str(out)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            while not (partial_of(out) / "vectors.npz").exists():
                assert process.poll() is None
                time.sleep(0.05)
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_what_a_killed_export_leaves_is_named_and_then_removed(cartpole: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    with exporting(cartpole, out), pytest.raises(ExportError, match="another export writes"):
        export(cartpole, out, scheme="fp32", episodes=0)
    subprocess.run(["flock", partial_of(out), "true"], check=True)  # what it was about to start may hold its files
    with pytest.raises(BundleError, match=r"is running, or was killed \(then export again\)"):
        verify(out)
    export(cartpole, out, scheme="fp32", episodes=0)
    assert left_in(tmp_path) == ["bundle"]


@pytest.mark.long
def test_a_terminated_export_leaves_nothing(cartpole: Path, tmp_path: Path) -> None:
    with exporting(cartpole, tmp_path / "new" / "bundle") as process:
        process.terminate()
        assert process.wait() == 130
    assert left_in(tmp_path) == []


def test_bad_options_are_named(cartpole: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    with pytest.raises(ConfigError, match="choose from onnx, ort, openvino, c"):
        export(cartpole, out, format="tflite")
    with pytest.raises(SchemeError, match="choose from"):
        export(cartpole, out, scheme="int9")
    with pytest.raises(ConfigError, match="at least one"):
        export(cartpole, out, episodes=0, max_return_loss=0.1)
    with pytest.raises(ConfigError, match=r"-3 episodes .* or 0 episodes for none"):
        export(cartpole, out, episodes=-3)
    with pytest.raises(ConfigError, match="at most 1,000,000"):
        export(cartpole, out, episodes=1_000_001)
    with pytest.raises(ConfigError, match="seed = -1"):
        export(cartpole, out, seed=-1)
    for bound in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=f"max_return_loss = {bound}: give a share"):
            export(cartpole, out, max_return_loss=bound)
        with pytest.raises(ConfigError, match=f"max_mismatch = {bound}: give a share"):
            export(cartpole, out, max_mismatch=bound)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        export(make_run(tmp_path / "runs", checkpoint=False), out)
    assert left_in(tmp_path) == ["runs"]


def test_a_link_in_place_of_the_working_directory_is_not_followed(cartpole: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "kept").touch()
    partial_of(tmp_path / "bundle").symlink_to(tmp_path / "theirs")
    with pytest.raises(ExportError, match="cannot write"):
        export(cartpole, tmp_path / "bundle", scheme="fp32", episodes=0)
    assert left_in(tmp_path / "theirs") == ["kept"]


@pytest.mark.parametrize(("format", "module"), [("openvino", "openvino"), ("c", "emx_onnx_cgen")])
def test_a_missing_extra_is_named(format: str, module: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name == module else find(name, *rest))
    with pytest.raises(MissingExtraError, match=re.escape(f"pip install 'accel-rl[{format}]'")):
        export(tmp_path, tmp_path / "bundle", format=format)


def test_the_command_writes_a_bundle_and_says_what_it_is_worth(
    cartpole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bundle"
    arguments = ["--scheme", "int8", "--episodes", "2", "--cpu", "x86-avx2", "--out", str(out)]
    assert main(["export", str(cartpole), *arguments]) == 0
    printed, shown = capsys.readouterr()
    assert "collecting real inputs" in shown and "collecting" not in printed
    assert printed.splitlines()[-1].startswith(f"{out} is complete; MODEL_CARD.md")
    assert "of fp32 as ONNX" in printed and "in integers: " in printed and "mean return" in printed
    contract = json.loads((out / "contract.json").read_text())
    assert (contract["model"]["cpu_features"], contract["model"]["int8_variant"]) == ([], "reduce_range")
    assert main(["verify", str(out)]) == 0
    assert "every file is whole" in capsys.readouterr().out
    assert main(["export", str(cartpole), *arguments]) == ExportError.exit_code
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("network", "scheme"),
    [
        *(("mlp:32x2", scheme) for scheme in ("fp32", "int8", "prune(0.5)+int8")),
        *(("mlp:16x1+lstm:8", scheme) for scheme in ("fp32", "int8", "prune(0.5)+int8")),
        ("mlp:16x1+transformer:8x2", "int8"),
    ],
)
def test_rewritten_graphs_compute_the_same(network: str, scheme: str, tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path, env="Pendulum-v1", network=network, calibration_size=64))
    inputs = collect_inputs(run, 16, steps=50)
    artifact = run.compress(scheme, inputs)
    model = onnx.load_from_string(artifact.model)
    wanted = run_policy.run_rows(PolicySession(artifact, batch=1), inputs)
    standard = onnx.load_from_string(standard_artifact(artifact).model)
    graphs = {rewrite: rewrite(model) for rewrite in (standard_float, integer_products, dequantised_products)}
    for rewrite, rewritten in {**graphs, standard_artifact: standard}.items():
        onnx.checker.check_model(rewritten)
        assert not {"com.microsoft.FusedGemm"} & operators(rewritten).keys()
        if rewrite in (dequantised_products, standard_artifact):
            assert not any("." in name for name in operators(rewritten))
        session = PolicySession(dataclasses.replace(artifact, model=rewritten.SerializeToString()), batch=1)
        found = run_policy.run_rows(session, inputs)
        for name, array in wanted.items():
            assert run_policy.mismatch(found[name], array)[0] < (FLOAT_BOUND if scheme == "fp32" else INTEGER_BOUND)
