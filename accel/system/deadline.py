"""A limit for calls into a library that may never return."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def deadline(limit_s: float, message: str, exit_code: int) -> Iterator[None]:
    """End the process with ``message``, if any, and ``exit_code`` when the block takes longer than ``limit_s``.

    The block must release the interpreter lock where it waits, as calls through ctypes do.
    """

    def end() -> None:
        if message:
            os.write(2, f"accel: {message}\n".encode())
        os._exit(exit_code)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
