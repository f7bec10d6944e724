"""Tensors from files that ``torch.save`` or safetensors wrote. The one place that reads such files.

``torch.load(weights_only=True)`` builds tensors and plain containers and refuses every other instruction of a pickle:
no code of the file runs. ``tests/accel/imports/test_import_policy.py`` holds a hostile file against it.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn

from accel.errors import CheckpointError


def read_tensors(content: bytes, name: str) -> dict[str, Tensor]:
    """The tensors of a state dict, on the CPU.

    Args:
        content: the file's bytes.
        name: what messages call it.
    Raises:
        CheckpointError: it is no such file, is damaged, or holds anything but tensors by name.
    """
    if not is_safetensors(content):
        return checked_tensors(read_plain(content, name), name)
    try:
        return checked_tensors(load_safetensors(content), name)
    except (ValueError, SafetensorError) as error:
        raise CheckpointError(f"{name} cannot be read: {error}") from error


def read_plain(content: bytes, name: str) -> object:
    """Tensors and plain containers that ``torch.save`` wrote. Raises CheckpointError."""
    try:
        _check_size(content)
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise anything, hostile ones an UnpicklingError
        reason = re.sub(r"\x1b\[[0-9;]*m", "", (str(error).strip().splitlines() or [type(error).__name__])[0])
        raise CheckpointError(
            f"{name} is no file of tensors ({reason[:200]}): only state dicts are read, and nothing is unpickled; save "
            "policy.state_dict() with torch.save, or with safetensors.torch.save_file"
        ) from error


def checked_tensors(value: object, name: str) -> dict[str, Tensor]:
    """A state dict, whose tensors are plain ones. Raises CheckpointError."""
    if not isinstance(value, Mapping) or not all(
        isinstance(key, str) and isinstance(tensor, Tensor) for key, tensor in value.items()
    ):
        raise CheckpointError(f"{name} holds a {type(value).__name__}, not tensors by name: save policy.state_dict()")
    for key, tensor in value.items():
        is_dense = tensor.layout == torch.strided and tensor.device.type == "cpu"
        is_dense = is_dense and not (tensor.is_quantized or tensor.is_complex())
        if not is_dense or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise CheckpointError(f"{name}: '{key}' is no plain tensor with all its values: save policy.state_dict()")
    return dict(value)


@torch.no_grad()
def fill(module: nn.Module, weights: Mapping[str, Tensor], name: str, prefix: str = "") -> None:
    """Copy tensors into a module.

    Args:
        weights: by the names of its parameters and buffers, behind ``prefix``; others are left out.
        name: what messages call the file.
    Raises:
        CheckpointError: names the first that is absent, of another shape, or not finite.
    """
    for key, target in module.state_dict().items():
        found = weights.get(f"{prefix}{key}")
        if found is None or found.shape != target.shape or found.is_floating_point() != target.is_floating_point():
            raise CheckpointError(
                f"{name} are not of {type(module).__name__}: '{prefix}{key}' is {_described(found)} in the file and "
                f"{_described(target)} in the module; save policy.state_dict() of the same class"
            )
        target.copy_(found)
        if not target.isfinite().all():
            raise CheckpointError(f"{name} are damaged: '{prefix}{key}' holds values that are not finite")


def _described(tensor: Tensor | None) -> str:
    return "absent" if tensor is None else f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


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
