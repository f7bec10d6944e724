"""``fp32``: no compression, the baseline; the graph is fused and its weights are copied."""

from __future__ import annotations

from collections.abc import Mapping

from accel.compressors.arrays import Array
from accel.compressors.artifact import Optimisation
from accel.compressors.graph.payload import Payload, Slot
from accel.compressors.graph.policy_graph import OPSET, PolicyGraph
from accel.compressors.graph.simplify import fuse_activations
from accel.compressors.method_arguments import check_none
from accel.compressors.methods import Encoder, Format
from accel.compressors.module_state import require_finite
from accel.compressors.scheme import Context, MethodText


class Float32(Format):
    """Single precision, as in the learner."""

    @property
    def method(self) -> MethodText:
        """``fp32``."""
        return MethodText("fp32")

    def encoder(self, graph: PolicyGraph) -> Encoder:
        """See ``Format.encoder``."""
        return Float32Encoder(graph)


class Float32Encoder(Encoder):
    """Copies parameters into the bytes of the fused graph."""

    def __init__(self, graph: PolicyGraph) -> None:
        outputs = [spec.name for spec in graph.outputs]
        slots = {name: Slot.like(array) for name, array in graph.parameters.items()}
        nodes = fuse_activations(graph.nodes, outputs)
        self._payload = Payload(nodes, graph.inputs, graph.outputs, slots, graph.constants, OPSET)
        # onnxruntime converts convolutions to its blocked layout on loading, which makes every call faster
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
    check_none("fp32", arguments)
    return Float32()
