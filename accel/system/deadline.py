"""A limit for calls into a library that may never return."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

_LONGEST_S = 1e9
"""Thirty years: of what no thread can wait for longer."""


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
        self.begin()

    def begin(self) -> None:
        """Of a process, also of a forked one: it has no thread of its parent's, and keeps none of its limits."""
        self.changed = threading.Condition()
        self.limits: list[_Limit] = []
        self._thread: threading.Thread | None = None

    def add(self, limit: _Limit) -> None:
        with self.changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="deadline", daemon=True)
                thread.start()
                self._thread = thread
            self.limits.append(limit)
            self.changed.notify()

    def remove(self, limit: _Limit) -> None:
        with self.changed:
            if limit in self.limits:
                self.limits.remove(limit)
                self.changed.notify()

    def _run(self) -> None:
        with self.changed:
            while True:
                if not self.limits:
                    self.changed.wait()
                    continue
                first = min(self.limits)
                if not self.changed.wait(first.ends - time.monotonic()) and first in self.limits:
                    if first.message:
                        with suppress(OSError):  # whoever read it may be gone
                            os.write(2, f"accel: {first.message}\n".encode())
                    os._exit(first.exit_code)


_watch = _Watch()
os.register_at_fork(after_in_child=_watch.begin)


@contextmanager
def deadline(limit_s: float, message: str, exit_code: int) -> Iterator[None]:
    """End the process with ``message``, if any, and ``exit_code`` when the block takes longer than ``limit_s``.

    The block must release the interpreter lock where it waits, as calls through ctypes do. For a block that runs while
    the process ends, from Python 3.12 on, there must have been one before.
    """
    limit = _Limit(time.monotonic() + min(limit_s, _LONGEST_S), message, exit_code)
    try:
        _watch.add(limit)
        yield
    finally:
        _watch.remove(limit)
