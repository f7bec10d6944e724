"""CompressedPolicy: ONNX bytes plus the contract an actor needs, in a byte format of our own. No torch, no pickle.

Layout, little endian: the fixed prefix ``_PREFIX``, the checksum, a UTF-8 JSON header, the ONNX model. The checksum is
XXH3 (64 bits) of everything else: it detects damage, not forgery.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import stat
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, NoReturn, cast, get_args

import xxhash

from accel.compressors.errors import ArtifactError

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Optimisation = Literal["none", "basic", "all"]
Buffer = bytes | bytearray | memoryview

FORMAT_VERSION = 3
MAGIC = b"\x89ACCELPY"
# magic, format version, flags (0), header bytes, model bytes, policy version
_PREFIX = struct.Struct("<8sHHIQq")
_CHECKSUM = struct.Struct("<Q")
_START = _PREFIX.size + _CHECKSUM.size
_DTYPES = ("float32", "float16", "uint8", "int8", "int32", "int64", "bool")
_HEADER_KEYS = frozenset({"scheme", "inputs", "outputs", "metadata", "cpu_features", "optimisation", "variant"})
_TENSOR_KEYS = frozenset({"name", "dtype", "shape"})
# what an artifact of somebody else may ask for; far above any policy
MAX_FILE_BYTES = 2**31
_MAX_HEADER_BYTES, _MAX_DEPTH, _MAX_TENSORS, _MAX_RANK, _MAX_ELEMENTS = 2**22, 32, 64, 8, 2**26
# how ONNX refers to another file: an entry whose first field, of 8 bytes, is "location"; varints may have spare bytes
_LOCATION = b"location"
_LOCATION_ENTRY = re.compile(
    rb"(?:\x0a|\x8a[\x80-\xff]*[\x00-\x7f])(?:\x08|\x88[\x80-\xff]*[\x00-\x7f])location", re.DOTALL
)


@dataclass(frozen=True)
class TensorSpec:
    """One input or output: name, numpy dtype name and shape, in which ``None`` is the batch."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    def with_batch(self, batch: int) -> tuple[int, ...]:
        """The shape with the batch filled in."""
        return tuple(batch if size is None else size for size in self.shape)


@dataclass(frozen=True)
class CompressedPolicy:
    """A policy as actors receive it.

    Attributes:
        scheme: the compression scheme's text form.
        version: the policy version, at least 0.
        inputs: the model's inputs; observations first, then recurrent state.
        outputs: its outputs; the distribution's parameters [batch, P] first, then the next recurrent state.
        metadata: the caller's own JSON, such as the action space.
        cpu_features: features that the acting CPU must have, as named in ``accel.compressors.cpu``.
        optimisation: graph optimisation level to load the model at; most models are saved optimised ("none").
        model: the serialised ONNX model.
        variant: of int8, chosen for the acting CPU unless the scheme names one; "" for formats without variants.
    """

    scheme: str
    version: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    metadata: Mapping[str, Json]
    cpu_features: tuple[str, ...]
    model: bytes = field(repr=False)
    optimisation: Optimisation = "none"
    variant: str = ""

    @cached_property
    def header_json(self) -> bytes:
        """The contract as it stands in the byte format. Raises ArtifactError: the metadata is not plain JSON."""
        header = {
            "scheme": self.scheme,
            "inputs": [dataclasses.asdict(spec) for spec in self.inputs],
            "outputs": [dataclasses.asdict(spec) for spec in self.outputs],
            "metadata": dict(self.metadata),
            "cpu_features": list(self.cpu_features),
            "optimisation": self.optimisation,
            "variant": self.variant,
        }
        try:
            return json.dumps(header, allow_nan=False, sort_keys=True, separators=(",", ":")).encode()
        except (TypeError, ValueError) as error:
            raise ArtifactError(
                f"the artifact's metadata is not plain JSON ({error}); use text, finite numbers, lists and dictionaries"
            ) from error

    def with_model(self, model: bytes, version: int) -> CompressedPolicy:
        """The same contract with another model; reuses the encoded header. Raises ArtifactError as ``to_bytes``."""
        copy = dataclasses.replace(self, model=model, version=version)
        copy.__dict__["header_json"] = self.header_json
        return copy

    def to_bytes(self) -> bytes:
        """The artifact in its byte format. Raises ArtifactError when the metadata is not plain JSON."""
        if not 0 <= self.version < 2**63:
            raise ArtifactError(f"policy version {self.version} is out of range; give one in [0, 2**63)")
        header = self.header_json
        prefix = _PREFIX.pack(MAGIC, FORMAT_VERSION, 0, len(header), len(self.model), self.version)
        return b"".join((prefix, _checksum(prefix, header, self.model), header, self.model))

    @classmethod
    def from_bytes(cls, buffer: Buffer) -> CompressedPolicy:
        """Read an artifact back; raises ArtifactError, and nothing else, for any bytes that are not exactly one."""
        view = memoryview(buffer).cast("B")
        if len(view) < _START:
            _refuse(f"it has {len(view)} bytes, fewer than the {_START} of an artifact's prefix")
        magic, format_version, flags, header_bytes, model_bytes, version = _PREFIX.unpack_from(view)
        if magic != MAGIC:
            _refuse(f"it begins with {bytes(magic)!r} instead of {MAGIC!r}")
        if format_version != FORMAT_VERSION:
            _refuse(f"format version {format_version} is not {FORMAT_VERSION}, the version that this software reads")
        if header_bytes > _MAX_HEADER_BYTES:
            _refuse(f"its header has {header_bytes:,} bytes, over the {_MAX_HEADER_BYTES:,} that one may have")
        if len(view) != _START + header_bytes + model_bytes:
            _refuse(f"it has {len(view)} bytes, but its prefix announces {_START + header_bytes + model_bytes}")
        header = view[_START : _START + header_bytes]
        model = bytes(view[_START + header_bytes :])
        if view[_PREFIX.size : _START] != _checksum(view[: _PREFIX.size], header, model):
            _refuse("the checksum does not match, so it was damaged in transit or on disk")
        if flags != 0 or version < 0:
            _refuse(f"reserved flags {flags:#x} are set or version {version} is negative")
        return _from_header(_parse_json(bytes(header)), version, model)

    @classmethod
    def read(cls, path: Path) -> CompressedPolicy:
        """An artifact from a file that somebody else may have made, whose model must not refer to other files.

        Raises:
            ArtifactError: as ``from_bytes``, or the file is too large or its model has data in other files.
            OSError: it cannot be read.
        """
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            _refuse(f"{path} is no regular file of at most {MAX_FILE_BYTES:,} bytes")
        artifact = cls.from_bytes(path.read_bytes())
        if refers_to_files(artifact.model):
            _refuse("its model refers to data in other files")
        return artifact


def refers_to_files(model: bytes) -> bool:
    """Whether an ONNX model has data in other files, or a tensor named exactly ``location``, which looks the same."""
    start = model.find(_LOCATION)
    while start >= 0:
        end = start + len(_LOCATION)
        if _LOCATION_ENTRY.search(model, max(0, start - 24), end):
            return True
        start = model.find(_LOCATION, end)
    return False


def _checksum(prefix: Buffer, header: Buffer, model: Buffer) -> bytes:
    hasher = xxhash.xxh3_64(prefix)
    hasher.update(header)
    hasher.update(model)
    return _CHECKSUM.pack(hasher.intdigest())


def _from_header(header: Json, version: int, model: bytes) -> CompressedPolicy:
    if not isinstance(header, dict) or header.keys() != _HEADER_KEYS:
        _refuse(f"the header is not an object with the fields {', '.join(sorted(_HEADER_KEYS))}")
    scheme, metadata, optimisation = header["scheme"], header["metadata"], header["optimisation"]
    features = header["cpu_features"]
    if not _is_text(scheme):
        _refuse("the scheme is no plain text")
    if not isinstance(metadata, dict):
        _refuse("the metadata is no JSON object")
    if not isinstance(features, list) or not all(map(_is_text, features)):
        _refuse("the CPU features are no list of plain texts")
    if optimisation not in get_args(Optimisation):
        _refuse(f"optimisation {optimisation!r} is unknown")
    variant = header["variant"]
    if variant != "" and not _is_text(variant):
        _refuse("the variant is no plain text")
    if not model:
        _refuse("the model is empty")
    return CompressedPolicy(
        scheme=cast("str", scheme),
        version=version,
        inputs=_tensors(header["inputs"], "inputs"),
        outputs=_tensors(header["outputs"], "outputs"),
        metadata=metadata,
        cpu_features=tuple(cast("list[str]", features)),
        model=model,
        optimisation=cast("Optimisation", optimisation),
        variant=cast("str", variant),
    )


def _is_text(value: Json) -> bool:
    return isinstance(value, str) and bool(value) and value.isprintable()


def _tensors(value: Json, what: str) -> tuple[TensorSpec, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= _MAX_TENSORS:
        _refuse(f"{what} is no list of 1 to {_MAX_TENSORS} tensors")
    specs = tuple(_tensor(item, what) for item in value)
    if len({spec.name for spec in specs}) != len(specs):
        _refuse(f"two of the {what} have the same name")
    return specs


def _tensor(value: Json, what: str) -> TensorSpec:
    if not isinstance(value, dict) or value.keys() != _TENSOR_KEYS:
        _refuse(f"one of the {what} lacks name, dtype or shape")
    name, dtype, shape = value["name"], value["dtype"], value["shape"]
    if not _is_text(name) or dtype not in _DTYPES or not isinstance(shape, list) or len(shape) > _MAX_RANK:
        _refuse(f"one of the {what} has a wrong name, dtype or shape")
    sizes: list[int | None] = []
    for size in shape:
        is_batch = size is None and not sizes
        if not is_batch and (not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= _MAX_ELEMENTS):
            _refuse(f"{what} {name!r} has the size {size!r}")
        sizes.append(cast("int | None", size))
    if math.prod(size for size in sizes if size is not None) > _MAX_ELEMENTS:
        _refuse(f"{what} {name!r} has more than {_MAX_ELEMENTS:,} numbers a row")
    return TensorSpec(cast("str", name), str(dtype), tuple(sizes))


def _parse_json(text: bytes) -> Json:
    try:
        value = cast("Json", json.loads(text, parse_constant=_refuse_constant))
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"not a policy artifact: its header is no JSON ({error})") from error
    layer: list[Json] = [value]
    for _ in range(_MAX_DEPTH):
        layer = [item for part in layer for item in _items(part)]
    if layer:
        _refuse(f"its header is nested more than {_MAX_DEPTH} deep")
    return value


def _items(part: Json) -> Iterable[Json]:
    if isinstance(part, dict):
        return part.values()
    return part if isinstance(part, list) else ()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _refuse(reason: str) -> NoReturn:
    raise ArtifactError(f"not a policy artifact: {reason}; discard it and wait for the next version")
