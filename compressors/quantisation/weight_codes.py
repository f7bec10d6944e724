"""Write weights as integer codes at each refresh."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from accel.compressors.arrays import Array, FloatArray
from accel.compressors.errors import WeightsError
from accel.compressors.kernels.library import Kernels, kernels_here
from accel.compressors.quantisation.affine import IntegerType, magnitudes, scales_for_bias, scales_of


class CodeWriter:
    """Quantises weights into a model's bytes, in compiled kernels where there are any."""

    def __init__(self, codes: IntegerType, kernels: Kernels | None = None) -> None:
        """``kernels``: the best that this CPU runs when None."""
        self._codes = codes
        found = kernels_here() if kernels is None else (kernels,)
        self._compiled = found[0].weights() if found and found[0].library is not None else None

    def write(
        self,
        name: str,
        weight: Array,
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
            weight: [n, k].
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
        values: FloatArray = weight.astype(np.float32, copy=False)
        rows, width = values.shape
        compiled = self._compiled if values.flags.c_contiguous and target.flags.c_contiguous else None
        factors = np.ones(width, np.float32) if factors is None else factors
        product = values
        if compiled is None:
            with np.errstate(over="ignore"):  # what is not finite then is refused below
                product = values * factors
            greatest = magnitudes(product)
        else:
            sizes = (values.ctypes.data, rows, width, factors.ctypes.data)
            greatest = np.empty(rows, np.float32)
            compiled[0](*sizes, greatest.ctypes.data)
        scales = self._scales(name, greatest, bias, input_scale)
        means = np.zeros(width, np.float32) if means is None else means
        if compiled is None:
            codes = np.rint(product / scales[:, None])
            np.copyto(target, codes, casting="unsafe")
            return scales, (product - codes * scales[:, None]) @ means
        lost = np.empty(rows, np.float32)
        compiled[1](*sizes, scales.ctypes.data, means.ctypes.data, target.ctypes.data, lost.ctypes.data)
        return scales, lost

    def write_there(
        self,
        name: str,
        weight: torch.Tensor,
        target: Array,
        *,
        bias: FloatArray | None = None,
        input_scale: np.float32 = np.float32(1.0),  # noqa: B008 - a number
        factors: FloatArray | None = None,
        means: FloatArray | None = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """``write``, computed on the weight's device, from which its codes come; the same codes."""

        def there(array: FloatArray) -> torch.Tensor:
            return torch.from_numpy(np.asarray(array, np.float32)).to(weight.device)

        product = weight.float() if factors is None else weight.float() * there(factors)
        scales = self._scales(name, product.abs().amax(1).cpu().numpy(), bias, input_scale)
        steps = there(scales)[:, None]
        rounded = torch.round(product / steps)
        codes = torch.empty(rounded.shape, dtype=torch.int8, pin_memory=weight.is_cuda).copy_(rounded.to(torch.int8))
        target[...] = codes.numpy()
        if means is None:
            return scales, np.zeros(len(scales), np.float32)
        return scales, ((product - rounded * steps) @ there(means)).cpu().numpy()

    def _scales(
        self, name: str, greatest: FloatArray, bias: FloatArray | None, input_scale: np.float32
    ) -> NDArray[np.float32]:
        if not np.isfinite(greatest).all() or (bias is not None and not np.isfinite(bias).all()):
            raise WeightsError(
                f"layer {name!r} has a weight or bias that is not finite; do not publish it, lower the learning rate"
            )
        scales = scales_of(greatest, self._codes)
        return scales if bias is None else scales_for_bias(scales, input_scale, bias, greatest)


def as_float(name: str, parameters: Mapping[str, Array]) -> FloatArray:
    """A parameter in single precision."""
    return parameters[name].astype(np.float32, copy=False)
