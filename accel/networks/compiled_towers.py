"""Small dense layers and their gradients, in one call of a compiled kernel each: a call of torch for every layer, bias
and activation takes longer than their arithmetic.

Beside torch on one thread of a CPU with AVX2, a pass and its way back take a third of the time with 64×2 and 64 rows,
three quarters of it with 128×2, and as long from 256 on, where torch has several threads too.
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
from accel.networks.dense import Layer, Tower

WIDEST = 128
MOST_ROWS = 512


class CompiledTowers:
    """Towers that ``suits``, on the same inputs. Parameters and gradients stay where they are.

    Args:
        activation: one that ``dense`` does by hand. kernels: of this CPU; None: the best.
    """

    def __init__(self, towers: Sequence[Tower], activation: Activation, kernels: Kernels | None = None) -> None:
        kernels = kernels or kernels_here()[0]
        self._forward, self._backward = kernels.towers()
        self._parameters = [[*tower.layers, *tower.heads] for tower in towers]  # nobody frees them before this
        self._trained = all(layer.of_weight is not None for its in self._parameters for layer in its)
        self._inputs = towers[0].layers[0].weight.shape[1]
        self._widest = max(layer.bias.shape[0] for tower in towers for layer in tower.layers)
        self._columns, self._heads = 0, list[tuple[int, int]]()  # of a row of values; of heads there: first, and number
        each, activates = [], ACTIVATIONS.index(activation.capitalize())
        for tower, parameters in zip(towers, self._parameters, strict=True):
            layers = (compiled.Layer * len(parameters))(*map(_at_its_address, parameters))
            each.append(compiled.Tower(len(tower.layers), len(tower.heads), activates, self._widest, layers))
            self._columns += sum(layer.bias.shape[0] for layer in tower.layers)
            for head in tower.heads:
                self._heads.append((self._columns, head.bias.shape[0]))
                self._columns += head.bias.shape[0]
        self._towers = (compiled.Tower * len(each))(*each)
        self._start = ctypes.addressof(self._towers), len(each)
        self._vectors, self._most = 2 * kernels.lanes, max(self._inputs, self._columns)

    def run(self, x: Tensor) -> tuple[list[Tensor], CompiledWay]:
        """The outputs of all heads of x [N, F], N at most ``MOST_ROWS``, and the way back."""
        rows, inputs = x.shape
        if inputs != self._inputs:
            raise ValueError(f"layers of {self._inputs} inputs got {inputs}")
        x = x.contiguous()
        whole = rows * self._columns + self._vectors  # an activation is of whole vectors
        values = torch.empty(whole + self._vectors * max(self._most, rows))
        address = values.data_ptr()
        self._forward(*self._start, rows, x.data_ptr(), address, address + 4 * whole)
        outputs = [values.as_strided((rows, width), (width, 1), rows * start) for start, width in self._heads]
        return outputs, CompiledWay(self, x, values)

    def pull(self, way: CompiledWay, gradients: Sequence[Tensor], add: bool, of_x: Tensor | None) -> None:
        """From the gradients of all heads' outputs to the parameters', or to that of x's last columns in ``of_x``."""
        rows, inputs = way.x.shape
        plain = [gradient.float().contiguous() for gradient in gradients]
        if [(rows, width) for _, width in self._heads] != [gradient.shape for gradient in plain]:
            raise ValueError(f"heads {self._heads} of {rows} rows got gradients {[g.shape for g in plain]}")
        if not (self._trained or of_x is not None):
            raise ValueError("layers that are not trained have no gradients")
        behind = 2 * rows * self._widest
        room = torch.empty(behind + self._vectors * max(self._most, rows))
        address, starts = room.data_ptr(), (ctypes.c_void_p * len(plain))(*[gradient.data_ptr() for gradient in plain])
        x, into, first = way.x.data_ptr(), None, 0
        if of_x is not None:
            x, into, first = 0, of_x.data_ptr(), inputs - of_x.shape[1]
        self._backward(
            *self._start, rows, x, way.values.data_ptr(), starts, add, into, first, address, address + 4 * behind
        )


@dataclass(frozen=True)
class CompiledWay:
    """See ``towers.Way``."""

    towers: CompiledTowers
    x: Tensor
    values: Tensor

    def pull(self, gradients: Sequence[Tensor], *, add: bool = False) -> None:
        """See ``towers.Way``."""
        self.towers.pull(self, gradients, add, None)

    def pull_input(self, gradients: Sequence[Tensor], first: int) -> Tensor:
        """See ``towers.Way``."""
        rows, columns = self.x.shape
        of_x = self.x.new_empty(rows, columns - first)
        self.towers.pull(self, gradients, False, of_x)
        return of_x


def suits(towers: Sequence[Tower]) -> bool:
    """Whether such towers are small enough, and kernels are compiled for this CPU."""
    widths = [layer.bias.shape[0] for tower in towers for layer in tower.layers]
    return all(tower.layers for tower in towers) and max(widths) <= WIDEST and bool(kernels_here())


def _at_its_address(layer: Layer) -> compiled.Layer:
    parts = layer.weight, layer.bias, layer.of_weight, layer.of_bias
    pointers = (None if part is None else part.data_ptr() for part in parts)
    return compiled.Layer(*pointers, *layer.weight.stride(), *reversed(layer.weight.shape))
