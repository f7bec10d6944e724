"""``fp16``: weights are stored in half precision and computed in single: half the bytes, no faster on a CPU."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from onnx import NodeProto, TensorProto, helper

from accel.compressors.arrays import Array
from accel.compressors.artifact import Optimisation
from accel.compressors.errors import WeightsError
from accel.compressors.graph.payload import Payload, Slot
from accel.compressors.graph.policy_graph import OPSET, PolicyGraph
from accel.compressors.graph.simplify import fuse_activations
from accel.compressors.method_arguments import check_none
from accel.compressors.methods import Encoder, Format
from accel.compressors.module_state import require_finite
from accel.compressors.scheme import Context, MethodText

_GREATEST = float(np.finfo(np.float16).max)


class Float16(Format):
    """Half precision for every weight of two dimensions or more; biases and normaliser statistics stay single."""

    @property
    def method(self) -> MethodText:
        """``fp16``."""
        return MethodText("fp16")

    def encoder(self, graph: PolicyGraph) -> Encoder:
        """See ``Format.encoder``."""
        return Float16Encoder(graph)


class Float16Encoder(Encoder):
    """Rounds weights to half precision; a Cast per weight, folded by onnxruntime on loading, widens them."""

    def __init__(self, graph: PolicyGraph) -> None:
        self._halved = frozenset(
            n for n, array in graph.parameters.items() if array.ndim > 1 and array.dtype == np.float32
        )
        has_convolutions = any(node.op_type == "Conv" for node in graph.nodes)
        self.optimisation: Optimisation = "all" if has_convolutions else "basic"
        body = graph.nodes if has_convolutions else fuse_activations(graph.nodes, [s.name for s in graph.outputs])
        casts = [helper.make_node("Cast", [f"{name}:half"], [name], to=TensorProto.FLOAT) for name in self._halved]
        slots: dict[str, Slot] = {}
        for name, array in graph.parameters.items():
            if name in self._halved:
                slots[f"{name}:half"] = Slot(array.shape, TensorProto.FLOAT16)
            else:
                slots[name] = Slot.like(array)
        nodes: list[NodeProto] = [*sorted(casts, key=lambda node: node.output[0]), *body]
        self._payload = Payload(nodes, graph.inputs, graph.outputs, slots, graph.constants, OPSET)

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


def make_fp16(arguments: tuple[str, ...], context: Context) -> Float16:
    """The ``fp16`` method; takes no arguments."""
    check_none("fp16", arguments)
    return Float16()
