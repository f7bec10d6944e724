"""4-bit codes of weights, two a byte, written into a model's bytes at each refresh.

    matrices, a block of b weights of one output at a time, with e the one of greatest magnitude:
        s = e / −8;   q = min(⌊w · (1 / s) + 8 + ½⌋, 15);   w ≈ s (q − 8)
    convolution kernels, one output channel at a time:  s = max|w| / 7;   q = round(w / s);   w ≈ s q

Source: the first is onnxruntime's blockwise quantiser (``quantize_matmul_4bits``, symmetric). Deviations: a block whose
scale would be subnormal becomes zero. The second is the symmetric formula of ``quantise`` at q_max = 7.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from compressors.arrays import Array, FloatArray
from compressors.errors import WeightsError
from compressors.quantisation.weight_codes import Changes

_TINY = float(np.finfo(np.float32).tiny)


class NibbleWriter:
    """Quantises one weight after the other to 4 bits; reuses its working memory.

    torch reduces blocks ten times as fast as numpy.
    """

    def __init__(self, changes: Changes, sizes: Sequence[int]) -> None:
        """Make room for weights of up to the given numbers of elements, padding included."""
        greatest = max(sizes, default=0)
        self._changes = changes
        self._scratch = torch.zeros(greatest + 1)
        self._codes = np.zeros(greatest + 1, dtype=np.uint8)
        self._words = np.empty((greatest + 1) // 2, dtype=np.uint16)
        self._packed, self._changed = np.empty((2, (greatest + 1) // 2), dtype=np.uint8)

    def write_blocks(self, name: str, weight: Array, block: int, target: Array) -> NDArray[np.float32]:
        """Write the codes of a matrix [N, K] in blocks along K, the last one padded with zeros.

        Args:
            name: the layer's, for messages.
            weight: [N, K].
            block: weights that share a scale; even.
            target: [N, ⌈K / block⌉, block / 2] bytes, the earlier of two codes in the lower half.
        Returns:
            The scales, [N · ⌈K / block⌉].
        Raises:
            WeightsError: a weight is not finite.
        """
        groups = _in_blocks(weight, block)
        scales, inverse = _block_scales(name, groups)
        room = self._scratch[: groups.numel()].view_as(groups)
        # two sums, as the second is a rounding: 8.5 at once would round differently
        torch.mul(groups, inverse, out=room).add_(8.0).add_(0.5).clamp_max_(15.0)
        codes = self._codes[: room.numel()]
        np.copyto(codes, room.view(-1).numpy(), casting="unsafe")
        self._pack(codes, target, weight.size)
        return scales.reshape(-1)

    def write_channels(self, name: str, kernel: Array, target: Array) -> NDArray[np.float32]:
        """Write the codes of a convolution kernel [O, …] to ``target``, [⌈size / 2⌉] bytes; returns its scales [O].

        Raises:
            WeightsError: a weight is not finite.
        """
        flat = _as_tensor(kernel).reshape(len(kernel), -1)
        scales: FloatArray = np.maximum(flat.amax(1).numpy(), -flat.amin(1).numpy())
        scales /= np.float32(7.0)
        _require_finite(name, scales)
        scales[scales < _TINY] = 1.0
        even = flat.numel() + flat.numel() % 2
        room = self._scratch[:even]
        room[-1] = 0.0
        torch.div(flat, torch.from_numpy(scales)[:, None], out=room[: flat.numel()].view_as(flat)).round_()
        codes = self._codes[:even]
        np.copyto(codes.view(np.int8), room.numpy(), casting="unsafe")
        np.bitwise_and(codes, 15, out=codes)
        self._pack(codes, target, kernel.size)
        return scales

    def _pack(self, codes: NDArray[np.uint8], target: Array, count: int) -> None:
        """Two codes a byte: of a 16-bit word, which has them in the lower half of either byte, v | v >> 4."""
        words, size = codes.view(np.dtype("<u2")), target.size
        joined, packed, changed = self._words[:size], self._packed[:size], self._changed[:size]
        np.right_shift(words, 4, out=joined)
        np.bitwise_or(joined, words, out=joined)
        np.copyto(packed, joined, casting="unsafe")
        np.bitwise_xor(packed, target.reshape(-1), out=changed, casting="unsafe")
        self._changes.add(int(np.count_nonzero(changed & 15)) + int(np.count_nonzero(changed > 15)), count)
        target[...] = packed.reshape(target.shape)


def padded_size(shape: tuple[int, int], block: int) -> int:
    """Numbers in a matrix [N, K] with its rows padded to whole blocks."""
    return shape[0] * -(-shape[1] // block) * block


def _block_scales(name: str, groups: torch.Tensor) -> tuple[NDArray[np.float32], torch.Tensor]:
    """Scales [N, blocks], and their reciprocals [N, blocks, 1], 1 where the scale is zero."""
    low, high = groups.amin(2).numpy(), groups.amax(2).numpy()
    scales: FloatArray = np.where(high > -low, high, low)
    scales /= np.float32(-8.0)
    _require_finite(name, scales)
    divisors = scales
    tiny = np.abs(scales) < _TINY
    if tiny.any():
        scales[tiny] = 0.0
        divisors = np.where(tiny, np.float32(1.0), scales)
    return scales, torch.from_numpy(np.float32(1.0) / divisors)[:, :, None]


def _in_blocks(weight: Array, block: int) -> torch.Tensor:
    matrix = _as_tensor(weight)
    outputs, inputs = matrix.shape
    padding = -inputs % block
    if padding:
        matrix = torch.nn.functional.pad(matrix, (0, padding))
    return matrix.contiguous().view(outputs, -1, block)


def _as_tensor(weight: Array) -> torch.Tensor:
    values: FloatArray = weight.astype(np.float32, copy=False)
    return torch.from_numpy(values)


def _require_finite(name: str, scales: NDArray[np.float32]) -> None:
    if not np.isfinite(scales).all():
        raise WeightsError(f"layer {name!r} has a weight that is not finite; do not publish it")
