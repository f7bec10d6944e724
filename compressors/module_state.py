"""Parameters and buffers of a torch module as numpy arrays, by name."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from accel.compressors.arrays import Array, State
from accel.compressors.errors import WeightsError


def read_state(module: torch.nn.Module, names: Iterable[str] | None = None) -> dict[str, Array]:
    """Parameters and buffers by name: views of the live weights on the CPU, copies from a GPU.

    Args:
        module: the policy.
        names: which ones; all of them when None.

    Raises:
        WeightsError: the module has no tensor of that name.
    """
    return as_arrays(named_tensors(module) if names is None else leaves_of(module, names))


def leaves_of(module: torch.nn.Module, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """A module's parameters and buffers of these names. Raises WeightsError: it has none of one."""
    tensors = named_tensors(module)
    missing = [name for name in names if name not in tensors]
    if missing:
        raise WeightsError(f"the policy has no parameter or buffer {missing[0]!r}; bind the scheme to it again")
    return {name: tensors[name] for name in names}


def as_arrays(tensors: dict[str, torch.Tensor]) -> dict[str, Array]:
    """Views on the CPU, copies from a GPU."""
    if any(tensor.device.type != "cpu" for tensor in tensors.values()):
        tensors = _to_cpu(tensors)
    return {name: tensor.detach().numpy() for name, tensor in tensors.items()}


def load_state(module: torch.nn.Module, state: State) -> None:
    """Write arrays into a module's parameters and buffers, in place."""
    tensors = named_tensors(module)
    for name, array in state.items():
        tensors[name].detach().copy_(torch.from_numpy(np.array(array)))


def require_finite(name: str, array: Array) -> None:
    """Raise WeightsError when a floating-point parameter holds a NaN or an infinity."""
    if array.dtype.kind == "f":
        with np.errstate(all="ignore"):
            sum_is_finite = np.isfinite(array.sum(dtype=array.dtype))  # one pass; a sum that overflows is checked again
        if not sum_is_finite and not np.isfinite(array).all():
            raise WeightsError(
                f"parameter {name!r} is not finite: training has diverged; do not publish it, lower the learning rate"
            )


def named_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters, then buffers; torch's own iterators take twice as long, at every refresh."""
    parameters: dict[str, torch.Tensor] = {}
    buffers: dict[str, torch.Tensor] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        parameters.update((prefix + name, found) for name, found in part._parameters.items() if found is not None)
        buffers.update((prefix + name, found) for name, found in part._buffers.items() if found is not None)
    return parameters | buffers


def _to_cpu(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One transfer per dtype: each of many small ones would wait for the device."""
    moved: dict[str, torch.Tensor] = {}
    for dtype in {tensor.dtype for tensor in tensors.values()}:
        group = {name: tensor for name, tensor in tensors.items() if tensor.dtype == dtype}
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in group.values()])
        here = torch.empty(flat.shape, dtype=dtype, pin_memory=flat.is_cuda).copy_(flat)
        parts = torch.split(here, [tensor.numel() for tensor in group.values()])
        moved.update({name: part.view(group[name].shape) for name, part in zip(group, parts, strict=True)})
    return {name: moved[name] for name in tensors}
