"""``fp32``: no compression, the baseline of every other scheme; the graph is fused and its weights are copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import NodeProto, helper

from compressors.arrays import Array
from compressors.artifact import Optimisation
from compressors.errors import SchemeError, WeightsError
from compressors.graph.payload import MICROSOFT, Payload, Slot
from compressors.graph.policy_graph import OPSET, PolicyGraph
from compressors.graph.wiring import Wiring, is_plain_gemm
from compressors.methods import Encoder, Format
from compressors.scheme import Context, MethodText

_FUSED = {"Gemm": "FusedGemm", "Conv": "FusedConv"}
_ACTIVATIONS = ("Relu", "Tanh", "Sigmoid")


class Float32(Format):
    """Single precision, as the learner has it."""

    @property
    def method(self) -> MethodText:
        """``fp32``."""
        return MethodText("fp32")

    def encoder(self, graph: PolicyGraph) -> Encoder:
        """See ``Format.encoder``."""
        return Float32Encoder(graph)


class Float32Encoder(Encoder):
    """Copies parameters into the fused graph's bytes."""

    def __init__(self, graph: PolicyGraph) -> None:
        outputs = [spec.name for spec in graph.outputs]
        slots = {name: Slot.like(array) for name, array in graph.parameters.items()}
        nodes = fuse_activations(graph.nodes, outputs)
        self._payload = Payload(nodes, graph.inputs, graph.outputs, slots, graph.constants, OPSET)
        # onnxruntime blocks the channels of convolutions for the CPU when it loads them, which pays at every call
        self.optimisation: Optimisation = "all" if any(node.op_type == "Conv" for node in graph.nodes) else "none"
        if self.optimisation == "all":
            self._payload = Payload(graph.nodes, graph.inputs, graph.outputs, slots, graph.constants, OPSET)

    def encode(self, parameters: Mapping[str, Array]) -> bytes:
        """See ``Encoder.encode``."""
        for name, array in parameters.items():
            require_finite(name, array)
            self._payload.views[name][...] = array
        return self._payload.to_bytes()


def make_fp32(arguments: tuple[str, ...], context: Context) -> Float32:
    """The ``fp32`` method; takes no arguments."""
    if arguments:
        raise SchemeError(f"fp32 takes no arguments, but got {', '.join(arguments)}")
    return Float32()


def fuse_activations(nodes: Sequence[NodeProto], outputs: Sequence[str]) -> list[NodeProto]:
    """Gemm or Conv followed by an activation alone becomes one node of onnxruntime's."""
    wiring = Wiring(nodes, outputs)
    fused: list[NodeProto] = []
    skipped: set[str] = set()
    for node in nodes:
        if node.output[0] in skipped:
            continue
        after = wiring.only_consumer(node.output[0])
        fusable = is_plain_gemm(node) or node.op_type == "Conv"
        if not fusable or after is None or after.op_type not in _ACTIVATIONS:
            fused.append(node)
            continue
        joined = helper.make_node(
            _FUSED[node.op_type], node.input, after.output, name=node.name, domain=MICROSOFT, activation=after.op_type
        )
        joined.attribute.extend(node.attribute)
        fused.append(joined)
        skipped.add(after.output[0])
    return fused


def require_finite(name: str, array: Array) -> None:
    """Raise WeightsError when a floating-point parameter holds a NaN or an infinity."""
    if array.dtype.kind == "f":
        with np.errstate(all="ignore"):
            sum_is_finite = np.isfinite(array.sum(dtype=array.dtype))  # one pass, which only huge weights fool
        if not sum_is_finite and not np.isfinite(array).all():
            raise WeightsError(f"parameter {name!r} is not finite; do not publish a policy that has diverged")
