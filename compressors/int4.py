"""``int4``: weights in 4 bits (``quantisation.nibbles``): an eighth of the bytes, for slow links."""

from __future__ import annotations

from collections.abc import Mapping

from accel.compressors.arrays import Array
from accel.compressors.artifact import Optimisation
from accel.compressors.graph.policy_graph import PolicyGraph
from accel.compressors.int8.integer_graph import IntegerGraph, lay_out
from accel.compressors.methods import Encoder
from accel.compressors.module_state import require_finite
from accel.compressors.quantisation.affine import UINT8
from accel.compressors.quantisation.nibbles import NibbleWriter


class Int4Encoder(Encoder):
    """Requantises weights at each refresh."""

    def __init__(self, graph: PolicyGraph) -> None:
        rewritten = IntegerGraph(graph, UINT8, lambda layer: "int4")
        self._layers = rewritten.int4_layers
        self._floats = rewritten.floats
        self._writer = NibbleWriter()
        self._payload = lay_out(rewritten, graph)
        for name, scale in rewritten.fixed.items():
            self._payload.views[f"{name}:scale"][...] = scale
        convolutions = any(node.op_type == "Conv" for node in rewritten.nodes)
        self.optimisation: Optimisation = "all" if convolutions else "none"

    def encode(self, parameters: Mapping[str, Array]) -> bytes:
        """See ``Encoder.encode``."""
        for layer in self._layers:
            weight = parameters[layer.weight]
            rows = weight if layer.axis == 0 else weight.T
            self._writer.write(layer.name, layer.stem, rows, self._payload.views)
        for name in self._floats:
            require_finite(name, parameters[name])
            self._payload.views[name][...] = parameters[name]
        return self._payload.to_bytes()
