"""``int4``: weights in 4 bits with a scale for each block, computed in floats: an eighth of the bytes, for slow links.

    s = extreme / −8 with the weight of greatest magnitude in the block as extreme;   q = clip(round(w / s) + 8, 0, 15)

Source: onnxruntime's blockwise quantiser (MatMulNBits, symmetric). Linear layers run in MatMulNBits. Convolutions have
a symmetric scale for each output channel, s = max|w| / 7, and are made single again when the model is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from compressors.artifact import Optimisation
from compressors.base import Array, FloatArray
from compressors.chain import Encoder, Format
from compressors.errors import SchemeError, WeightsError
from compressors.float import require_finite
from compressors.graph import OPSET, PolicyGraph
from compressors.layers import Layer, LayerRewriter
from compressors.payload import MICROSOFT, Payload, Slot
from compressors.scheme import Context, MethodText

_BLOCK_SIZES = (16, 32, 64, 128)
_DEFAULT_BLOCK = 32
_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Int4(Format):
    """4-bit weights.

    Attributes:
        block: how many weights of one output share a scale.
    """

    block: int = _DEFAULT_BLOCK

    @property
    def method(self) -> MethodText:
        """``int4`` with its block size, if not the usual one."""
        return MethodText("int4", () if self.block == _DEFAULT_BLOCK else (str(self.block),))

    def encoder(self, graph: PolicyGraph) -> Encoder:
        """See ``Format.encoder``."""
        return Int4Encoder(graph, self.block)


class Int4Encoder(Encoder):
    """Requantises weights at each refresh."""

    def __init__(self, graph: PolicyGraph, block: int) -> None:
        rewriter = _Int4Graph(graph, block)
        self._block = block
        self._layers = rewriter.layers
        self._floats = rewriter.floats
        self._payload = Payload(rewriter.nodes, graph.inputs, graph.outputs, rewriter.slots, graph.constants, OPSET)
        convolutions = any(layer.is_convolution for layer in self._layers)
        self.optimisation: Optimisation = "all" if convolutions else "none"

    def encode(self, parameters: Mapping[str, Array]) -> bytes:
        """See ``Encoder.encode``."""
        for layer in self._layers:
            write_layer(layer, parameters[layer.weight], self._payload.views, self._block)
        for name in self._floats:
            require_finite(name, parameters[name])
            self._payload.views[name][...] = parameters[name]
        return self._payload.to_bytes()


class _Int4Graph(LayerRewriter):
    def __init__(self, graph: PolicyGraph, block: int) -> None:
        self._block = block
        super().__init__(graph)

    def replace(self, layer: Layer) -> list[NodeProto]:
        nodes, slots = replace_layer(layer, self.graph.parameters[layer.weight].shape, self._block)
        self.slots.update(slots)
        return nodes

    def refusal(self, operator: str) -> str:
        return f"operator {operator} takes no 4-bit weights here; use fp16 or fp32"


def replace_layer(
    layer: Layer, shape: tuple[int, ...], block: int = _DEFAULT_BLOCK
) -> tuple[list[NodeProto], dict[str, Slot]]:
    """The nodes in a layer's place, and the initializers for its weight of the given shape."""
    codes, scale = f"{layer.stem}:codes", f"{layer.stem}:scale"
    if layer.is_convolution:
        real = helper.make_node(
            "DequantizeLinear", [codes, scale], [layer.stem], name=f"{layer.stem}/real", domain=MICROSOFT, axis=0
        )
        copy = NodeProto()
        copy.CopyFrom(layer.node)
        copy.input[1] = layer.stem
        return [real, copy], {codes: Slot(shape, TensorProto.INT4), scale: Slot((shape[0],))}
    outputs, inputs = shape if layer.transposed else shape[::-1]
    blocks = -(-inputs // block)
    node = helper.make_node(
        "MatMulNBits",
        [layer.node.input[0], codes, scale, "", "", layer.bias],
        layer.node.output,
        name=layer.node.name,
        domain=MICROSOFT,
        K=inputs,
        N=outputs,
        bits=4,
        block_size=block,
    )
    return [node], {codes: Slot((outputs, blocks, block // 2), TensorProto.UINT8), scale: Slot((outputs * blocks,))}


def write_layer(layer: Layer, weight: Array, views: Mapping[str, Array], block: int = _DEFAULT_BLOCK) -> None:
    """Write a replaced layer's codes and scales into a model's bytes. Raises WeightsError: a weight is not finite."""
    values: FloatArray = weight.astype(np.float32, copy=False)
    if layer.is_convolution:
        packed, scales = channel_codes(values)
    else:
        packed, scales = block_codes(values if layer.transposed else values.T, block)
    if not np.isfinite(scales).all():
        raise WeightsError(f"layer {layer.name!r} has a weight that is not finite; do not publish it")
    views[f"{layer.stem}:codes"][...] = packed
    views[f"{layer.stem}:scale"][...] = scales


def block_codes(weight: FloatArray, block: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """4-bit codes of a matrix [N, K], blocks along K, the last one padded with zeros.

    Returns:
        Codes [N, blocks, block / 2], the earlier of two in the lower half of a byte; scales [N · blocks].
    """
    outputs, inputs = weight.shape
    blocks = -(-inputs // block)
    padded = np.zeros((outputs, blocks * block), dtype=np.float32)
    padded[:, :inputs] = weight
    groups = padded.reshape(outputs, blocks, block)
    low, high = groups.min(axis=2), groups.max(axis=2)
    scales = np.where(np.abs(high) > np.abs(low), high, low) / np.float32(-8.0)
    with np.errstate(divide="ignore"):
        inverse = np.where(scales != 0.0, np.float32(1.0) / scales, np.float32(0.0))
    with np.errstate(invalid="ignore"):
        codes = np.clip(np.rint(groups * inverse[:, :, None]) + 8.0, 0.0, 15.0).astype(np.uint8)
    return codes[:, :, 0::2] | (codes[:, :, 1::2] << 4), scales.reshape(-1)


def channel_codes(kernel: FloatArray) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """4-bit symmetric codes of a convolution kernel [O, …]: packed bytes [⌈size / 2⌉] and scales [O]."""
    flat = kernel.reshape(len(kernel), -1)
    scales = np.maximum(flat.max(axis=1), -flat.min(axis=1)) / np.float32(7.0)
    scales = np.where(scales < _TINY, np.float32(1.0), scales)
    with np.errstate(invalid="ignore"):
        signed = np.rint(flat / scales[:, None]).astype(np.int8).reshape(-1)
    codes = signed.view(np.uint8) & np.uint8(15)
    if codes.size % 2:
        codes = np.append(codes, np.uint8(0))
    packed = codes[0::2] | (codes[1::2] << np.uint8(4))
    return packed, scales.astype(np.float32)


def make_int4(arguments: tuple[str, ...], context: Context) -> Int4:
    """The ``int4`` method; its one argument is the block size."""
    if not arguments:
        return Int4()
    if len(arguments) > 1 or arguments[0] not in map(str, _BLOCK_SIZES):
        raise SchemeError(f"int4({','.join(arguments)}): give one block size of {', '.join(map(str, _BLOCK_SIZES))}")
    return Int4(int(arguments[0]))
