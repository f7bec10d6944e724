"""Memory that processes share through inherited files without a name, so that nothing outlives them."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def anonymous_memory() -> int:
    """A file of memory that has no name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("accel")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def map_memory(file: int, size: int) -> mmap.mmap:
    """The first ``size`` bytes of a file, which grows where it has fewer; what others wrote there stays."""
    if os.fstat(file).st_size < size:
        os.ftruncate(file, size)
    return mmap.mmap(file, size)


def map_buffers(file: int, sizes: Sequence[int], start: int = 0) -> list[npt.NDArray[np.uint8]]:
    """Buffers in a file of memory, each on pages of its own, from the page after ``start`` on."""
    import numpy as np

    starts = list(accumulate((_pages(size) for size in sizes), initial=_pages(start)))
    memory = map_memory(file, starts[-1])
    return [np.frombuffer(memory, np.uint8, size, at) for size, at in zip(sizes, starts, strict=False)]


def write_all(file: int, content: bytes | memoryview, start: int) -> None:
    """Write all of it, however much the system takes at once (Linux: 2 GiB)."""
    view = memoryview(content)
    written = 0
    while written < len(view):
        written += os.pwrite(file, view[written:], start + written)


def read_all(file: int, size: int, start: int) -> bytes:
    """``size`` bytes, or less at the end of the file."""
    found = os.pread(file, size, start)
    while len(found) < size and (more := os.pread(file, size - len(found), start + len(found))):
        found += more
    return found


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
