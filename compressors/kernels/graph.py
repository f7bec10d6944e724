"""Reads an ONNX model's nodes and initializers from its bytes, without the onnx package."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from accel.compressors.arrays import Array
from accel.compressors.protobuf import Message

# Field numbers in onnx.proto.
_MODEL_GRAPH = 7
_NODE, _INITIALIZER, _INPUT, _OUTPUT = 1, 5, 11, 12
_NODE_INPUT, _NODE_OUTPUT, _NODE_OPERATOR, _NODE_ATTRIBUTE, _NODE_DOMAIN = 1, 2, 4, 5, 7
_ATTRIBUTE_NAME, _ATTRIBUTE_FLOAT, _ATTRIBUTE_INTEGER, _ATTRIBUTE_TEXT, _ATTRIBUTE_INTEGERS = 1, 2, 3, 4, 8
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_RAW = 1, 2, 8, 9
_VALUE_NAME, _VALUE_TYPE, _TYPE_TENSOR, _TENSOR_ELEMENT, _TENSOR_SHAPE, _SHAPE_DIM, _DIM_VALUE = 1, 2, 1, 1, 2, 1, 1
_DTYPES = {1: np.float32, 2: np.uint8, 3: np.int8, 6: np.int32, 7: np.int64, 10: np.float16}

Attribute = float | int | str | tuple[int, ...] | None


class Node(NamedTuple):
    """A node; attributes that are no number, no text and no numbers are ``None``."""

    domain: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Attribute]


class TensorPlace(NamedTuple):
    """Where an initializer's content is in the model's bytes."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def is_weight(self) -> bool:
        """False of shapes and axes: operators may need them when a model is loaded."""
        return self.dtype != np.int64


class Value(NamedTuple):
    """A model's input or output; ``None`` where a size is free."""

    name: str
    element: int
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class Graph:
    """A model without the content of its initializers.

    Attributes:
        nodes: in topological order. inputs, outputs: as declared.
        places: of the initializers with raw content of a known type.
        between: (start, bytes) of everything but the content of weights: models with the same differ in that alone.
        size: of the model, in bytes.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    places: dict[str, TensorPlace]
    between: tuple[tuple[int, bytes], ...]
    size: int

    def is_of(self, model: bytes) -> bool:
        """Whether a model is this one but for its weights."""
        return len(model) == self.size and all(model.startswith(piece, start) for start, piece in self.between)

    def array(self, model: bytes, name: str) -> Array:
        """An initializer's content: a read-only view of the model's bytes."""
        place = self.places[name]
        count = (place.stop - place.start) // place.dtype.itemsize
        return np.frombuffer(model, place.dtype, count, place.start).reshape(place.shape)


def read_graph(model: bytes) -> Graph:
    """Raises ValueError: the bytes are no ONNX model, as far as this looks."""
    data = memoryview(model)
    graphs = Message(data, 0, len(data)).messages(_MODEL_GRAPH)
    if len(graphs) != 1:
        raise ValueError(f"the model has {len(graphs)} graphs")
    nodes, inputs, outputs, initializers = map(graphs[0].messages, (_NODE, _INPUT, _OUTPUT, _INITIALIZER))
    places: dict[str, TensorPlace] = {}
    for tensor in initializers:
        name, place = tensor.text(_TENSOR_NAME), _place(tensor)
        if name in places:
            raise ValueError(f"the model has two initializers {name!r}")
        if place is not None:
            places[name] = place
    weights = sorted(place[2:] for place in places.values() if place.is_weight)
    edges = [0, *(edge for place in weights for edge in place), len(data)]
    between = tuple((start, model[start:stop]) for start, stop in zip(edges[::2], edges[1::2], strict=True))
    made = tuple(map(_node, nodes))
    return Graph(made, tuple(map(_value, inputs)), tuple(map(_value, outputs)), places, between, len(data))


def _node(node: Message) -> Node:
    return Node(
        node.text(_NODE_DOMAIN),
        node.text(_NODE_OPERATOR),
        tuple(node.texts(_NODE_INPUT)),
        tuple(node.texts(_NODE_OUTPUT)),
        dict(map(_attribute, node.messages(_NODE_ATTRIBUTE))),
    )


def _attribute(found: Message) -> tuple[str, Attribute]:
    values: list[Attribute] = [*found.floats(_ATTRIBUTE_FLOAT), *found.integers(_ATTRIBUTE_INTEGER)]
    values += [*found.texts(_ATTRIBUTE_TEXT), tuple(found.integers(_ATTRIBUTE_INTEGERS)) or None]
    return found.text(_ATTRIBUTE_NAME), values[0]


def _place(tensor: Message) -> TensorPlace | None:
    """None where the content is elsewhere, or of another type or size."""
    shape = tuple(tensor.integers(_TENSOR_DIMS))
    dtype = np.dtype(_DTYPES.get(tensor.integer(_TENSOR_TYPE), np.void))
    start, stop = (tensor.places(_TENSOR_RAW) or [(0, 0)])[-1]
    fits = dtype.itemsize and prod(shape) * dtype.itemsize == stop - start > 0
    return TensorPlace(dtype, shape, start, stop) if fits else None


def _value(found: Message) -> Value:
    element = 0
    shape: list[int | None] = []
    for of_type in found.messages(_VALUE_TYPE):
        for of_tensor in of_type.messages(_TYPE_TENSOR):
            element = of_tensor.integer(_TENSOR_ELEMENT)
            dims = [dim for of_shape in of_tensor.messages(_TENSOR_SHAPE) for dim in of_shape.messages(_SHAPE_DIM)]
            shape += [next(iter(dim.integers(_DIM_VALUE)), None) for dim in dims]
    return Value(found.text(_VALUE_NAME), element, tuple(shape))
