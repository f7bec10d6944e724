"""Dense layers and their gradients, in one call of a compiled kernel each: a call of torch for every layer, bias
and activation takes longer than their arithmetic, and leaves the caches between them.

Beside torch on one thread of a CPU with AVX2, a pass and its way back take a third of the time with 64×2 and 64 rows,
two thirds with 8,192, three quarters with 128×2, and as long from 256 on. With AVX-512 on an AMD EPYC, where torch's
library leaves AVX-512 alone, 256 rows of 128×2 to 2048×2 take half the time; Intel's CPUs were not measured.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from accel.compressors.kernels import tower as compiled
from accel.compressors.kernels.library import Kernels, kernels_here
from accel.compressors.kernels.steps import ACTIVATIONS
from accel.config.parts import Activation

WIDEST, WIDEST_WITH_AVX512 = 128, 2048
"""The most outputs of a layer for which torch is not quicker on ``FEW_THREADS``."""
FEW_THREADS, MOST_ROWS = 2, 512
"""With more threads torch is quicker beyond ``WIDEST`` and these rows: a kernel runs on one."""


@dataclass(frozen=True)
class Layer:
    """A linear layer's weight [out, in] and bias [out], and where their gradients are written, None where nobody trains
    them; all without a graph."""

    weight: Tensor
    bias: Tensor
    of_weight: Tensor | None = None
    of_bias: Tensor | None = None


@dataclass(frozen=True)
class Tower:
    """An mlp's layers, an activation behind each, and the heads on the last of them."""

    layers: Sequence[Layer]
    heads: Sequence[Layer] = ()


class CompiledTowers:
    """Towers that ``suits``, on the same inputs. Parameters and gradients stay where they are.

    Args:
        activation: one that ``dense`` does by hand. kernels: of this CPU; None: the best.
    Attributes:
        widest: the most outputs of a layer.
    """

    def __init__(self, towers: Sequence[Tower], activation: Activation, kernels: Kernels | None = None) -> None:
        kernels = kernels or kernels_here()[0]
        self._forward, self._backward = kernels.towers()
        self._given = towers  # nobody frees their parameters before this
        self._inputs = towers[0].layers[0].weight.shape[1]
        self.widest = _widest(towers)
        self._columns, self._handed_out, each = 0, list[tuple[int, int]](), []
        for tower in towers:
            layers, start = [*tower.layers, *tower.heads], self._columns
            for number, layer in enumerate(layers, 1):
                width = layer.bias.shape[0]
                if number > len(tower.layers) or number == len(layers):
                    self._handed_out.append((self._columns, width))  # of a row of values: the first, and how many
                self._columns += width
            sizes = (len(tower.layers), len(tower.heads), ACTIVATIONS.index(activation.capitalize()), self.widest)
            addresses = (compiled.Layer * len(layers))(*map(_at_its_address, layers))
            each.append(compiled.Tower(*sizes, self._columns - start, addresses))
        self._towers = (compiled.Tower * len(each))(*each)
        self._start = ctypes.addressof(self._towers), len(each)
        self._packed = 2 * kernels.lanes * max(self._inputs, self._columns, compiled.BLOCK)

    def run(self, x: Tensor) -> tuple[list[Tensor], CompiledWay]:
        """The outputs of all heads of x [N, F], or of the last layer of a tower that has none; and the way back."""
        rows, inputs = x.shape
        if inputs != self._inputs:
            raise ValueError(f"layers of {self._inputs} inputs got {inputs}")
        x, room = x.contiguous(), -(-rows // 16) * 16  # see chain.c
        values = _room(room * self._columns + self._packed)
        address = values.data_ptr()
        self._forward(*self._start, rows, x.data_ptr(), address, address + 4 * room * self._columns)
        outputs = [values.as_strided((rows, width), (width, 1), room * start) for start, width in self._handed_out]
        return outputs, CompiledWay(self, x, values)

    def pull(self, way: CompiledWay, gradients: Sequence[Tensor], of_x: Tensor | None) -> None:
        """From the gradients of all heads' outputs to the parameters', or to that of x's last columns in ``of_x``."""
        rows, inputs = way.x.shape
        plain = [gradient.float().contiguous() for gradient in gradients]
        if [(rows, width) for _, width in self._handed_out] != [gradient.shape for gradient in plain]:
            raise ValueError(f"heads {self._handed_out} of {rows} rows got gradients {[g.shape for g in plain]}")
        if not all(tower.heads for tower in self._given):
            raise ValueError("a tower without heads has no way back")
        into, first = (None, 0) if of_x is None else (of_x.data_ptr(), inputs - of_x.shape[1])
        memory = _room(self._packed + 2 * compiled.BLOCK * self.widest)
        address, starts = memory.data_ptr(), (ctypes.c_void_p * len(plain))(*[its.data_ptr() for its in plain])
        self._backward(
            *self._start, rows, way.x.data_ptr(), way.values.data_ptr(), address, starts, of_x is None, into,
            first, address + 4 * self._packed,
        )  # fmt: skip


@dataclass(frozen=True)
class CompiledWay:
    """The way back from a pass of ``CompiledTowers``."""

    towers: CompiledTowers
    x: Tensor
    values: Tensor

    def pull(self, gradients: Sequence[Tensor]) -> None:
        """From the gradient of each head's output to those of the parameters."""
        self.towers.pull(self, gradients, None)

    def pull_input(self, gradients: Sequence[Tensor], first: int) -> Tensor:
        """From the gradient of each head's output to that of x's columns from ``first`` on; parameters' stay."""
        rows, columns = self.x.shape
        of_x = self.x.new_empty(rows, columns - first)
        self.towers.pull(self, gradients, of_x)
        return of_x


def suits(towers: Sequence[Tower]) -> bool:
    """Whether such towers are narrow enough, lie as the kernels read them, and kernels are compiled for this CPU."""
    if not (kernels := kernels_here()) or not all(tower.layers for tower in towers):
        return False
    layers = (layer for tower in towers for layer in (*tower.layers, *tower.heads))
    limit = WIDEST_WITH_AVX512 if kernels[0].lanes == 16 else WIDEST
    return _widest(towers) <= limit and all(map(_lies_plainly, layers))


def takes(widest: int, rows: int) -> bool:
    """Whether so many rows of towers that suit are quicker here than by torch."""
    return torch.get_num_threads() <= FEW_THREADS or (widest <= WIDEST and rows <= MOST_ROWS)


def _widest(towers: Sequence[Tower]) -> int:
    return max(layer.bias.shape[0] for tower in towers for layer in tower.layers)


def _lies_plainly(layer: Layer) -> bool:
    """Whether all is float32 in this machine's memory, and a gradient lies as its parameter."""
    parts = [(layer.weight, layer.of_weight), (layer.bias, layer.of_bias)]
    tensors = [tensor for pair in parts for tensor in pair if tensor is not None]
    return (
        all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)
        and (layer.weight.is_contiguous() or layer.weight.t().is_contiguous())
        and layer.bias.is_contiguous()
        and all(its is None or its.stride() == part.stride() for part, its in parts)
    )


def _room(floats: int) -> Tensor:
    return torch.empty(floats, dtype=torch.float32, device="cpu")  # whatever the caller's default is


def _at_its_address(layer: Layer) -> compiled.Layer:
    parts = layer.weight, layer.bias, layer.of_weight, layer.of_bias
    pointers = (None if part is None else part.data_ptr() for part in parts)
    return compiled.Layer(*pointers, *layer.weight.stride(), *reversed(layer.weight.shape))
