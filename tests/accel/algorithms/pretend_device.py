"""A device for machines without one: computes on the host, says it is elsewhere, and refuses to be waited for.

Its tensors are of torch's device type ``meta``, which every build of torch knows, so that code takes the ways of an
accelerator; what they hold is in ``held``. ``Accelerator`` runs every operation on that, and raises ``WaitedError``
where a CUDA device would make the host wait: a number read, a shape that depends on numbers, a copy that blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import _disabled_torch_function_impl
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
_aten = torch.ops.aten
_READS = {
    _aten._local_scalar_dense.default, _aten.nonzero.default, _aten.masked_select.default, _aten.equal.default,
    _aten.unique_dim.default, _aten._unique2.default, _aten.repeat_interleave.Tensor, _aten.bincount.default,
    _aten.nonzero_numpy.default, _aten.is_nonzero.default,
}  # fmt: skip
_COPIES = {_aten._to_copy.default, _aten.copy_.default}
_INDEXED = {_aten.index.Tensor: 1, _aten.index_put.default: 1, _aten.index_put_.default: 1}


class WaitedError(AssertionError):
    """The host would have waited for the device."""


class DeviceTensor(Tensor):
    """Of the pretended device."""

    held: Tensor
    __torch_function__ = _disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> DeviceTensor:
        return Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            layout=held.layout, device=DEVICE,
        )  # fmt: skip

    def __init__(self, held: Tensor) -> None:
        self.held = held

    @property
    def data(self) -> Tensor:
        return Tensor.data.__get__(self)

    @data.setter
    def data(self, other: DeviceTensor) -> None:
        Tensor.data.__set__(self, other)
        self.held = other.held

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{function} outside of the device")


class Accelerator(TorchDispatchMode):
    """While it is entered there is such a device. ``watched``: whether to raise ``WaitedError``."""

    def __init__(self) -> None:
        super().__init__()
        self.watched = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        ours = [isinstance(tensor, DeviceTensor) for tensor in tensors]
        if self.watched and any(ours):
            _watch(function, args, tensors)
        to = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
        if self.watched and function in _COPIES:
            _watch_copy(function, to, args, kwargs)
        result_is_ours = any(ours) if to is None else to.type == DEVICE.type
        if function is _aten.copy_.default:
            result_is_ours = isinstance(args[0], DeviceTensor)
        if to is not None:
            kwargs["device"] = torch.device("cpu")
        kwargs.pop("pin_memory", None)
        if function is _aten._to_copy.default and to is not None and result_is_ours != any(ours):
            found = function(*tree_map(_held, args), **tree_map(_held, kwargs)).clone()  # of memory of its own
        else:
            found = function(*tree_map(_held, args), **tree_map(_held, kwargs))
        return _answer(function, args, found, result_is_ours)


def _held(value: Any) -> Any:
    return value.held if isinstance(value, DeviceTensor) else value


def _answer(function: Any, args: Any, found: Any, ours: bool) -> Any:
    """What the operation gives: an argument it has written to, or new tensors."""
    if not ours:
        return found
    written = {id(leaf.held): leaf for leaf in tree_leaves(args) if isinstance(leaf, DeviceTensor)}
    return tree_map(lambda t: written.get(id(t), DeviceTensor(t)) if type(t) is Tensor else t, found)


def _watch(function: Any, args: Any, tensors: list[Tensor]) -> None:
    if function in _READS:
        raise WaitedError(str(function))
    if function in _INDEXED:
        indices = [index for index in args[_INDEXED[function]] if index is not None]
        if any(index.dtype in (torch.bool, torch.uint8) or not isinstance(index, DeviceTensor) for index in indices):
            raise WaitedError(f"{function} with a mask, or with indices of the host")
    if function not in _COPIES and any(tensor.dim() and not isinstance(tensor, DeviceTensor) for tensor in tensors):
        raise WaitedError(f"{function} of tensors on two devices")
    if function in (_aten.where.self,) and not all(isinstance(tensor, DeviceTensor) for tensor in tensors):
        raise WaitedError(f"{function} copies the host's number")


def _watch_copy(function: Any, to: torch.device | None, args: Any, kwargs: Any) -> None:
    if function is _aten.copy_.default:
        crosses = isinstance(args[0], DeviceTensor) != isinstance(args[1], DeviceTensor)
        blocks = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    else:
        crosses = to is not None and isinstance(args[0], DeviceTensor) != (to.type == DEVICE.type)
        blocks = not kwargs.get("non_blocking", False)
    if crosses and blocks:
        raise WaitedError(f"{function} blocks")


def on_device(value: Any) -> Any:
    """A dataclass of tensors with all of them there."""
    move: Callable[[Tensor], Tensor] = lambda tensor: tensor.to(DEVICE)  # noqa: E731
    return tree_map(lambda leaf: move(leaf) if isinstance(leaf, Tensor) else leaf, value)
