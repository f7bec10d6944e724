"""The fields of a serialised protobuf message, without the library. Imports nothing but the standard library."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Message:
    """Fields by number; those of another wire type than asked for are as absent."""

    def __init__(self, data: memoryview, start: int, stop: int) -> None:
        """Raises ValueError: the bytes between two positions are no message, as far as this looks."""
        self._data = data
        self._fields: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for number, wire_type, begin, end in _fields(data, start, stop):
            self._fields[number, wire_type].append((begin, end))

    def places(self, number: int) -> list[tuple[int, int]]:
        """Where the contents of texts, bytes or messages are: start and stop."""
        return self._fields[number, BYTES]

    def messages(self, number: int) -> list[Message]:
        """The messages of a field."""
        return [Message(self._data, *place) for place in self.places(number)]

    def texts(self, number: int) -> list[str]:
        """The texts of a field."""
        return [str(self._data[start:stop], "utf-8") for start, stop in self.places(number)]

    def text(self, number: int) -> str:
        """The last text of a field, "" without one."""
        return (self.texts(number) or [""])[-1]

    def integers(self, number: int) -> list[int]:
        """The unsigned numbers of a field, each of its own or several in one."""
        found = [_varint(self._data, start)[0] for start, _ in self._fields[number, VARINT]]
        for start, stop in self.places(number):
            while start < stop:
                value, start = _varint(self._data, start)
                found.append(value)
        return found

    def integer(self, number: int) -> int:
        """The last number of a field, 0 without one."""
        return (self.integers(number) or [0])[-1]

    def floats(self, number: int) -> list[float]:
        """The single-precision numbers of a field."""
        return [struct.unpack_from("<f", self._data, start)[0] for start, _ in self._fields[number, FIXED32]]


def _fields(data: memoryview, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(field number, wire type, start, stop) of every field's content."""
    while position < end:
        tag, position = _varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == BYTES:
            length, position = _varint(data, position)
        elif wire_type == VARINT:
            length = _varint(data, position)[1] - position
        elif wire_type in (FIXED64, FIXED32):
            length = 8 if wire_type == FIXED64 else 4
        else:
            raise ValueError(f"a serialised model has a field of wire type {wire_type}; onnx writes 0, 1, 2 and 5 only")
        if position + length > end:
            raise ValueError(f"a serialised model has a field that ends at byte {position + length} of {end}")
        yield number, wire_type, position, position + length
        position += length


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """A number, and the position behind it. Raises ValueError: the data ends within it."""
    value = shift = 0
    for byte in data[position : position + 10]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position + shift // 7
    raise ValueError(f"a serialised model has no number at byte {position}")
