"""Write weights as integer codes at each refresh, and count how many codes changed since the last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from compressors.arrays import Array, FloatArray
from compressors.errors import WeightsError
from compressors.quantisation.affine import IntegerType, quantise_into, scales_for_bias, weight_scales


class Changes:
    """Counts how many integer codes a refresh changed.

    Attributes:
        share: of the codes counted in the last refresh, None before the second.
    """

    def __init__(self) -> None:
        self.share: float | None = None
        self._different = self._total = self._refreshes = 0

    def begin(self) -> None:
        """Start a refresh."""
        self._different = self._total = 0

    def add(self, different: int, total: int) -> None:
        """Take in so many codes, of which some differ from those of the refresh before."""
        self._different += different
        self._total += total

    def end(self) -> None:
        """Finish a refresh."""
        if self._refreshes and self._total:
            self.share = self._different / self._total
        self._refreshes += 1


class CodeWriter:
    """Quantises one weight after the other into a model's bytes; reuses its working memory."""

    def __init__(self, codes: IntegerType, changes: Changes, sizes: Sequence[int]) -> None:
        """Make room for weights of up to the given numbers of elements."""
        self._codes = codes
        self._changes = changes
        self._scratch = np.empty(max(sizes, default=0), dtype=np.float32)
        self._new = np.empty(max(sizes, default=0), dtype=codes.dtype)
        self._turned = np.empty_like(self._new)
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
        turned: bool = False,
    ) -> NDArray[np.float32]:
        """Write a weight's symmetric codes.

        Args:
            name: the layer's, for messages.
            weight: any shape.
            axis: the axis with a scale each; None: one scale for all.
            target: where the codes go, of the weight's shape, or of its transpose's if ``turned``.
            bias: the layer's bias, for which scales are widened if it would not fit 32 bits.
            input_scale: of the layer's input, given together with ``bias``.
            turned: write the codes of a matrix transposed.
        Returns:
            The scales, [] or [channels].
        Raises:
            WeightsError: a weight or bias is not finite.
        """
        values: FloatArray = weight.astype(np.float32, copy=False)
        scales = weight_scales(values, self._codes, axis)
        if not np.isfinite(scales).all() or (bias is not None and not np.isfinite(bias).all()):
            raise WeightsError(f"layer {name!r} has a weight or bias that is not finite; do not publish it")
        if bias is not None and input_scale is not None:
            scales = scales_for_bias(scales, input_scale, bias)
        scratch = self._scratch[: values.size].reshape(values.shape)
        new = self._new[: values.size].reshape(values.shape)
        quantise_into(new, values, scales, axis, scratch)
        if turned:
            new = self._turn(new)
        differs = self._differs[: new.size].reshape(new.shape)
        np.not_equal(new, target, out=differs)
        self._changes.add(int(np.count_nonzero(differs)), new.size)
        target[...] = new
        return scales

    def _turn(self, codes: Array) -> Array:
        """The transpose, contiguous; torch's copy is twice as fast as numpy's."""
        room = self._turned[: codes.size].reshape(codes.shape[::-1])
        torch.from_numpy(room).copy_(torch.from_numpy(codes).t())
        return room


def as_float(name: str, parameters: Mapping[str, Array]) -> FloatArray:
    """A parameter in single precision."""
    return parameters[name].astype(np.float32, copy=False)
