"""A file of JSON lines that a run appends to, and that is read within bounds. It never ends the run: where lines do
not fit, a warning says so once, and another once they fit again.

A line is written whole or not at all, so that readers find whole lines after a full disk too.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

MAX_LINE_BYTES = 1 << 20
"""Far beyond any line of ours."""

logger = logging.getLogger(__name__)


def open_lines(path: Path) -> BinaryIO:
    """A file that somebody else may have made, for reading; a pipe is not waited for. Raises OSError."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file")
    return path.open("rb")


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file that somebody else may have made, one in memory at a time.

    Of a line beyond ``MAX_LINE_BYTES`` the beginning is the last that is read: it is damaged, and so is what follows.
    Raises OSError.
    """
    with open_lines(path) as file:
        while line := file.readline(MAX_LINE_BYTES):
            yield line
            if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                return


class LineFile:
    """Appends lines to one file, which is opened for each line: made again where it was removed."""

    def __init__(self, path: Path) -> None:
        """Args: path: its directory exists."""
        self._path = path
        self._missing = 0

    def keep_while(self, is_kept: Callable[[bytes], bool]) -> None:
        """Cut off the lines from the first one on that is not kept, or that a killed writer left incomplete.

        The file is truncated once, so a kill leaves it either as it was or truncated. Raises OSError.
        """
        kept = 0
        for line in read_lines(self._path):
            if not (line.endswith(b"\n") and is_kept(line)):
                os.truncate(self._path, kept)
                return
            kept += len(line)

    def append(self, line: bytes) -> bool:
        """Append one line, which ends with a line break; whether it was written.

        An incomplete last line, which a killed writer left, is ended first.
        """
        try:
            _append(self._path, line)
        except OSError as error:
            if not self._missing:
                logger.warning("cannot write %s: %s; the run goes on without these lines", self._path, error.strerror)
            self._missing += 1
            return False
        if self._missing:
            logger.warning("%s is written again; %d lines are missing", self._path, self._missing)
            self._missing = 0
        return True


def _append(path: Path, line: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size > 0 and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        written = os.write(descriptor, line)
        if written != len(line):
            os.ftruncate(descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)
