"""The fields of a serialised protobuf message, without the library. Imports nothing."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def message_fields(data: memoryview, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(field number, wire type, start, stop) of every field's content between two positions.

    Raises: ValueError: a wire type that onnx does not write, or a field beyond the end.
    """
    while position < end:
        tag, position = read_varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == BYTES:
            length, position = read_varint(data, position)
        elif wire_type == VARINT:
            length = read_varint(data, position)[1] - position
        elif wire_type in (FIXED64, FIXED32):
            length = 8 if wire_type == FIXED64 else 4
        else:
            raise ValueError(f"a serialised model has a field of wire type {wire_type}; onnx writes 0, 1, 2 and 5 only")
        if position + length > end:
            raise ValueError(f"a serialised model has a field that ends at byte {position + length} of {end}")
        yield number, wire_type, position, position + length
        position += length


def read_varint(data: memoryview, position: int) -> tuple[int, int]:
    """A number, and the position behind it. Raises ValueError: the data ends within it."""
    value = shift = 0
    for byte in data[position : position + 10]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position + shift // 7
    raise ValueError(f"a serialised model has no number at byte {position}")
