"""A limit for calls into a library that may never return."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class _Limit(NamedTuple):
    ends: float
    message: str
    exit_code: int


class _Watch:
    """One thread of the process, started with the first limit and kept.

    Python from 3.12 on starts no thread once the process ends, which is when MPI is left: that limit needs a thread
    that is there already.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.limits: list[_Limit] = []
        self._thread = threading.Thread()

    def start(self) -> None:
        """Once a process: a forked one has no thread of its parent's, though its condition counts it as waiting."""
        if not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="deadline", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        with self.changed:
            while True:
                if not self.limits:
                    self.changed.wait()
                    continue
                first = min(self.limits)
                if not self.changed.wait(first.ends - time.monotonic()) and first in self.limits:
                    if first.message:
                        os.write(2, f"accel: {first.message}\n".encode())
                    os._exit(first.exit_code)


_watch = _Watch()


@contextmanager
def deadline(limit_s: float, message: str, exit_code: int) -> Iterator[None]:
    """End the process with ``message``, if any, and ``exit_code`` when the block takes longer than ``limit_s``.

    The block must release the interpreter lock where it waits, as calls through ctypes do. For a block that runs while
    the process ends, from Python 3.12 on, there must have been one before.
    """
    limit = _Limit(time.monotonic() + limit_s, message, exit_code)
    _watch.start()
    with _watch.changed:
        _watch.limits.append(limit)
        _watch.changed.notify_all()
    try:
        yield
    finally:
        with _watch.changed:
            _watch.limits.remove(limit)
            _watch.changed.notify_all()
