"""The artifact's checksum: as defined, and no damage of the kinds that happen to memory, pages and messages unseen."""

from __future__ import annotations

import itertools
import struct
import zlib

import numpy as np
import pytest

from compressors.checksum import checksum

_PAGE = 4096


def _content(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


def _from_the_definition(content: bytes) -> int:
    words = struct.unpack(f"<{len(content) // 8}Q", content[: len(content) // 8 * 8])
    turned = len(words) // 521 * 521
    turns = [sum(words[i:turned:521]) % 2**64 for i in range(521)]
    lines = [sum(words[i : i + 512]) % 2**64 for i in range(0, len(words) - 511, 512)]
    return zlib.crc32(content[8 * turned :] + struct.pack(f"<{521 + len(lines)}Q", *turns, *lines))


@pytest.mark.parametrize(
    "size", [0, 1, 7, _PAGE - 1, _PAGE, _PAGE + 3, 4168, 5 * _PAGE, 57 * 8 * 521, 521 * _PAGE + 4095]
)
def test_it_is_the_definitions(size: int) -> None:
    assert checksum(_content(size)) == _from_the_definition(_content(size))


@pytest.mark.parametrize("size", [_PAGE, 3 * _PAGE + 100])
def test_every_flipped_bit_shows(size: int) -> None:
    content = bytearray(_content(size))
    right = checksum(bytes(content))
    for place, bit in itertools.product(range(0, size, 37), range(8)):
        content[place] ^= 1 << bit
        assert checksum(bytes(content)) != right
        content[place] ^= 1 << bit


@pytest.mark.parametrize("step", [1, 8, 64, _PAGE, 2 * _PAGE])
def test_pieces_that_change_places_show(step: int) -> None:
    """Bytes, words, cache lines, pages."""
    content = _content(6 * _PAGE)
    for first, second in ((0, step), (_PAGE - _PAGE % step, 3 * _PAGE), (0, 6 * _PAGE - step)):
        if first != second:
            swapped = bytearray(content)
            swapped[first : first + step], swapped[second : second + step] = (
                content[second : second + step],
                content[first : first + step],
            )
            assert checksum(bytes(swapped)) != checksum(content)


@pytest.mark.parametrize("weights", [np.eye(512, dtype=np.float32), np.eye(1024, dtype=np.int8)], ids=["f4", "i1"])
def test_pages_of_equal_sums_that_change_places_show(weights: np.ndarray) -> None:
    content = weights.tobytes()
    right, pages = checksum(content), len(content) // _PAGE
    for first, second in itertools.combinations(range(0, pages, 7), 2):
        order = [{first: second, second: first}.get(page, page) for page in range(pages)]
        assert checksum(b"".join(content[page * _PAGE : (page + 1) * _PAGE] for page in order)) != right


def test_what_cancels_in_one_sum_shows_in_the_other() -> None:
    words = np.frombuffer(_content(4 * _PAGE), "<u8")
    right, there_and_back = checksum(words.tobytes()), np.array([1, -1]).astype(np.uint64)
    seen = {right}
    for places in ([5, 5 + 521], [3, 9]):  # of one turn's place, of one line
        changed = words.copy()
        changed[places] += there_and_back
        seen.add(checksum(changed.tobytes()))
    assert len(seen) == 3


def test_zeros_of_another_length_show() -> None:
    assert len({checksum(bytes(size)) for size in range(0, 20 * _PAGE, 1000)}) == 82
