"""The artifact's byte format: round trips, and nothing but ArtifactError for damage of any kind."""

from __future__ import annotations

import dataclasses
import json
import struct

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from accel.compressors.artifact import FORMAT_VERSION, CompressedPolicy, TensorSpec
from accel.compressors.errors import ArtifactError

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_TEXT = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1)
_SPECS = st.lists(
    st.builds(
        TensorSpec,
        _TEXT,
        st.sampled_from(["float32", "uint8", "int64"]),
        st.builds(
            lambda rows, sizes: (rows, *sizes), st.none() | st.just(4), st.lists(st.integers(1, 200), max_size=3)
        ),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda spec: spec.name,
).map(tuple)
_ARTIFACTS = st.builds(
    CompressedPolicy,
    scheme=_TEXT,
    version=st.integers(0, 2**63 - 1),
    inputs=_SPECS,
    outputs=_SPECS,
    metadata=st.dictionaries(st.text(), _JSON, max_size=3),
    cpu_features=st.lists(_TEXT, max_size=2).map(tuple),
    model=st.binary(min_size=1, max_size=200),
    optimisation=st.sampled_from(["none", "basic", "all"]),
    variant=st.just("") | _TEXT,
)


@given(_ARTIFACTS)
def test_round_trip(artifact: CompressedPolicy) -> None:
    restored = CompressedPolicy.from_bytes(artifact.to_bytes())
    assert restored == artifact
    assert restored.to_bytes() == artifact.to_bytes()


_HEADER = {
    "scheme": "int8",
    "inputs": [{"name": "x", "dtype": "float32", "shape": [None, 3]}],
    "outputs": [{"name": "y", "dtype": "float32", "shape": [None, 3]}],
    "metadata": {},
    "cpu_features": [],
    "optimisation": "none",
    "variant": "",
}


@pytest.mark.parametrize(
    "change",
    [
        {"scheme": 3},
        {"scheme": ""},
        {"inputs": []},
        {"inputs": "x"},
        {"inputs": [{"name": "x", "dtype": "float32"}]},
        {"inputs": [{"name": "x", "dtype": "object", "shape": []}]},
        {"inputs": [{"name": "x", "dtype": [], "shape": []}]},
        {"inputs": [{"name": "x", "dtype": "float32", "shape": [0]}]},
        {"inputs": [{"name": "x", "dtype": "float32", "shape": [True]}]},
        {"inputs": [{"name": "x", "dtype": "float32", "shape": [3, None]}]},
        {"inputs": [{"name": "x", "dtype": "float32", "shape": [None, 2**20, 2**20]}]},
        {"inputs": [{"name": "x", "dtype": "float32", "shape": [1] * 9}]},
        {"inputs": [{"name": f"x{i}", "dtype": "float32", "shape": [1]} for i in range(65)]},
        {"inputs": [{"name": "x\ud800", "dtype": "float32", "shape": [1]}]},
        {"scheme": "fp32\x1b[2J"},
        {"metadata": {"deep": json.loads("[" * 40 + "]" * 40)}},
        {"inputs": [{"name": "x", "dtype": "float32", "shape": [2.5]}]},
        {"outputs": [_HEADER["outputs"][0], _HEADER["outputs"][0]]},
        {"metadata": []},
        {"cpu_features": [1]},
        {"cpu_features": "vnni"},
        {"optimisation": "some"},
        {"optimisation": ["none"]},
        {"variant": None},
        {"extra": 1},
        {"version": 1},
    ],
    ids=str,
)
def test_a_wrong_header_is_an_error_even_with_a_right_checksum(change: dict[str, object]) -> None:
    with pytest.raises(ArtifactError, match="not a policy artifact"):
        CompressedPolicy.from_bytes(sealed(json.dumps({**_HEADER, **change}).encode()))


@pytest.mark.parametrize("header", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b'{"scheme": NaN}'], ids=range(6))
def test_a_header_that_is_no_object_is_an_error(header: bytes) -> None:
    with pytest.raises(ArtifactError, match="not a policy artifact"):
        CompressedPolicy.from_bytes(sealed(header))


def test_the_sealed_header_itself_is_accepted() -> None:
    assert CompressedPolicy.from_bytes(sealed(json.dumps(_HEADER).encode())).scheme == "int8"


def test_another_format_version_is_named() -> None:
    with pytest.raises(ArtifactError, match="format version 9 is not"):
        CompressedPolicy.from_bytes(sealed(json.dumps(_HEADER).encode(), format_version=9))


def sealed(header: bytes, model: bytes = b"model", format_version: int = FORMAT_VERSION) -> bytes:
    """An artifact of these parts whose checksum is right."""
    prefix = struct.pack("<8sHHIQq", b"\x89ACCELPY", format_version, 0, len(header), len(model), 1)
    return prefix + struct.pack("<Q", xxhash.xxh3_64_intdigest(prefix + header + model)) + header + model


def test_metadata_that_is_no_json_is_an_error() -> None:
    artifact = CompressedPolicy.from_bytes(sealed(json.dumps(_HEADER).encode()))
    broken = dataclasses.replace(artifact, metadata={"x": float("nan")})
    with pytest.raises(ArtifactError, match="plain JSON"):
        broken.to_bytes()
