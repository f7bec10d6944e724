"""Small dense layers and their gradients, in one call of a compiled kernel each: a call of torch for every layer, bias
and activation takes longer than their arithmetic, and leaves the caches between them.

Beside torch on one thread of a CPU with AVX2, a pass and its way back take a third of the time with 64×2 and 64 rows,
three quarters of it with 128×2, and as long from 256 on.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from accel.compressors.kernels import tower as compiled
from accel.compressors.kernels.library import Kernels, kernels_here
from accel.compressors.kernels.steps import ACTIVATIONS
from accel.config.parts import Activation
from accel.networks.dense import Layer, Tower

WIDEST = 128
THREAD_ROWS = 1024
"""Rows that are worth another thread."""


class CompiledTowers:
    """Towers that ``suits``, on the same inputs. Parameters and gradients stay where they are.

    Args:
        activation: one that ``dense`` does by hand. kernels: of this CPU; None: the best.
    """

    def __init__(self, towers: Sequence[Tower], activation: Activation, kernels: Kernels | None = None) -> None:
        kernels = kernels or kernels_here()[0]
        self._forward, self._backward = kernels.towers()
        self._given, self._activation = towers, ACTIVATIONS.index(activation.capitalize())
        self._inputs = towers[0].layers[0].weight.shape[1]
        self._widest = max(layer.bias.shape[0] for tower in towers for layer in tower.layers)
        self._columns, self._heads = 0, list[tuple[int, int]]()  # of a row of values; of heads there: first, and number
        for tower in towers:
            self._columns += sum(layer.bias.shape[0] for layer in tower.layers)
            for head in tower.heads:
                self._heads.append((self._columns, head.bias.shape[0]))
                self._columns += head.bias.shape[0]
        self._packed = 2 * kernels.lanes * max(self._inputs, self._columns, compiled.BLOCK)
        self._trained = all(layer.of_weight is not None for layer in _parameters(towers))
        self._threads = [_Thread(towers, self._activation, self._widest)]

    def run(self, x: Tensor) -> tuple[list[Tensor], CompiledWay]:
        """The outputs of all heads of x [N, F], and the way back."""
        rows, inputs = x.shape
        if inputs != self._inputs:
            raise ValueError(f"layers of {self._inputs} inputs got {inputs}")
        x = x.contiguous()
        room = _whole(rows)
        values = torch.empty(room * self._columns)
        starts = x.data_ptr(), values.data_ptr()

        def work(thread: _Thread, of: compiled.Range) -> None:
            self._forward(*thread.towers, ctypes.addressof(of), *starts)

        self._share(rows, 0, work)
        outputs = [values.as_strided((rows, width), (width, 1), room * start) for start, width in self._heads]
        return outputs, CompiledWay(self, x, values)

    def pull(self, way: CompiledWay, gradients: Sequence[Tensor], of_x: Tensor | None) -> None:
        """From the gradients of all heads' outputs to the parameters', or to that of x's last columns in ``of_x``."""
        rows, inputs = way.x.shape
        plain = [gradient.float().contiguous() for gradient in gradients]
        if [(rows, width) for _, width in self._heads] != [gradient.shape for gradient in plain]:
            raise ValueError(f"heads {self._heads} of {rows} rows got gradients {[g.shape for g in plain]}")
        trains = of_x is None
        if trains and not self._trained:
            raise ValueError("layers that are not trained have no gradients")
        into, first = (None, 0) if of_x is None else (of_x.data_ptr(), inputs - of_x.shape[1])
        room = 2 * compiled.BLOCK * self._widest
        starts = way.x.data_ptr(), way.values.data_ptr(), _addresses(plain)

        def work(thread: _Thread, of: compiled.Range) -> None:
            self._backward(
                *thread.towers, ctypes.addressof(of), *starts, trains, into, first, of.packed + 4 * self._packed
            )

        others = self._share(rows, room, work)
        if trains:
            for other in others:
                other.add_to(self._threads[0])

    def _share(self, rows: int, room: int, work: Callable[[_Thread, compiled.Range], None]) -> Sequence[_Thread]:
        """Have threads work on the rows, each with a part of memory of its own; those beside the first."""
        count = max(min(torch.get_num_threads(), rows // THREAD_ROWS), 1)
        memory = torch.empty(count, self._packed + room)
        if count == 1:
            work(self._threads[0], compiled.Range(_whole(rows), 0, rows, memory.data_ptr()))
            return ()
        while len(self._threads) < count:
            self._threads.append(_Thread(list(map(_beside, self._given)), self._activation, self._widest))
        each = _whole(-(-rows // count))
        starts = range(0, rows, each)
        parts = [
            compiled.Range(_whole(rows), start, min(rows, start + each), memory[number].data_ptr())
            for number, start in enumerate(starts)
        ]
        others = self._threads[1:count]
        waits = [_executor().submit(work, *pair) for pair in zip(others, parts[1:], strict=True)]
        work(self._threads[0], parts[0])
        for wait in waits:
            wait.result()
        return others


@dataclass(frozen=True)
class CompiledWay:
    """See ``towers.Way``."""

    towers: CompiledTowers
    x: Tensor
    values: Tensor

    def pull(self, gradients: Sequence[Tensor]) -> None:
        """See ``towers.Way``."""
        self.towers.pull(self, gradients, None)

    def pull_input(self, gradients: Sequence[Tensor], first: int) -> Tensor:
        """See ``towers.Way``."""
        rows, columns = self.x.shape
        of_x = self.x.new_empty(rows, columns - first)
        self.towers.pull(self, gradients, of_x)
        return of_x


def suits(towers: Sequence[Tower]) -> bool:
    """Whether such towers are small enough, and kernels are compiled for this CPU."""
    widths = [layer.bias.shape[0] for tower in towers for layer in tower.layers]
    return all(tower.layers for tower in towers) and max(widths) <= WIDEST and bool(kernels_here())


class _Thread:
    """Towers as the kernels take them; those of a thread beside the first have gradients of their own.

    Attributes:
        towers: their address and number.
    """

    def __init__(self, towers: Sequence[Tower], activation: int, widest: int) -> None:
        self.parameters = _parameters(towers)  # nobody frees them before this
        each = []
        for tower in towers:
            layers = [*tower.layers, *tower.heads]
            columns = sum(layer.bias.shape[0] for layer in layers)
            compiled_layers = (compiled.Layer * len(layers))(*map(_at_its_address, layers))
            sizes = len(tower.layers), len(tower.heads), activation, widest, columns
            each.append(compiled.Tower(*sizes, compiled_layers))
        self._each = (compiled.Tower * len(each))(*each)
        self.towers = ctypes.addressof(self._each), len(each)

    def add_to(self, first: _Thread) -> None:
        """Add its gradients to the first thread's."""
        for ours, its in zip(self.parameters, first.parameters, strict=True):
            for gradient, total in ((ours.of_weight, its.of_weight), (ours.of_bias, its.of_bias)):
                if gradient is not None and total is not None:
                    total.add_(gradient)


def _whole(rows: int) -> int:
    """So many that activations, which are of whole vectors, write to no other layer's or thread's."""
    return -(-rows // 16) * 16


def _parameters(towers: Sequence[Tower]) -> list[Layer]:
    return [layer for tower in towers for layer in (*tower.layers, *tower.heads)]


def _beside(tower: Tower) -> Tower:
    """The same parameters, with gradients of its own."""

    def layer(of: Layer) -> Layer:
        gradients = (None if part is None else torch.empty_like(part) for part in (of.of_weight, of.of_bias))
        return Layer(of.weight, of.bias, *gradients)

    return Tower([layer(of) for of in tower.layers], [layer(of) for of in tower.heads])


def _addresses(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


def _at_its_address(layer: Layer) -> compiled.Layer:
    parts = layer.weight, layer.bias, layer.of_weight, layer.of_bias
    pointers = (None if part is None else part.data_ptr() for part in parts)
    return compiled.Layer(*pointers, *layer.weight.stride(), *reversed(layer.weight.shape))


@functools.cache
def _executor() -> Executor:
    return ThreadPoolExecutor(torch.get_num_threads())
