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
        """Of a process, also of a forked one: it has no thread of its parent's, and keeps no limit of it."""
        self._changed = threading.Condition()
        self._limit: _Limit | None = None
        self._thread: threading.Thread | None = None

    def set(self, limit: _Limit | None) -> None:
        with self._changed:
            if self._thread is None and limit is not None:
                thread = threading.Thread(target=self._run, name="deadline", daemon=True)
                thread.start()
                self._thread = thread
            self._limit = limit
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while True:
                limit = self._limit
                has_changed = self._changed.wait(None if limit is None else limit.ends - time.monotonic())
                if limit is None or has_changed or limit is not self._limit:
                    continue
                if limit.message:
                    with suppress(OSError):  # whoever read it may be gone
                        os.write(2, f"accel: {limit.message}\n".encode())
                os._exit(limit.exit_code)


_watch = _Watch()
os.register_at_fork(after_in_child=_watch.begin)


@contextmanager
def deadline(limit_s: float, message: str, exit_code: int) -> Iterator[None]:
    """End the process with ``message``, if any, and ``exit_code`` when the block takes longer than ``limit_s``.

    One block at a time, which must release the interpreter lock where it waits, as calls through ctypes do. For one
    that runs while the process ends, from Python 3.12 on, there must have been one before.
    """
    try:
        _watch.set(_Limit(time.monotonic() + min(limit_s, _LONGEST_S), message, exit_code))
        yield
    finally:
        _watch.set(None)
