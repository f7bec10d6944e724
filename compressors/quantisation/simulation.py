"""A trained policy at 2 to 16 bits, simulated in floating point.

Weights are rounded symmetrically, and the inputs of layers asymmetrically over their range on the given inputs: the
formulae of ``quantisation.affine`` at other widths. Only two widths have kernels: 8 bits as ``int8``, and 4-bit weights
as ``int4``, which has a scale for each block.
Source: tables of widths as in Krishnan et al. 2019 (QuaRL), arXiv:1910.01055.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import numpy as np
import torch
from torch import Tensor, nn

from accel.compressors.arrays import Array
from accel.compressors.errors import CalibrationError, SchemeError
from accel.compressors.quantisation.affine import IntegerType, activation_parameters, weight_scales
from accel.compressors.quantisation.ranges import Range

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.LSTM, nn.LSTMCell)
_WIDEST = 16
_SCALE_BYTES = 4


def check_width(bits: int) -> None:
    """Raises SchemeError: a width out of range."""
    if not 2 <= bits <= _WIDEST:
        raise SchemeError(f"{bits} bits are out of range; give a width from 2 to {_WIDEST}")


class Simulation:
    """Copies of a policy that simulate integer kernels of any width in floating point.

        policy = Simulation(module, inputs).policy(4, activations=True)

    Attributes:
        tensors: the inputs.
        reference: [N, P] the unquantised policy's first output on them.
    """

    def __init__(self, module: nn.Module, inputs: Mapping[str, Array], *, per_channel: bool = False) -> None:
        """Measure the ranges of the inputs of layers.

        Args:
            module: the acting policy; left as it is.
            inputs: real inputs in the order of its arguments, [N, *shape] by name, N ≥ 2.
            per_channel: a scale for each output of a layer.
        Raises:
            CalibrationError: fewer than two inputs.
        """
        self.tensors = [torch.from_numpy(array) for array in inputs.values()]
        if not self.tensors or len(self.tensors[0]) < 2:
            raise CalibrationError(
                f"{len(self.tensors[0]) if self.tensors else 0} inputs are too few for a study; give at least two"
            )
        self._whole = copy.deepcopy(module).cpu().eval()
        self._axis = 0 if per_channel else None
        self.reference, self._ranges = _observe(self._whole, self.tensors)

    def policy(self, bits: int, *, activations: bool) -> nn.Module:
        """The policy with rounded weights and, if ``activations``, rounded activations.

        Raises:
            SchemeError: a width out of range.
        """
        check_width(bits)
        rounded = copy.deepcopy(self._whole)
        half = 2 ** (bits - 1) - 1
        for parameter in _weights(rounded):
            _round_weight(parameter, IntegerType(np.dtype(np.int32), -half, half), self._axis)
        unsigned = IntegerType(np.dtype(np.int32), 0, 2**bits - 1)
        for name, layer in rounded.named_modules():
            if activations and name in self._ranges:
                scale, zero = activation_parameters(self._ranges[name].low, self._ranges[name].high, unsigned)
                layer.register_forward_pre_hook(_InputRounder(float(scale), zero, unsigned.maximum))
        return rounded

    def size_bytes(self, bits: int) -> int:
        """Size of the quantised policy: packed codes, scales, and unquantised parameters in full. Raises SchemeError: a
        width out of range."""
        check_width(bits)
        rounded = _weights(self._whole)
        whole = sum(t.numel() * t.element_size() for t in (*self._whole.parameters(), *self._whole.buffers()))
        whole -= sum(weight.numel() * weight.element_size() for weight in rounded)
        scales = sum(1 if self._axis is None else len(weight) for weight in rounded)
        return whole + sum(-(-weight.numel() * bits // 8) for weight in rounded) + scales * _SCALE_BYTES


def _weights(module: nn.Module) -> list[nn.Parameter]:
    layers = [layer for layer in module.modules() if isinstance(layer, _LAYERS)]
    return [parameter for layer in layers for parameter in layer.parameters(recurse=False) if parameter.dim() > 1]


def _observe(whole: nn.Module, tensors: Sequence[Tensor]) -> tuple[Tensor, dict[str, Range]]:
    """The policy's output, and the range of the input of each layer."""
    ranges: dict[str, Range] = {}

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            ranges[name] = Range(float(arguments[0].min()), float(arguments[0].max()))

        return hook

    with ExitStack() as stack:
        for name, layer in whole.named_modules():
            if isinstance(layer, _LAYERS):
                stack.enter_context(layer.register_forward_pre_hook(watch(name)))
        return _first(whole, tensors), ranges


class _InputRounder:
    """A forward pre-hook that rounds a layer's first input."""

    def __init__(self, scale: float, zero: int, maximum: int) -> None:
        self._scale, self._zero, self._maximum = scale, zero, maximum

    def __call__(self, layer: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        codes = (torch.round(arguments[0] / self._scale) + self._zero).clamp(0, self._maximum)
        return ((codes - self._zero) * self._scale, *arguments[1:])


def _round_weight(parameter: nn.Parameter, codes: IntegerType, axis: int | None) -> None:
    scales = torch.from_numpy(np.array(weight_scales(parameter.detach().numpy(), codes, axis)))
    shaped = scales.reshape(-1, *[1] * (parameter.dim() - 1)) if axis is not None else scales
    with torch.no_grad():
        parameter.copy_(torch.round(parameter / shaped) * shaped)


def _first(module: nn.Module, tensors: Sequence[Tensor]) -> Tensor:
    with torch.no_grad():
        result = module(*tensors)
    first: Tensor = result if isinstance(result, Tensor) else result[0]
    return first
