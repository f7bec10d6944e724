"""Between host and device without waiting: arrays to it in one copy a sample, numbers back from it later.

A copy from page-locked memory on a stream of its own runs beside the update before. Its memory is used again, but not
before its copy has ended; what is computed with the tensors waits for the copy on the device, the host for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.generic]
Key = TypeVar("Key")

_ALIGNMENT = 256
_SLABS = 3
"""Pieces of page-locked memory: one is filled while the copies of the others run."""


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A small tensor of the host's on the device. The host does not wait; on a CPU the tensor itself."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class HostCopy:
    """A small tensor on its way to the host, begun at once; on a CPU a copy of it."""

    def __init__(self, tensor: Tensor) -> None:
        pinned = tensor.device.type == "cuda"
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned)
        self._host.copy_(tensor.detach(), non_blocking=True)
        self._ended: torch.cuda.Event | None = None
        if pinned:
            self._ended = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self._ended.record()

    def numpy(self) -> Array:
        """The numbers; waits until they are there, and for nothing that was begun later."""
        if self._ended is not None:
            self._ended.synchronize()
        values: Array = self._host.numpy()
        return values


class Arrivals(Generic[Key]):
    """Numbers that belong to keys: on a CPU this turn's, from another device those of the turn before."""

    def __init__(self) -> None:
        self._waiting: tuple[Key, HostCopy] | None = None

    def put(self, key: Key, numbers: Tensor) -> list[tuple[Key, Array]]:
        """Begin to copy; what has arrived. While the device computes this turn's numbers, the host does not wait."""
        new = key, HostCopy(numbers)
        if numbers.device.type == "cpu":
            return [(key, new[1].numpy())]
        before, self._waiting = self._waiting, new
        return [] if before is None else [(before[0], before[1].numpy())]


@dataclass(frozen=True)
class Joined:
    """Arrays to be one, along an axis."""

    arrays: Sequence[Array]
    axis: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole."""
        shape = list(self.arrays[0].shape)
        shape[self.axis] = sum(array.shape[self.axis] for array in self.arrays)
        return tuple(shape)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Of all."""
        return self.arrays[0].dtype

    def whole(self) -> Array:
        """One array; a single one is not copied."""
        return self.arrays[0] if len(self.arrays) == 1 else np.concatenate(self.arrays, self.axis)


class Slab:
    """Where fields lie in one piece of memory of ``nbytes`` bytes, one behind the other."""

    def __init__(self, fields: Mapping[str, Joined]) -> None:
        self._parts = fields
        self._sizes = [math.prod(joined.shape) * joined.dtype.itemsize for joined in fields.values()]
        self._padded = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in self._sizes]
        self.nbytes = sum(self._padded)

    def tensors(self, memory: Tensor) -> dict[str, Tensor]:
        """Views of the fields in such a piece of bytes, on any device."""
        found = {}
        for (name, joined), size, part in zip(
            self._parts.items(), self._sizes, torch.split(memory, self._padded), strict=True
        ):
            dtype = torch.from_numpy(np.empty(0, joined.dtype)).dtype
            found[name] = part[:size].view(dtype).view(joined.shape)
        return found

    def fill(self, memory: Tensor) -> None:
        """Write the fields where they belong, on the host."""
        for name, tensor in self.tensors(memory).items():
            joined = self._parts[name]
            np.concatenate(joined.arrays, joined.axis, out=tensor.numpy())


class Staging:
    """How the fields of a sample become tensors on the learner's device; on the host, the identity, they are there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def send(self, fields: Mapping[str, Joined]) -> dict[str, Tensor]:
        """All fields, to be computed with on the current stream. On a CPU a single array's memory is shared."""
        return {name: torch.from_numpy(joined.whole()).to(self._device) for name, joined in fields.items()}


class PinnedStaging(Staging):
    """From page-locked memory to a CUDA device, one copy for all fields, on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._slabs = [torch.empty(0, dtype=torch.uint8)] * _SLABS
        self._ended: list[torch.cuda.Event | None] = [None] * _SLABS
        self._next = 0

    def send(self, fields: Mapping[str, Joined]) -> dict[str, Tensor]:
        """See ``Staging``."""
        layout = Slab(fields)
        slab = self._slab(layout.nbytes)
        layout.fill(slab)
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            there = slab.to(self._device, non_blocking=True)
            ended = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            ended.record()
        self._ended[self._next] = ended
        current.wait_event(ended)
        there.record_stream(current)  # or the stream of copies would take its memory while it is computed with
        return layout.tensors(there)

    def _slab(self, size: int) -> Tensor:
        """Memory on the host that no copy reads."""
        self._next = (self._next + 1) % _SLABS
        ended = self._ended[self._next]
        if ended is not None:
            ended.synchronize()
        if self._slabs[self._next].numel() < size:
            self._slabs[self._next] = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return self._slabs[self._next][:size]


def make_staging(device: torch.device) -> Staging:
    """What suits a device: page-locked memory on the way to CUDA."""
    return PinnedStaging(device) if device.type == "cuda" else Staging(device)
