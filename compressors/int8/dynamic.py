"""``int8-dynamic``: 8-bit weights; activations are quantised at each call over the range of the batch.

Needs no calibration. All rows of a batch share one range, so the result of a row depends on the other rows and on the
batch size; static ``int8`` rows are independent. Convolutions are refused unless forced: onnxruntime's dynamic kernels
are slower than float.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, TensorProto, helper

from compressors.arrays import Array
from compressors.cpu import VNNI, cpu_features
from compressors.errors import UnsupportedLayerError
from compressors.graph.layer_rewriter import Layer, LayerRewriter
from compressors.graph.payload import MICROSOFT, Payload, Slot
from compressors.graph.policy_graph import OPSET, PolicyGraph
from compressors.method_arguments import parse_int8_dynamic
from compressors.methods import Encoder, Format
from compressors.module_state import require_finite
from compressors.plan import PlanStatistics
from compressors.quantisation.affine import WEIGHT_INT7, WEIGHT_INT8
from compressors.quantisation.weight_codes import Changes, CodeWriter
from compressors.scheme import Context, MethodText


@dataclass(frozen=True)
class DynamicInt8(Format):
    """Dynamic int8.

    Attributes:
        force: quantise convolutions too, although they get slower.
        cpu: features of the CPU that will act, which decide between 8- and 7-bit weights; this machine's when None.
    """

    force: bool = False
    cpu: frozenset[str] | None = None

    @property
    def method(self) -> MethodText:
        """``int8-dynamic`` with its option."""
        return MethodText("int8-dynamic", ("force",) if self.force else ())

    def encoder(self, graph: PolicyGraph) -> Encoder:
        """See ``Format.encoder``."""
        features = cpu_features() if self.cpu is None else self.cpu
        return DynamicInt8Encoder(graph, self.force, full_range=VNNI in features)


class DynamicInt8Encoder(Encoder):
    """Requantises weights at each refresh.

    Attributes:
        layers: the ones with integer weights.
    """

    def __init__(self, graph: PolicyGraph, force: bool, full_range: bool) -> None:
        self.cpu_features = (VNNI,) if full_range else ()
        rewriter = _DynamicGraph(graph, force)
        self.layers = rewriter.layers
        self._floats = rewriter.floats
        slots, constants = rewriter.slots, {**graph.constants, **rewriter.constants}
        self._payload = Payload(rewriter.nodes, graph.inputs, graph.outputs, slots, constants, OPSET)
        sizes = [graph.parameters[layer.weight].size for layer in self.layers]
        self._changes = Changes()
        self._writer = CodeWriter(WEIGHT_INT8 if full_range else WEIGHT_INT7, self._changes, sizes)

    @property
    def statistics(self) -> PlanStatistics:
        """See ``Plan.statistics``."""
        return PlanStatistics(changed_codes=self._changes.share)

    def encode(self, parameters: Mapping[str, Array]) -> bytes:
        """See ``Encoder.encode``."""
        views = self._payload.views
        self._changes.begin()
        for layer in self.layers:
            views[f"{layer.stem}:scale"][...] = self._writer.write(
                layer.name, parameters[layer.weight], None, views[f"{layer.stem}:codes"], transposed=layer.transposed
            )
        for name in self._floats:
            require_finite(name, parameters[name])
            views[name][...] = parameters[name].reshape(views[name].shape)
        self._changes.end()
        return self._payload.to_bytes()


class _DynamicGraph(LayerRewriter):
    def __init__(self, graph: PolicyGraph, force: bool) -> None:
        self._force = force
        self.constants: dict[str, Array] = {}
        super().__init__(graph)

    def replace(self, layer: Layer) -> list[NodeProto]:
        if layer.is_convolution and not self._force:
            raise UnsupportedLayerError(
                f"layer {layer.name!r} is a convolution, and dynamic int8 makes convolutions 3 to 5 times slower than "
                "fp32; use int8, or int8-dynamic(force) to quantise it anyway"
            )
        shape = self.graph.parameters[layer.weight].shape
        self.slots[f"{layer.stem}:codes"] = Slot(shape[::-1] if layer.transposed else shape, TensorProto.INT8)
        self.slots[f"{layer.stem}:scale"] = Slot(())
        return self._convolution(layer) if layer.is_convolution else self._product(layer)

    def refusal(self, operator: str) -> str:
        return f"operator {operator} has no dynamic integer kernel; use fp16 or fp32"

    def _product(self, layer: Layer) -> list[NodeProto]:
        inputs = [layer.node.input[0], f"{layer.stem}:codes", f"{layer.stem}:scale", "", layer.bias]
        name = "DynamicQuantizeMatMul"
        return [helper.make_node(name, inputs, layer.node.output, name=layer.node.name, domain=MICROSOFT)]

    def _convolution(self, layer: Layer) -> list[NodeProto]:
        stem, path = layer.stem, layer.node.name
        codes = [f"{stem}:x", f"{stem}:x_scale", f"{stem}:x_zero"]
        convolution = helper.make_node(
            "ConvInteger", [codes[0], f"{stem}:codes", codes[2]], [f"{stem}:sums"], name=path
        )
        convolution.attribute.extend(layer.node.attribute)
        scaled = layer.node.output[0] if not layer.bias else f"{stem}:scaled"
        nodes = [
            helper.make_node("DynamicQuantizeLinear", [layer.node.input[0]], codes, name=f"{path}/quantise"),
            convolution,
            helper.make_node("Cast", [f"{stem}:sums"], [f"{stem}:real"], name=f"{path}/cast", to=TensorProto.FLOAT),
            helper.make_node("Mul", [codes[1], f"{stem}:scale"], [f"{stem}:product"], name=f"{path}/scale"),
            helper.make_node("Mul", [f"{stem}:real", f"{stem}:product"], [scaled], name=f"{path}/multiply"),
        ]
        if layer.bias:
            # a bias of rank 1 would broadcast along the last axis
            self.constants[f"{stem}:column"] = np.asarray([1, -1, 1, 1], dtype=np.int64)
            column = helper.make_node("Reshape", [layer.bias, f"{stem}:column"], [f"{stem}:bias"], name=f"{path}/bias")
            nodes += [column, helper.make_node("Add", [scaled, f"{stem}:bias"], layer.node.output, name=f"{path}/add")]
        return nodes


def make_int8_dynamic(arguments: tuple[str, ...], context: Context) -> DynamicInt8:
    """The ``int8-dynamic`` method; see ``parse_int8_dynamic``."""
    return DynamicInt8(parse_int8_dynamic(arguments), context.cpu)
