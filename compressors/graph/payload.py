"""A serialised ONNX model whose initializers are overwritten in place: no protobuf encoding when weights change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, OperatorSetIdProto, TensorProto, helper

from accel.compressors.arrays import Array
from accel.compressors.artifact import TensorSpec
from accel.compressors.errors import GraphError
from accel.compressors.protobuf import Message

# Field numbers in onnx.proto.
_MODEL_GRAPH, _GRAPH_INITIALIZER, _TENSOR_NAME, _TENSOR_RAW = 7, 5, 8, 9
# of the format: 8 is opset 17's own and read by onnxruntime 1.16, 10 has 4-bit integers and needs 1.18
IR_VERSION, WITH_INT4 = 8, 10
MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Slot:
    """Shape and element type (an onnx TensorProto data type) of an initializer."""

    shape: tuple[int, ...]
    element: int = TensorProto.FLOAT

    @classmethod
    def like(cls, array: Array) -> Self:
        """The slot for an array."""
        return cls(array.shape, helper.np_dtype_to_tensor_dtype(array.dtype))

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The numpy type of the raw bytes; two 4-bit values share a byte."""
        if self.element == TensorProto.INT4:
            return np.dtype(np.uint8)
        return np.dtype(helper.tensor_dtype_to_np_dtype(self.element))

    @property
    def raw_shape(self) -> tuple[int, ...]:
        """Shape of the array of raw bytes."""
        if self.element == TensorProto.INT4:
            return (-(-int(np.prod(self.shape)) // 2),)
        return self.shape


class Payload:
    """The bytes of one model. ``views[name]`` is a writable array inside them; ``to_bytes`` copies them out.

    Views may be unaligned: assign to them, do not compute in them.
    """

    def __init__(
        self,
        nodes: Sequence[NodeProto],
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        slots: Mapping[str, Slot],
        constants: Mapping[str, Array],
        opset: int,
    ) -> None:
        """Lay out a model.

        Args:
            nodes: in topological order.
            inputs: the model's inputs.
            outputs: the model's outputs.
            slots: initializers to be written later; zero until then.
            constants: fixed initializers.
            opset: version of the default ONNX operator set.
        """
        constant_slots = {name: Slot.like(array) for name, array in constants.items()}
        every = {**slots, **constant_slots}
        self._buffer = bytearray(_model(nodes, inputs, outputs, every, opset).SerializeToString())
        places = _raw_places(memoryview(self._buffer))
        self.views: dict[str, Array] = {}
        for name, slot in every.items():
            start, stop = places[name]
            count = (stop - start) // slot.dtype.itemsize
            view = np.frombuffer(self._buffer, slot.dtype, count, start).reshape(slot.raw_shape)
            self.views[name] = view
        for name, array in constants.items():
            self.views[name][...] = array

    def to_bytes(self) -> bytes:
        """A copy of the serialised model."""
        return bytes(self._buffer)


def _model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    slots: Mapping[str, Slot],
    opset: int,
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "policy",
        [value_info(spec) for spec in inputs],
        [value_info(spec) for spec in outputs],
        initializer=[_tensor(name, slot) for name, slot in slots.items()],
    )
    imports = opset_imports(nodes, opset)
    has_int4 = any(slot.element == TensorProto.INT4 for slot in slots.values())
    return helper.make_model(
        graph, opset_imports=imports, ir_version=WITH_INT4 if has_int4 else IR_VERSION, producer_name="compressors"
    )


def opset_imports(nodes: Sequence[NodeProto], opset: int) -> list[OperatorSetIdProto]:
    """The operator sets that nodes need: ONNX's, and onnxruntime's where used."""
    imports = [helper.make_opsetid("", opset)]
    if any(node.domain == MICROSOFT for node in nodes):
        imports.append(helper.make_opsetid(MICROSOFT, 1))
    return imports


def value_info(spec: TensorSpec) -> onnx.ValueInfoProto:
    """A model's input or output, with a free batch size."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
    return helper.make_tensor_value_info(spec.name, element, ["batch" if s is None else s for s in spec.shape])


def _tensor(name: str, slot: Slot) -> TensorProto:
    size = int(np.prod(slot.raw_shape)) * slot.dtype.itemsize
    if size == 0:
        raise GraphError(f"initializer {name!r} of shape {slot.shape} is empty; remove the layer that has it")
    return TensorProto(name=name, dims=slot.shape, data_type=slot.element, raw_data=bytes(size))


def _raw_places(model: memoryview) -> dict[str, tuple[int, int]]:
    """Start and stop of the raw content of every initializer of a serialised model."""
    (graph,) = Message(model, 0, len(model)).messages(_MODEL_GRAPH)
    tensors = graph.messages(_GRAPH_INITIALIZER)
    return {tensor.text(_TENSOR_NAME): tensor.places(_TENSOR_RAW)[0] for tensor in tensors}
