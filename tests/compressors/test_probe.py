"""The session whose weights are written like inputs: what it says is what an actor's session says."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from accel.compressors.artifact import CompressedPolicy, TensorSpec
from accel.compressors.checks.probe import ArtifactProbe
from accel.compressors.errors import ArtifactError, UnsupportedLayerError
from accel.compressors.plan import PlanUpdate
from tests.compressors.policies import CASES, applied, made, randomise, refreshed, run_artifact

SCHEMES = ["fp32", "fp16", "int8(s8s8)", "int4", "prune(0.5)+int8(s8s8)"]


@pytest.mark.few(12)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", sorted(CASES))
def test_one_probe_follows_the_weights_of_every_version(name: str, scheme: str) -> None:
    case, module = made(name)
    try:
        plan = case.bind(scheme, module)
    except UnsupportedLayerError:
        return
    inputs = case.inputs(8)
    first = plan.refresh(module, version=1)
    probe = ArtifactProbe.open(first, inputs)
    for seed in range(2):
        randomise(module, seed=seed)
        if "prune" in scheme:  # channels chosen anew are those that run
            applied(plan, module, PlanUpdate.reselect)
        artifact = plan.refresh(module, version=seed)
        if not probe.fits(artifact):
            assert scheme == "int4" and name in {"nature-cnn", "resnet"}, "onnxruntime unpacks them as it loads"
            probe = ArtifactProbe.open(artifact, inputs)
        found = {key: array.copy() for key, array in probe.run(artifact, inputs).items()}
        for key, wanted in _acted(artifact, inputs).items():
            spread = max(float(np.abs(wanted).max()), 1.0)
            tolerance = 0.05 if "int4" in scheme else 1e-5
            np.testing.assert_allclose(found[key], wanted, atol=tolerance * spread)
    assert not np.array_equal(found["params"], _acted(first, inputs)["params"])


def _acted(artifact: CompressedPolicy, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = (spec.name for spec in artifact.outputs)
    return dict(zip(names, run_artifact(artifact, inputs), strict=True))


def test_another_layout_does_not_fit() -> None:
    case, module, artifact = refreshed("relu-mlp", "int8(s8s8)")
    probe = ArtifactProbe.open(artifact, case.inputs(4))
    assert probe.batch == 4 and probe.fits(dataclasses.replace(artifact, version=7))
    assert not probe.fits(case.bind("fp32", module).refresh(module, version=1))
    assert not probe.fits(dataclasses.replace(artifact, outputs=(TensorSpec("params", "float32", (None, 4)),)))
    broken = artifact.model.replace(b"QGemm", b"QGemn")
    assert len(broken) == len(artifact.model) and not probe.fits(dataclasses.replace(artifact, model=broken))


def _table_policy(rows: list[int]) -> CompressedPolicy:
    """Picks columns of its input by a constant of 64-bit integers."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", k]) for n, k in (("x", 3), ("y", 2)))
    table = numpy_helper.from_array(np.array(rows, np.int64), "table")
    graph = helper.make_graph([helper.make_node("Gather", ["x", "table"], ["y"], axis=1)], "g", [x], [y], [table])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    inputs, outputs = (TensorSpec("x", "float32", (None, 3)),), (TensorSpec("y", "float32", (None, 2)),)
    return CompressedPolicy("table", 0, inputs, outputs, {}, (), model.SerializeToString())


def test_what_is_no_weight_belongs_to_the_layout() -> None:
    inputs = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    probe = ArtifactProbe.open(_table_policy([0, 1]), inputs)
    np.testing.assert_array_equal(probe.run(_table_policy([0, 1]), inputs)["y"], [[0, 1], [3, 4]])
    assert probe.fits(_table_policy([0, 1])) and not probe.fits(_table_policy([2, 1]))


def test_a_model_that_cannot_be_loaded_is_an_artifact_error() -> None:
    case, _, artifact = refreshed("relu-mlp", "fp32")
    for model in (b"nothing", artifact.model[:-10], artifact.model.replace(b"Gemm", b"Gomm")):
        with pytest.raises(ArtifactError, match="cannot be loaded"):
            ArtifactProbe.open(dataclasses.replace(artifact, model=model), case.inputs(4))
