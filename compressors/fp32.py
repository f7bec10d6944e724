"""``fp32``: no compression, the baseline; the graph is fused and its weights are copied.

``fp16``: weights are stored in half precision and computed in single: half the bytes, no faster on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np
import torch
from onnx import TensorProto, helper

from accel.compressors.arrays import Array
from accel.compressors.artifact import Optimisation
from accel.compressors.errors import WeightsError
from accel.compressors.graph.payload import Payload, Slot
from accel.compressors.graph.policy_graph import OPSET, PolicyGraph
from accel.compressors.graph.simplify import fuse_activations
from accel.compressors.methods import Encoder
from accel.compressors.module_state import require_finite

_GREATEST = float(np.finfo(np.float16).max)


class FloatEncoder(Encoder):
    """Copies parameters into the bytes of the fused graph.

    Those of ``halved`` are rounded to half precision; a Cast for each, folded by onnxruntime on loading, widens them.
    """

    def __init__(self, graph: PolicyGraph, halved: Set[str] = frozenset()) -> None:
        self._halved = halved
        # onnxruntime converts convolutions to its blocked layout on loading, which makes every call faster
        has_convolutions = any(node.op_type == "Conv" for node in graph.nodes)
        self.optimisation: Optimisation = "all" if has_convolutions else "basic" if halved else "none"
        body = graph.nodes if has_convolutions else fuse_activations(graph.nodes, [s.name for s in graph.outputs])
        casts = [helper.make_node("Cast", [f"{name}:half"], [name], to=TensorProto.FLOAT) for name in sorted(halved)]
        slots = {name: Slot.like(array) for name, array in graph.parameters.items() if name not in halved}
        slots |= {f"{name}:half": Slot(graph.parameters[name].shape, TensorProto.FLOAT16) for name in sorted(halved)}
        self._payload = Payload([*casts, *body], graph.inputs, graph.outputs, slots, graph.constants, OPSET)

    def encode(self, parameters: Mapping[str, Array]) -> bytes:
        """See ``Encoder.encode``."""
        for name, array in parameters.items():
            if name not in self._halved:
                require_finite(name, array)
                self._payload.views[name][...] = array
                continue
            greatest = max(float(array.max()), -float(array.min()))
            if not greatest <= _GREATEST:
                raise WeightsError(f"parameter {name!r} reaches {greatest}, beyond half precision; use fp32 or int8")
            half = torch.from_numpy(array).half().numpy()  # thirty times faster than numpy's conversion
            self._payload.views[f"{name}:half"][...] = half
        return self._payload.to_bytes()


def half_encoder(graph: PolicyGraph) -> Encoder:
    """Half precision for every weight of two dimensions or more; biases and normaliser statistics stay single."""
    weights = graph.parameters.items()
    return FloatEncoder(graph, {name for name, w in weights if w.ndim > 1 and w.dtype == np.float32})
