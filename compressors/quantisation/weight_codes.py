"""Write weights as integer codes at each refresh."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from accel.compressors.arrays import Array, FloatArray
from accel.compressors.errors import WeightsError
from accel.compressors.quantisation.affine import IntegerType, magnitudes, scales_for_bias, scales_of

# weights quantised at a time, in whole rows: a megabyte of quotients
BLOCK = 2**18


class CodeWriter:
    """Quantises weights into a model's bytes; reuses its working memory."""

    def __init__(self, codes: IntegerType) -> None:
        self._codes = codes
        self._scratch = np.empty(BLOCK, dtype=np.float32)

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
        step = max(1, BLOCK // width)
        if self._scratch.size < width:
            self._scratch = np.empty(width, dtype=np.float32)
        scales, lost = np.empty(rows, np.float32), np.zeros(rows, np.float32)
        for start in range(0, rows, step):
            own = slice(start, start + step)
            part = values[own]
            scratch = self._scratch[: part.size].reshape(part.shape)
            if factors is not None:
                part = np.multiply(part, factors, out=scratch)
            greatest = magnitudes(part)
            found = scales_of(greatest, self._codes)
            if not np.isfinite(found).all() or (bias is not None and not np.isfinite(bias[own]).all()):
                raise WeightsError(
                    f"layer {name!r} has a weight or bias that is not finite; do not publish it, lower the learning "
                    "rate"
                )
            if bias is not None:
                found = scales_for_bias(found, input_scale, bias[own], greatest)
            if means is not None:
                lost[own] = part @ means
            np.rint(np.divide(part, found[:, None], out=scratch), out=scratch)
            np.copyto(target[own], scratch, casting="unsafe")
            if means is not None:
                lost[own] -= (scratch @ means) * found
            scales[own] = found
        return scales, lost


def as_float(name: str, parameters: Mapping[str, Array]) -> FloatArray:
    """A parameter in single precision."""
    return parameters[name].astype(np.float32, copy=False)
