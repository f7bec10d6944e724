"""Weights in 4 bits, two to a byte, with a scale for each block of 32.

    matrices, a block of 32 weights of one output at a time, with e the one of greatest magnitude:
        s = e / −8;   q = min(⌊w · (1 / s) + 8 + ½⌋, 15);   w ≈ s (q − 8)
    convolution kernels, one output channel at a time:  s = max|w| / 7;   q = round(w / s);   w ≈ s q

Linear layers run in onnxruntime's MatMulNBits, which rounds activations to 8 bits at each call, a scale for each row
and block, and multiplies integers on CPUs with AVX2, AVX-512 or ARM's dot products. Convolutions are weight-only: their
weights are dequantised when the model is loaded.

Source: the first formula is onnxruntime's blockwise quantiser (``quantize_matmul_4bits``, symmetric). Deviations: a
block whose scale would be subnormal becomes zero. The second is the symmetric formula of ``quantisation.affine`` at
q_max = 7.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from accel.compressors.arrays import Array, FloatArray
from accel.compressors.errors import WeightsError
from accel.compressors.graph.payload import MICROSOFT, Slot
from accel.compressors.graph.wiring import int_attribute, optional_input

BLOCK = 32
_TINY = float(np.finfo(np.float32).tiny)
_INT8_ACTIVATIONS = 4  # MatMulNBits: accuracy_level; faster than floats from a width of about 256


def replace_layer(node: NodeProto, stem: str, shape: tuple[int, ...]) -> tuple[list[NodeProto], dict[str, Slot]]:
    """The nodes that replace a Gemm or Conv, and the initializers for its weight of the given shape.

    Args:
        node: its weight and its bias are parameters.
        stem: prefix of the initializers' names.
        shape: of a Gemm's weight [inputs, outputs], with ``transB`` [outputs, inputs]; of a kernel.
    """
    codes, scale = f"{stem}:codes", f"{stem}:scale"
    if node.op_type == "Conv":
        real = helper.make_node(
            "DequantizeLinear", [codes, scale], [stem], name=f"{stem}/real", domain=MICROSOFT, axis=0
        )
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.input[1] = stem
        return [real, copy], {codes: Slot(shape, TensorProto.INT4), scale: Slot((shape[0],))}
    outputs, inputs = shape if int_attribute(node, "transB", 0) else shape[::-1]
    blocks = -(-inputs // BLOCK)
    made = helper.make_node(
        "MatMulNBits",
        [node.input[0], codes, scale, "", "", optional_input(node, 2)],
        node.output,
        name=node.name,
        domain=MICROSOFT,
        K=inputs,
        N=outputs,
        bits=4,
        block_size=BLOCK,
        accuracy_level=_INT8_ACTIVATIONS,
    )
    return [made], {codes: Slot((outputs, blocks, BLOCK // 2), TensorProto.UINT8), scale: Slot((outputs * blocks,))}


class NibbleWriter:
    """Quantises weights to 4 bits; reuses its working memory.

    Uses torch, whose reductions of blocks are ten times as fast as numpy's.
    """

    def __init__(self) -> None:
        self._scratch = torch.zeros(0)
        self._codes, self._words = np.zeros(0, np.uint8), np.zeros(0, np.uint16)

    def write(self, name: str, stem: str, weight: Array, views: Mapping[str, Array]) -> None:
        """Write a layer's codes and scales into a model's bytes.

        Args:
            name: the layer's name in messages.
            stem: prefix of the initializers' names.
            weight: [outputs, inputs], or a kernel.
            views: of the model's bytes.
        Raises:
            WeightsError: a weight is not finite.
        """
        write = self._write_channels if weight.ndim > 2 else self.write_blocks
        views[f"{stem}:scale"][...] = write(name, weight, views[f"{stem}:codes"])

    def write_blocks(self, name: str, weight: Array, target: Array) -> NDArray[np.float32]:
        """Write the codes of a matrix [N, K] in blocks along K, the last one padded with zeros.

        Args:
            name, weight: see ``write``.
            target: [N, ⌈K / 32⌉, 16] bytes, the first of two codes in the lower half.
        Returns:
            The scales, [N · ⌈K / 32⌉].
        """
        groups = _in_blocks(weight)
        scales, inverse = _block_scales(name, groups)
        room, codes = self._room(groups.numel())
        # two additions: adding 8.5 at once would round differently
        torch.mul(groups, inverse, out=room.view_as(groups)).add_(8.0).add_(0.5).clamp_max_(15.0)
        np.copyto(codes, room.numpy(), casting="unsafe")
        self._pack(codes, target)
        return scales.reshape(-1)

    def _write_channels(self, name: str, kernel: Array, target: Array) -> NDArray[np.float32]:
        """Write the codes of a convolution kernel [O, …] to ``target``, [⌈size / 2⌉] bytes; returns its scales [O]."""
        flat = torch.from_numpy(kernel.astype(np.float32, copy=False)).reshape(len(kernel), -1)
        scales: FloatArray = np.maximum(flat.amax(1).numpy(), -flat.amin(1).numpy())
        scales /= np.float32(7.0)
        _require_finite(name, scales)
        scales[scales < _TINY] = 1.0
        room, codes = self._room(flat.numel() + flat.numel() % 2)
        room[-1] = 0.0
        torch.div(flat, torch.from_numpy(scales)[:, None], out=room[: flat.numel()].view_as(flat)).round_()
        np.copyto(codes.view(np.int8), room.numpy(), casting="unsafe")
        np.bitwise_and(codes, 15, out=codes)
        self._pack(codes, target)
        return scales

    def _room(self, size: int) -> tuple[torch.Tensor, NDArray[np.uint8]]:
        """Working memory for quotients and codes of so many weights."""
        if len(self._scratch) < size:
            self._scratch = torch.zeros(size)
            self._codes, self._words = np.zeros(size, np.uint8), np.zeros(size // 2, np.uint16)
        return self._scratch[:size], self._codes[:size]

    def _pack(self, codes: NDArray[np.uint8], target: Array) -> None:
        """Pack two codes per byte: v | v >> 4 of a 16-bit word v with a code in the lower half of each byte."""
        words = codes.view(np.dtype("<u2"))
        joined = self._words[: target.size]
        np.right_shift(words, 4, out=joined)
        np.bitwise_or(joined, words, out=joined)
        np.copyto(target, joined.reshape(target.shape), casting="unsafe")


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


def _in_blocks(weight: Array) -> torch.Tensor:
    matrix = torch.from_numpy(weight.astype(np.float32, copy=False))
    outputs, inputs = matrix.shape
    padding = -inputs % BLOCK
    if padding:
        matrix = torch.nn.functional.pad(matrix, (0, padding))
    return matrix.contiguous().view(outputs, -1, BLOCK)


def _require_finite(name: str, scales: NDArray[np.float32]) -> None:
    if not np.isfinite(scales).all():
        raise WeightsError(
            f"layer {name!r} has a weight that is not finite; do not publish it, lower the learning rate"
        )
