"""Tensors from files that ``torch.save`` wrote. The one place that reads such files.

``torch.load(weights_only=True)`` builds tensors and plain containers and refuses every other instruction of a pickle:
no code of the file runs. ``tests/accel/test_import_policy.py`` holds a hostile file against it.
"""

from __future__ import annotations

import io
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
    try:
        value: object = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise anything, hostile ones an UnpicklingError
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{name} is no file of tensors ({reason[:200]}): only state dicts are read, and nothing is unpickled; save "
            "policy.state_dict() with torch.save, or with safetensors.torch.save_file"
        ) from error
    if not isinstance(value, Mapping) or not all(
        isinstance(key, str) and isinstance(tensor, Tensor) for key, tensor in value.items()
    ):
        raise CheckpointError(f"{name} holds a {type(value).__name__}, not tensors by name: save policy.state_dict()")
    return dict(value)
