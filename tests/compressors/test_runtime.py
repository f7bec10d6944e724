"""Sessions: preallocated arrays, independent rows, no torch in the process, CPU features checked."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from accel.compressors.cpu import cpu_features
from accel.compressors.errors import ArtifactError
from accel.compressors.runtime import PolicySession
from tests.compressors.policies import made, refreshed, run_artifact, run_module

_ACTOR = """
import sys
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.runtime import PolicySession
from accel import compressors
artifact = CompressedPolicy.from_bytes(open(sys.argv[1], "rb").read())
session = compressors.PolicySession(artifact, batch=3)
session.inputs["observations"][...] = 0.5
session.run()
print(session.outputs["params"].tolist())
heavy = {"torch", "onnx", "torch_pruning", "gymnasium"} & set(sys.modules)
assert not heavy, heavy
"""


def test_acting_needs_no_torch(tmp_path: Path) -> None:
    _, _, artifact = refreshed("tanh-mlp", "int8")
    (tmp_path / "policy").write_bytes(artifact.to_bytes())
    command = [sys.executable, "-W", "error", "-c", _ACTOR, str(tmp_path / "policy")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split(",")) == 3 * 6


def test_a_session_reads_and_writes_its_own_arrays() -> None:
    case, module = made("lstm-cell", seed=3)
    session = PolicySession(case.bind("fp32", module).refresh(module, version=1), batch=4)
    arrays = {**session.inputs, **session.outputs}
    for seed in range(3):
        inputs = case.inputs(4, seed)
        for name, array in inputs.items():
            session.inputs[name][...] = array
        session.run()
        for name, wanted in zip(case.outputs, run_module(module, inputs), strict=True):
            np.testing.assert_allclose(session.outputs[name], wanted, atol=1e-5)
    assert all({**session.inputs, **session.outputs}[name] is array for name, array in arrays.items())


@pytest.mark.parametrize("scheme", ["fp32", "int8"])
@pytest.mark.parametrize("name", ["tanh-mlp", "nature-cnn", "lstm"])
def test_rows_do_not_influence_each_other(name: str, scheme: str) -> None:
    case, _, artifact = refreshed(name, scheme)
    inputs = case.inputs(5)
    together = run_artifact(artifact, inputs)
    for row in range(5):
        alone = run_artifact(artifact, {key: array[row : row + 1] for key, array in inputs.items()})
        for whole, single in zip(together, alone, strict=True):
            np.testing.assert_allclose(whole[row : row + 1], single, atol=1e-5)


def test_a_missing_cpu_feature_is_named() -> None:
    _, _, artifact = refreshed("tanh-mlp", "fp32")
    with pytest.raises(ArtifactError, match="needs a CPU with tensor-cores"):
        PolicySession(dataclasses.replace(artifact, cpu_features=("tensor-cores",)), batch=1)


def test_an_empty_batch_is_refused() -> None:
    _, _, artifact = refreshed("tanh-mlp", "fp32")
    with pytest.raises(ValueError, match="batch is 0"):
        PolicySession(artifact, batch=0)


@pytest.mark.parametrize(
    ("cpuinfo", "machine", "expected"),
    [
        ("processor: 0\nflags\t\t: fpu avx2 avx512f avx512_vnni\n", "x86_64", {"avx2", "vnni"}),
        ("flags: avx2 avx_vnni", "AMD64", {"avx2", "vnni"}),
        ("flags: sse2 avx2", "x86_64", {"avx2"}),
        ("flags: sse2", "x86_64", set()),
        ("", "x86_64", set()),
        ("Features: asimddp", "aarch64", {"arm"}),
        ("", "arm64", {"arm"}),
    ],
)
def test_cpu_features(cpuinfo: str, machine: str, expected: set[str]) -> None:
    assert cpu_features(cpuinfo, machine) == expected
