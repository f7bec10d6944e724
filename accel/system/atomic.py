"""Files that are either the old version or the new one, whatever kills the writer in between."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

TEMPORARY_SUFFIX = ".partial"


def write_atomically(path: Path, content: bytes | Iterable[bytes | memoryview]) -> None:
    """Replace ``path`` by ``content``, a whole or parts that follow each other: written beside it, forced to disk,
    renamed over it, directory forced to disk.

    Raises: OSError; the old file is then as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def remove_partial_files(directory: Path) -> None:
    """Delete what killed writers left behind; only for the one process that writes to ``directory``."""
    for path in directory.glob(f".*{TEMPORARY_SUFFIX}"):
        path.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
