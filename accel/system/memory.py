"""Memory that processes share through inherited files without a name, so that nothing outlives them."""

from __future__ import annotations

import os
import tempfile


def anonymous_memory() -> int:
    """A file of memory that has no name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("accel")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


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
