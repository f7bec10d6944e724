"""Write weights as integer codes at each refresh."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from accel.compressors.arrays import Array, FloatArray
from accel.compressors.errors import WeightsError
from accel.compressors.quantisation.affine import IntegerType, magnitudes, quantise_into, scales_for_bias, scales_of

# Weights quantised at a time, in whole rows: their quotients stay in a processor's second cache
BLOCK = 65536


class CodeWriter:
    """Quantises weights into a model's bytes; reuses its working memory."""

    def __init__(self, codes: IntegerType) -> None:
        self._codes = codes
        self._scratch = np.empty(BLOCK, dtype=np.float32)

    def write(
        self,
        name: str,
        weight: Array,
        axis: int | None,
        target: Array,
        *,
        bias: FloatArray | None = None,
        input_scale: np.float32 | None = None,
    ) -> NDArray[np.float32]:
        """Write a weight's symmetric codes.

        Args:
            name: the layer's name in messages.
            weight: any shape.
            axis: the axis with a scale for each index; None: one scale for all.
            target: the destination, of the weight's shape.
            bias: the layer's bias; scales are widened if it would exceed 32 bits.
            input_scale: of the layer's input, given together with ``bias``.
        Returns:
            The scales, [] or [channels].
        Raises:
            WeightsError: a weight or bias is not finite.
        """
        values: FloatArray = weight.astype(np.float32, copy=False)
        greatest = magnitudes(values, axis)
        scales = scales_of(greatest, self._codes)
        if not np.isfinite(scales).all() or (bias is not None and not np.isfinite(bias).all()):
            raise WeightsError(
                f"layer {name!r} has a weight or bias that is not finite; do not publish it, lower the learning rate"
            )
        if bias is not None and input_scale is not None:
            scales = scales_for_bias(scales, input_scale, bias, greatest)
        self._write_blocks(target, values, scales, axis)
        return scales

    def _write_blocks(self, target: Array, values: FloatArray, scales: NDArray[np.float32], axis: int | None) -> None:
        width = values[0].size
        rows = max(1, BLOCK // width)
        if self._scratch.size < width:
            self._scratch = np.empty(width, dtype=np.float32)
        for start in range(0, len(values), rows):
            block = slice(start, start + rows)
            part = values[block]
            own = scales[block] if axis == 0 else scales
            quantise_into(target[block], part, own, axis, self._scratch[: part.size].reshape(part.shape))


def as_float(name: str, parameters: Mapping[str, Array]) -> FloatArray:
    """A parameter in single precision."""
    return parameters[name].astype(np.float32, copy=False)
