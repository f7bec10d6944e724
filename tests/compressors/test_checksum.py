"""The artifact's checksum: as defined, and no damage of the kinds that happen to memory, pages and messages unseen."""

from __future__ import annotations

import itertools
import struct
import zlib

import numpy as np
import pytest

from compressors.checksum import checksum

_ROW = 4096


def _content(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


def _from_the_definition(content: bytes) -> int:
    rows = [struct.unpack("<512Q", content[i : i + _ROW]) for i in range(0, len(content) - _ROW + 1, _ROW)]
    over_rows = [sum(column) % 2**64 for column in zip(*rows, strict=True)] if rows else [0] * 512
    over_columns = [sum(row) % 2**64 for row in rows]
    rest = content[_ROW * len(rows) :]
    return zlib.crc32(rest + struct.pack(f"<{512 + len(rows)}Q", *over_rows, *over_columns))


@pytest.mark.parametrize("size", [0, 1, 7, _ROW - 1, _ROW, _ROW + 3, 5 * _ROW, 9 * _ROW + 4095])
def test_it_is_the_definitions(size: int) -> None:
    assert checksum(_content(size)) == _from_the_definition(_content(size))


@pytest.mark.parametrize("size", [_ROW, 3 * _ROW + 100])
def test_every_flipped_bit_shows(size: int) -> None:
    content = bytearray(_content(size))
    right = checksum(bytes(content))
    for place, bit in itertools.product(range(0, size, 37), range(8)):
        content[place] ^= 1 << bit
        assert checksum(bytes(content)) != right
        content[place] ^= 1 << bit


@pytest.mark.parametrize("step", [1, 8, 64, _ROW, 2 * _ROW])
def test_pieces_that_change_places_show(step: int) -> None:
    """Bytes, words, cache lines, rows."""
    content = _content(6 * _ROW)
    for first, second in ((0, step), (_ROW - _ROW % step, 3 * _ROW), (0, 6 * _ROW - step)):
        if first != second:
            swapped = bytearray(content)
            swapped[first : first + step], swapped[second : second + step] = (
                content[second : second + step],
                content[first : first + step],
            )
            assert checksum(bytes(swapped)) != checksum(content)


def test_what_cancels_in_one_sum_shows_in_the_other() -> None:
    words = np.frombuffer(_content(4 * _ROW), "<u8").reshape(4, 512).copy()
    right = checksum(words.tobytes())
    in_a_column, in_a_row = words.copy(), words.copy()
    in_a_column[[0, 2], 5] += np.array([1, -1]).astype(np.uint64)
    in_a_row[1, [3, 9]] += np.array([1, -1]).astype(np.uint64)
    assert len({right, checksum(in_a_column.tobytes()), checksum(in_a_row.tobytes())}) == 3


def test_zeros_of_another_length_show() -> None:
    assert len({checksum(bytes(size)) for size in range(0, 20 * _ROW, 1000)}) == 82
