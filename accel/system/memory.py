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
