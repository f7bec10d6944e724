"""Checkpoints: one safetensors file each, atomic, checksummed, without pickle, exact to the last bit."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as deserialise
from torch import Tensor

from accel.algorithms.state_tree import Json, Tree, flatten, unflatten
from accel.errors import CheckpointError
from accel.system.atomic import remove_partial_files, write_atomically
from accel.system.machine import available_memory_bytes

FORMAT = "accel-checkpoint"
FORMAT_VERSION = 1
_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint64: "U64", torch.uint32: "U32",
    torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""As safetensors names them."""
_FILE_NAME = re.compile(r"step-(\d{12,})\.safetensors")


@dataclass(frozen=True)
class CheckpointState:
    """Everything needed to continue training.

    Attributes:
        tensors: parameters and buffers by name, as in a ``state_dict``; on the CPU after loading.
        algorithm: what the algorithm's ``save`` gives: optimisers, generators, counters.
        counters: nested counters and generator states; ``counters["env_steps"]`` names the file.
    """

    tensors: Mapping[str, Tensor]
    algorithm: Mapping[str, Tree]
    counters: Mapping[str, Tree]

    @property
    def env_steps(self) -> int:
        """Environment steps done. Raises CheckpointError where ``counters`` has none."""
        steps = self.counters.get("env_steps")
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
            raise CheckpointError(f"counters['env_steps'] is {steps!r}; a checkpoint needs a step count")
        return steps


class CheckpointStore:
    """The checkpoints of one run; the newest ``keep`` are kept. Only one process writes at a time."""

    def __init__(self, directory: Path, keep: int = 2) -> None:
        """Args: directory: made at the first save; keep: at least 1."""
        self._directory, self._keep = directory, keep

    def paths(self) -> list[Path]:
        """All checkpoints, oldest first."""
        if not self._directory.is_dir():
            return []
        matches = [(_FILE_NAME.fullmatch(path.name), path) for path in self._directory.iterdir()]
        return [path for _, path in sorted((int(match[1]), path) for match, path in matches if match)]

    def save(self, state: CheckpointState) -> Path:
        """Write a checkpoint, then remove all but it and the newest others, ``keep`` together; returns its path.

        The best policy of a run that was killed may be of more steps than the best one after it goes on. Others are
        removed only when the new one is complete on disk. Raises: OSError.
        """
        self._directory.mkdir(exist_ok=True)
        remove_partial_files(self._directory)
        path = self._directory / f"step-{state.env_steps:012d}.safetensors"
        save_checkpoint(path, state)
        others = [other for other in self.paths() if other != path]
        for old in others[: max(len(others) - self._keep + 1, 0)]:
            old.unlink(missing_ok=True)
        return path

    def load_latest(self) -> CheckpointState | None:
        """The newest checkpoint, None before the first; see ``load_checkpoint``. Raises CheckpointError."""
        paths = self.paths()
        try:
            return load_checkpoint(paths[-1]) if paths else None
        except CheckpointError as error:
            older = f"; delete it to go on from the one before, {paths[-2].name}" if len(paths) > 1 else ""
            raise CheckpointError(f"{error}{older}") from error


def save_checkpoint(path: Path, state: CheckpointState) -> None:
    """Write ``state`` to ``path`` atomically: a kill leaves the old file or the complete new one.

    Raises: OSError; TypeError for state that a checkpoint cannot hold.
    """
    text, tensors = _document(state)
    metadata = {"format": FORMAT, "version": str(FORMAT_VERSION), "document": text, "sha256": checksum(text, tensors)}
    write_atomically(path, _safetensors(tensors, metadata))


def _safetensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """The parts of a file of safetensors, without a copy of any tensor; its own library's writer makes two of all."""
    header: dict[str, object] = {"__metadata__": metadata}
    ordered = sorted(tensors.items(), key=lambda item: -item[1].itemsize)  # so that each is aligned
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for _, tensor in ordered:
        yield _bytes(tensor)


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def pack_state(state: CheckpointState) -> bytes:
    """A state as it travels between the learners of a run; ``unpack_state`` restores it to the last bit."""
    text, tensors = _document(state)
    head = text.encode()
    return b"".join((len(head).to_bytes(8, "little"), head, *_safetensors(tensors, {})))


def unpack_state(content: bytes) -> CheckpointState:
    """Inverse of ``pack_state``. Raises CheckpointError."""
    end = 8 + int.from_bytes(content[:8], "little")
    return _parse(Path("learner 0's state"), content[8:end].decode(), deserialise(content[end:]))


def _document(state: CheckpointState) -> tuple[str, dict[str, Tensor]]:
    tensors: dict[str, Tensor] = {}
    document = {
        "tensors": flatten(dict(state.tensors), tensors, "model"),
        "algorithm": flatten(state.algorithm, tensors, "algorithm"),
        "counters": flatten(state.counters, tensors, "counters"),
    }
    return json.dumps(document, allow_nan=False, separators=(",", ":")), tensors


def load_checkpoint(path: Path) -> CheckpointState:
    """Read and check a checkpoint.

    Raises:
        CheckpointError: missing, damaged, not one of ours, or of another format version.
    """
    metadata, tensors = _read(path)
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is a safetensors file, but no checkpoint of a run; give one from RUN/checkpoints"
        )
    if metadata.get("version") != str(FORMAT_VERSION):
        raise CheckpointError(
            f"{path} has checkpoint format {metadata.get('version')}, this version of accel reads {FORMAT_VERSION}: "
            "go on with the version that wrote it"
        )
    text = metadata.get("document", "")
    if metadata.get("sha256") != checksum(text, tensors):
        raise CheckpointError(f"{path} is damaged: its checksum does not match its content")
    return _parse(path, text, tensors)


def pack_generators() -> dict[str, Tree]:
    """The states of torch's own generators, on the CPU and on every CUDA device."""
    packed: dict[str, Tree] = {"torch_cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        packed["torch_cuda"] = list(torch.cuda.get_rng_state_all())
    return packed


def load_generators(packed: Mapping[str, Tree]) -> None:
    """Restore packed states in place. CUDA's are skipped if the number of devices differs.

    Raises: CheckpointError a generator's state is missing, or of another kind.
    """
    try:
        torch.set_rng_state(cast(Tensor, packed["torch_cpu"]))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"the checkpoint's generator states do not fit: {error}") from error
    devices = packed.get("torch_cuda")
    if isinstance(devices, list) and torch.cuda.is_available() and len(devices) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(cast(list[Tensor], devices))


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        if not path.is_file() and path.exists():
            raise CheckpointError(f"{path} is no regular file, and so no checkpoint")
        size, free = path.stat().st_size, available_memory_bytes()
        if 2 * size > free:  # the file's pages, and the tensors
            raise CheckpointError(f"{path} has {size:,} bytes: too much for the {free:,} bytes of memory that are free")
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {}), {name: file.get_tensor(name).clone() for name in file.keys()}
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or no checkpoint: {error}") from error


def _parse(path: Path, text: str, tensors: Mapping[str, Tensor]) -> CheckpointState:
    try:
        document: dict[str, Json] = json.loads(text)
        parts = {name: unflatten(document[name], tensors) for name in ("tensors", "algorithm", "counters")}
        if not all(isinstance(part, Mapping) for part in parts.values()):
            raise TypeError("a part is no mapping")
        if not all(isinstance(tensor, Tensor) for tensor in cast(Mapping[str, Tree], parts["tensors"]).values()):
            raise TypeError("a tensor is none")
        return CheckpointState(**parts)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} has the right checksum, but not a checkpoint's structure: {error!r}") from error


def checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a checkpoint's document and tensors, as its metadata holds it."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()
