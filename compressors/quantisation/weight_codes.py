"""Write weights as integer codes at each refresh, and count how many codes changed since the last one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from compressors.arrays import Array, FloatArray
from compressors.errors import WeightsError
from compressors.quantisation.affine import IntegerType, quantise_into, scales_for_bias, weight_scales


class Changes:
    """Counts the integer codes that a refresh changes.

    Attributes:
        share: share of codes that the last refresh changed; None before the second refresh.
    """

    def __init__(self) -> None:
        self.share: float | None = None
        self._different = self._total = self._refreshes = 0

    def begin(self) -> None:
        """Start a refresh."""
        self._different = self._total = 0

    def add(self, different: int, total: int) -> None:
        """Count ``total`` codes, of which ``different`` differ from those of the previous refresh."""
        self._different += different
        self._total += total

    def end(self) -> None:
        """Finish a refresh."""
        if self._refreshes and self._total:
            self.share = self._different / self._total
        self._refreshes += 1


class CodeWriter:
    """Quantises weights into a model's bytes; reuses its working memory."""

    def __init__(self, codes: IntegerType, changes: Changes, sizes: Sequence[int]) -> None:
        """Allocate working memory for weights of these numbers of elements."""
        self._codes = codes
        self._changes = changes
        self._scratch = np.empty(max(sizes, default=0), dtype=np.float32)
        self._new = np.empty(max(sizes, default=0), dtype=codes.dtype)
        self._transposed = np.empty_like(self._new)
        self._differs = np.empty(max(sizes, default=0), dtype=np.bool_)

    def write(
        self,
        name: str,
        weight: Array,
        axis: int | None,
        target: Array,
        *,
        bias: FloatArray | None = None,
        input_scale: np.float32 | None = None,
        transposed: bool = False,
    ) -> NDArray[np.float32]:
        """Write a weight's symmetric codes.

        Args:
            name: the layer's name in messages.
            weight: any shape.
            axis: the axis with a scale for each index; None: one scale for all.
            target: the destination, of the weight's shape, or of its transpose's if ``transposed``.
            bias: the layer's bias; scales are widened if it would exceed 32 bits.
            input_scale: of the layer's input, given together with ``bias``.
            transposed: write the codes of a matrix transposed.
        Returns:
            The scales, [] or [channels].
        Raises:
            WeightsError: a weight or bias is not finite.
        """
        values: FloatArray = weight.astype(np.float32, copy=False)
        scales = weight_scales(values, self._codes, axis)
        if not np.isfinite(scales).all() or (bias is not None and not np.isfinite(bias).all()):
            raise WeightsError(
                f"layer {name!r} has a weight or bias that is not finite; do not publish it, lower the learning rate"
            )
        if bias is not None and input_scale is not None:
            scales = scales_for_bias(scales, input_scale, bias)
        scratch = self._scratch[: values.size].reshape(values.shape)
        new = self._new[: values.size].reshape(values.shape)
        quantise_into(new, values, scales, axis, scratch)
        if transposed:
            new = self._transpose(new)
        differs = self._differs[: new.size].reshape(new.shape)
        np.not_equal(new, target, out=differs)
        self._changes.add(int(np.count_nonzero(differs)), new.size)
        target[...] = new
        return scales

    def _transpose(self, codes: Array) -> Array:
        """The transpose, contiguous; torch's copy is twice as fast as numpy's."""
        target = self._transposed[: codes.size].reshape(codes.shape[::-1])
        torch.from_numpy(target).copy_(torch.from_numpy(codes).t())
        return target


def as_float(name: str, parameters: Mapping[str, Array]) -> FloatArray:
    """A parameter in single precision."""
    return parameters[name].astype(np.float32, copy=False)
