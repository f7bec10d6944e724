"""Reads an ONNX model's nodes and initializers from its bytes, without the onnx package."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from accel.compressors.arrays import Array
from accel.compressors.protobuf import BYTES, FIXED32, VARINT, message_fields, read_varint

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
        between: (start, bytes) of everything but that content: models with the same differ in numbers alone.
        size: of the model, in bytes.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    places: dict[str, TensorPlace]
    between: tuple[tuple[int, bytes], ...]
    size: int

    def is_of(self, model: bytes) -> bool:
        """Whether a model is this one but for its initializers' content."""
        return len(model) == self.size and all(model.startswith(piece, start) for start, piece in self.between)

    def array(self, model: bytes, name: str) -> Array:
        """An initializer's content: a read-only view of the model's bytes."""
        place = self.places[name]
        count = (place.stop - place.start) // place.dtype.itemsize
        return np.frombuffer(model, place.dtype, count, place.start).reshape(place.shape)


def read_graph(model: bytes) -> Graph:
    """Raises ValueError: the bytes are no ONNX model, as far as this looks."""
    data = memoryview(model)
    bounds = [(s, e) for n, wire, s, e in message_fields(data, 0, len(data)) if (n, wire) == (_MODEL_GRAPH, BYTES)]
    if len(bounds) != 1:
        raise ValueError(f"the model has {len(bounds)} graphs")
    nodes: list[Node] = []
    inputs: list[Value] = []
    outputs: list[Value] = []
    places: dict[str, TensorPlace] = {}
    for number, wire, start, stop in message_fields(data, *bounds[0]):
        if wire != BYTES:
            continue
        if number == _NODE:
            nodes.append(_node(data, start, stop))
        elif number == _INITIALIZER:
            _place(data, start, stop, places)
        elif number in (_INPUT, _OUTPUT):
            (inputs if number == _INPUT else outputs).append(_value(data, start, stop))
    edges = [0, *(edge for place in sorted(places.values(), key=lambda p: p.start) for edge in place[2:]), len(data)]
    between = tuple((start, model[start:stop]) for start, stop in zip(edges[::2], edges[1::2], strict=True))
    return Graph(tuple(nodes), tuple(inputs), tuple(outputs), places, between, len(data))


def _node(data: memoryview, start: int, stop: int) -> Node:
    inputs: list[str] = []
    outputs: list[str] = []
    operator = domain = ""
    attributes: dict[str, Attribute] = {}
    for number, wire, begin, end in message_fields(data, start, stop):
        if wire != BYTES:
            continue
        if number == _NODE_INPUT:
            inputs.append(_text(data, begin, end))
        elif number == _NODE_OUTPUT:
            outputs.append(_text(data, begin, end))
        elif number == _NODE_OPERATOR:
            operator = _text(data, begin, end)
        elif number == _NODE_ATTRIBUTE:
            attributes |= [_attribute(data, begin, end)]
        elif number == _NODE_DOMAIN:
            domain = _text(data, begin, end)
    return Node(domain, operator, tuple(inputs), tuple(outputs), attributes)


def _attribute(data: memoryview, start: int, stop: int) -> tuple[str, Attribute]:
    name = ""
    value: Attribute = None
    numbers: tuple[int, ...] = ()
    for number, wire, begin, end in message_fields(data, start, stop):
        if (number, wire) == (_ATTRIBUTE_NAME, BYTES):
            name = _text(data, begin, end)
        elif (number, wire) == (_ATTRIBUTE_FLOAT, FIXED32):
            value = struct.unpack_from("<f", data, begin)[0]
        elif (number, wire) == (_ATTRIBUTE_INTEGER, VARINT):
            value = read_varint(data, begin)[0]
        elif (number, wire) == (_ATTRIBUTE_TEXT, BYTES):
            value = _text(data, begin, end)
        elif (number, wire) == (_ATTRIBUTE_INTEGERS, VARINT):
            value = numbers = (*numbers, read_varint(data, begin)[0])
    return name, value


def _place(data: memoryview, start: int, stop: int, places: dict[str, TensorPlace]) -> None:
    """Enter an initializer, unless its content is elsewhere or of another type or size."""
    dims: list[int] = []
    name, kind, raw = "", 0, (0, 0)
    for number, wire, begin, end in message_fields(data, start, stop):
        if number == _TENSOR_DIMS:
            while begin < end:  # one number, or several in one field
                size, begin = read_varint(data, begin)
                dims.append(size)
        elif (number, wire) == (_TENSOR_TYPE, VARINT):
            kind = read_varint(data, begin)[0]
        elif (number, wire) == (_TENSOR_NAME, BYTES):
            name = _text(data, begin, end)
        elif (number, wire) == (_TENSOR_RAW, BYTES):
            raw = begin, end
    dtype = np.dtype(_DTYPES.get(kind, np.void))
    count = 1
    for size in dims:
        count *= size
    if name in places:
        raise ValueError(f"the model has two initializers {name!r}")
    if dtype.itemsize and count * dtype.itemsize == raw[1] - raw[0] > 0:
        places[name] = TensorPlace(dtype, tuple(dims), *raw)


def _value(data: memoryview, start: int, stop: int) -> Value:
    name, element = "", 0
    shape: list[int | None] = []
    for number, wire, begin, end in message_fields(data, start, stop):
        if (number, wire) == (_VALUE_NAME, BYTES):
            name = _text(data, begin, end)
        elif (number, wire) == (_VALUE_TYPE, BYTES):
            for of_tensor in _within(data, begin, end, _TYPE_TENSOR):
                fields = list(message_fields(data, *of_tensor))
                element = next(
                    (read_varint(data, s)[0] for n, w, s, _ in fields if (n, w) == (_TENSOR_ELEMENT, VARINT)), 0
                )
                for of_shape in _within(data, *of_tensor, _TENSOR_SHAPE):
                    shape += [_size(data, *of_dim) for of_dim in _within(data, *of_shape, _SHAPE_DIM)]
    return Value(name, element, tuple(shape))


def _size(data: memoryview, start: int, stop: int) -> int | None:
    fields = message_fields(data, start, stop)
    return next((read_varint(data, s)[0] for n, wire, s, _ in fields if (n, wire) == (_DIM_VALUE, VARINT)), None)


def _within(data: memoryview, start: int, stop: int, wanted: int) -> list[tuple[int, int]]:
    """Where the messages of a field number are."""
    return [(s, e) for number, wire, s, e in message_fields(data, start, stop) if (number, wire) == (wanted, BYTES)]


def _text(data: memoryview, start: int, stop: int) -> str:
    return str(data[start:stop], "utf-8")
