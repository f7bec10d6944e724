"""Artifacts that are damaged inside and sealed again: refused with ArtifactError, or sessions that run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from accel.compressors.artifact import CompressedPolicy, TensorSpec
from accel.compressors.errors import ArtifactError
from accel.compressors.runtime import PolicySession
from tests.compressors.policies import refreshed

ROWS = 3


@pytest.fixture(scope="module")
def artifact() -> CompressedPolicy:
    return refreshed("tanh-mlp", "int8")[2]


def _changed(artifact: CompressedPolicy, what: str, change: dict[str, object], index: int = 0) -> CompressedPolicy:
    specs = list(getattr(artifact, what))
    specs[index] = dataclasses.replace(specs[index], **change)
    return dataclasses.replace(artifact, **{what: tuple(specs)})


@pytest.mark.parametrize("what", ["inputs", "outputs"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": (None, 12)}, r"\[None, 12\], but its model has tensor\(float\)"),
        ({"shape": (None,)}, r"\[None\], but its model"),
        ({"shape": (None, 11, 1)}, r"\[None, 11, 1\], but its model"),
        ({"shape": (4, 11)}, r"\[4, 11\], but its model"),
        ({"dtype": "float16"}, r"tensor\(float16\) .* but its model has tensor\(float\)"),
        ({"name": "pixels"}, "pixels, but its model has"),
    ],
    ids=str,
)
def test_a_header_over_another_model_is_refused(
    what: str, change: dict[str, object], message: str, artifact: CompressedPolicy
) -> None:
    resealed = CompressedPolicy.from_bytes(_changed(artifact, what, change).to_bytes())
    with pytest.raises(ArtifactError, match=f"is inconsistent: its header declares.*{message}"):
        PolicySession(resealed, batch=ROWS)


@pytest.mark.parametrize("what", ["inputs", "outputs"])
def test_a_header_with_a_tensor_more_or_less_is_refused(what: str) -> None:
    artifact = refreshed("lstm-cell", "fp32")[2]
    specs = getattr(artifact, what)
    for changed in (specs[:-1], (*specs, TensorSpec("more", "float32", (None, 2)))):
        with pytest.raises(ArtifactError, match=f"declares the {what}"):
            PolicySession(dataclasses.replace(artifact, **{what: changed}), batch=ROWS)
    PolicySession(dataclasses.replace(artifact, **{what: specs[::-1]}), batch=ROWS).run()


def test_a_model_that_fails_on_its_rows_says_so(artifact: CompressedPolicy) -> None:
    import onnx

    model = onnx.load_from_string(artifact.model)
    for tensor in model.graph.initializer:
        if tensor.name.endswith(":weight:codes") and list(tensor.dims) == [32, 32]:
            tensor.dims[:] = [16, 64]
    broken = dataclasses.replace(artifact, model=model.SerializeToString())
    session = PolicySession(broken, batch=ROWS)
    with pytest.raises(ArtifactError, match=r"policy 'int8' version 1 fails on 3 rows: .*discard it"):
        session.run()


def test_names_that_are_no_text_are_refused(artifact: CompressedPolicy) -> None:
    name = artifact.inputs[0].name.encode()
    assert name in artifact.model
    model = artifact.model.replace(name, b"\x80" * len(name))
    with pytest.raises(ArtifactError, match="names that are no text"):
        PolicySession(dataclasses.replace(artifact, model=model), batch=ROWS)


@pytest.mark.parametrize(
    "location", ["weights.bin", "../here/weights.bin", "/{path}/weights.bin", "*/_ORT_MEM_ADDR_/*"]
)
@pytest.mark.parametrize("scheme", ["fp32", "int8"])
def test_weights_in_other_files_are_never_read(
    scheme: str, location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx

    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    artifact = refreshed("tanh-mlp", scheme)[2]
    model = onnx.load_from_string(artifact.model)
    tensor = max(model.graph.initializer, key=lambda found: len(found.raw_data))
    Path("weights.bin").write_bytes(tensor.raw_data)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location.format(path=here)), ("length", str(len(tensor.raw_data)))):
        tensor.external_data.add(key=key, value=value)
    tensor.ClearField("raw_data")
    resealed = dataclasses.replace(artifact, model=model.SerializeToString()).to_bytes()
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        PolicySession(CompressedPolicy.from_bytes(resealed), batch=ROWS)
