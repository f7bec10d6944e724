"""Write weights as integer codes at each refresh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from accel.compressors.arrays import Array, FloatArray
from accel.compressors.errors import WeightsError
from accel.compressors.kernels.library import Kernels, kernels_here
from accel.compressors.quantisation.affine import IntegerType, scales_for_bias, scales_of

_Writes = Callable[[FloatArray, FloatArray, Array], FloatArray]
"""Takes scales, means and target; returns what rounding takes from each output at the means."""


class CodeWriter:
    """Quantises weights into a model's bytes: in compiled kernels where there are any, else in torch."""

    def __init__(self, codes: IntegerType, kernels: Kernels | None = None) -> None:
        """``kernels``: the best that this CPU runs when None."""
        self._codes = codes
        found = kernels_here() if kernels is None else (kernels,)
        self._compiled = found[0].weights() if found and found[0].library is not None else None

    def write(
        self,
        name: str,
        weight: Array | torch.Tensor,
        target: Array,
        *,
        bias: FloatArray | None = None,
        input_scale: np.float32 = np.float32(1.0),  # noqa: B008 - a number
        factors: FloatArray | None = None,
        means: FloatArray | None = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Write a weight's symmetric codes, with a scale for each output.

        No clipping is needed: at these scales a quotient rounds to at most q_max.

        Args:
            name: the layer's name in messages.
            weight: [n, k]; the codes of a tensor are computed on its device, and are the same.
            target: the destination, of the weight's shape.
            bias: [n] of the layer; scales are widened if it would exceed 32 bits.
            input_scale: of the layer's input.
            factors: [k] by which the columns are multiplied.
            means: [k] of the layer's input, in the units of the codes.
        Returns:
            The scales [n], and what rounding takes from each output at these means, zeros without.
        Raises:
            WeightsError: a weight or bias is not finite.
        """
        factors = np.ones(weight.shape[1], np.float32) if factors is None else factors
        means = np.zeros(weight.shape[1], np.float32) if means is None else means
        if isinstance(weight, torch.Tensor):
            greatest, writes = _in_torch(weight, factors)
        else:
            values = weight.astype(np.float32, copy=False)
            if self._compiled is not None and values.flags.c_contiguous and target.flags.c_contiguous:
                greatest, writes = _in_kernels(self._compiled, values, factors)
            else:
                greatest, writes = _in_torch(torch.from_numpy(values), factors)
        if not np.isfinite(greatest).all() or (bias is not None and not np.isfinite(bias).all()):
            raise WeightsError(
                f"layer {name!r} has a weight or bias that is not finite; do not publish it, lower the learning rate"
            )
        scales = scales_of(greatest, self._codes)
        if bias is not None:
            scales = scales_for_bias(scales, input_scale, bias, greatest)
        return scales, writes(scales, means, target)


def _in_kernels(compiled: tuple[Any, Any], values: FloatArray, factors: FloatArray) -> tuple[FloatArray, _Writes]:
    """The greatest magnitude of each row, and what writes the codes."""
    magnitudes, write_codes = compiled
    rows = len(values)
    sizes = (values.ctypes.data, *values.shape, factors.ctypes.data)
    greatest = np.empty(rows, np.float32)
    magnitudes(*sizes, greatest.ctypes.data)

    def write(scales: FloatArray, means: FloatArray, target: Array) -> FloatArray:
        lost = np.empty(rows, np.float32)
        write_codes(*sizes, scales.ctypes.data, means.ctypes.data, target.ctypes.data, lost.ctypes.data)
        return lost

    return greatest, write


def _in_torch(weight: torch.Tensor, factors: FloatArray) -> tuple[FloatArray, _Writes]:
    """``_in_kernels`` in torch, on the weight's device: codes are copied from it, the weight is not."""

    def there(array: FloatArray) -> torch.Tensor:
        return torch.from_numpy(np.asarray(array, np.float32)).to(weight.device)

    product = weight.float() * there(factors)

    def write(scales: FloatArray, means: FloatArray, target: Array) -> FloatArray:
        steps = there(scales)[:, None]
        rounded = torch.round(product / steps)
        codes = torch.empty(rounded.shape, dtype=torch.int8, pin_memory=weight.is_cuda).copy_(rounded.to(torch.int8))
        target[...] = codes.numpy()
        lost: FloatArray = torch.mv(product - rounded * steps, there(means)).cpu().numpy()
        return lost

    return product.abs().amax(1).cpu().numpy(), write


def as_float(name: str, parameters: Mapping[str, Array]) -> FloatArray:
    """A parameter in single precision."""
    return parameters[name].astype(np.float32, copy=False)
