"""Tensors from files that ``torch.save`` wrote. The one place that reads such files.

``torch.load(weights_only=True)`` builds tensors and plain containers and refuses every other instruction of a pickle:
no code of the file runs. ``tests/accel/test_import_policy.py`` holds a hostile file against it.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping

import torch
from torch import Tensor

from accel.errors import CheckpointError


def read_tensors(content: bytes, name: str) -> dict[str, Tensor]:
    """The tensors of a state dict that ``torch.save`` wrote, on the CPU.

    Args:
        content: the file's bytes.
        name: what messages call it.
    Raises:
        CheckpointError: it is no such file, is damaged, or holds anything but tensors by name.
    """
    return checked_tensors(_loaded(content, name), name)


def read_dictionary(content: bytes, name: str) -> Mapping[str, object]:
    """A dictionary of tensors and plain values that ``torch.save`` wrote. Raises CheckpointError."""
    value = _loaded(content, name)
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{name} holds a {type(value).__name__}, not a dictionary")
    return value


def checked_tensors(value: object, name: str) -> dict[str, Tensor]:
    """A state dict, whose tensors are plain ones. Raises CheckpointError."""
    if not isinstance(value, Mapping) or not all(
        isinstance(key, str) and isinstance(tensor, Tensor) for key, tensor in value.items()
    ):
        raise CheckpointError(f"{name} holds a {type(value).__name__}, not tensors by name: save policy.state_dict()")
    for key, tensor in value.items():
        _check_memory(key, tensor, name)
    return dict(value)


def _loaded(content: bytes, name: str) -> object:
    try:
        _check_size(content)
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise anything, hostile ones an UnpicklingError
        reason = re.sub(r"\x1b\[[0-9;]*m", "", (str(error).strip().splitlines() or [type(error).__name__])[0])
        raise CheckpointError(
            f"{name} is no file of tensors ({reason[:200]}): only state dicts are read, and nothing is unpickled; save "
            "policy.state_dict() with torch.save, or with safetensors.torch.save_file"
        ) from error


def check_pickle(content: bytes) -> None:
    """Raise anything for a file of ``torch.save`` that holds more than tensors and plain containers."""
    torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def is_safetensors(content: bytes) -> bool:
    """Whether a file begins as those of safetensors do: the length of a JSON object, and the object."""
    return content[8:9] == b"{" and int.from_bytes(content[:8], "little") < len(content)


def _check_size(content: bytes) -> None:
    """Raises ValueError for an archive that would unpack to more than it has; torch.save compresses nothing."""
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
        is_packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
        if is_packed or sum(member.file_size for member in members) > len(content):
            raise ValueError("its members have more bytes than the file")


def _check_memory(key: str, tensor: Tensor, name: str) -> None:
    """Raises CheckpointError for a tensor that is not dense on the CPU, or whose shape names more than it has."""
    is_dense = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    if not is_dense or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise CheckpointError(f"{name}: '{key}' is no plain tensor with all its values: save policy.state_dict()")
