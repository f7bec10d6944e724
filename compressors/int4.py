"""``int4``: weights in 4 bits with a scale for each block: an eighth of the bytes, for slow links.

Linear layers run in onnxruntime's MatMulNBits, which rounds activations to 8 bits at each call, a scale for each row
and block, and multiplies integers on CPUs with AVX2, AVX-512 or ARM's dot products. Convolutions are compressed on
their way only: a symmetric scale for each output channel, made single again when the model is loaded. The formulae are
in ``nibbles``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx import NodeProto, TensorProto, helper

from compressors.arrays import Array
from compressors.artifact import Optimisation
from compressors.errors import SchemeError
from compressors.fp32 import require_finite
from compressors.graph.layer_rewriter import Layer, LayerRewriter
from compressors.graph.payload import MICROSOFT, Payload, Slot
from compressors.graph.policy_graph import OPSET, PolicyGraph
from compressors.methods import Encoder, Format
from compressors.nibbles import NibbleWriter, padded_size
from compressors.plan import PlanStatistics
from compressors.quantisation.weight_codes import Changes
from compressors.scheme import Context, MethodText

_BLOCK_SIZES = (16, 32, 64, 128)
_DEFAULT_BLOCK = 32
_INT8_ACTIVATIONS = 4  # MatMulNBits: accuracy_level; faster than floats from a width of about 256


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
        self._changes = Changes()
        self._writer = layer_writer(self._layers, graph, self._changes, block)
        self._payload = Payload(rewriter.nodes, graph.inputs, graph.outputs, rewriter.slots, graph.constants, OPSET)
        convolutions = any(layer.is_convolution for layer in self._layers)
        self.optimisation: Optimisation = "all" if convolutions else "none"

    @property
    def statistics(self) -> PlanStatistics:
        """See ``Plan.statistics``."""
        return PlanStatistics(changed_codes=self._changes.share)

    def encode(self, parameters: Mapping[str, Array]) -> bytes:
        """See ``Encoder.encode``."""
        self._changes.begin()
        for layer in self._layers:
            write_layer(layer, parameters[layer.weight], self._payload.views, self._writer, self._block)
        for name in self._floats:
            require_finite(name, parameters[name])
            self._payload.views[name][...] = parameters[name]
        self._changes.end()
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
        accuracy_level=_INT8_ACTIVATIONS,
    )
    return [node], {codes: Slot((outputs, blocks, block // 2), TensorProto.UINT8), scale: Slot((outputs * blocks,))}


def layer_writer(
    layers: Sequence[Layer], graph: PolicyGraph, changes: Changes, block: int = _DEFAULT_BLOCK
) -> NibbleWriter:
    """What ``write_layer`` needs for these layers."""
    sizes = []
    for layer in layers:
        shape = graph.parameters[layer.weight].shape
        matrix = shape if layer.transposed else shape[::-1]
        sizes.append(math.prod(shape) if layer.is_convolution else padded_size(matrix, block))
    return NibbleWriter(changes, sizes)


def write_layer(
    layer: Layer, weight: Array, views: Mapping[str, Array], writer: NibbleWriter, block: int = _DEFAULT_BLOCK
) -> None:
    """Write a replaced layer's codes and scales into a model's bytes. Raises WeightsError: a weight is not finite."""
    codes = views[f"{layer.stem}:codes"]
    if layer.is_convolution:
        scales = writer.write_channels(layer.name, weight, codes)
    else:
        scales = writer.write_blocks(layer.name, weight if layer.transposed else weight.T, block, codes)
    views[f"{layer.stem}:scale"][...] = scales


def make_int4(arguments: tuple[str, ...], context: Context) -> Int4:
    """The ``int4`` method; its one argument is the block size."""
    if not arguments:
        return Int4()
    if len(arguments) > 1 or arguments[0] not in map(str, _BLOCK_SIZES):
        raise SchemeError(f"int4({','.join(arguments)}): give one block size of {', '.join(map(str, _BLOCK_SIZES))}")
    return Int4(int(arguments[0]))
