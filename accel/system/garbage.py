"""The garbage collector, kept from looking where it finds nothing: in an import, and at the end of a process.

Torch makes objects by the hundred thousand that live as long as the process. Going through them is a good part of the
time that a short run of ``accel`` takes, most of it at exit.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Nothing is collected meanwhile."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def freeze_garbage() -> None:
    """Nothing that is there now is collected any more; only for a process that is about to end."""
    gc.freeze()
