"""A bundle appears complete or not at all.

It is written to a locked directory beside its final path, which is renamed at the end. The next export to that path
empties what a killed one left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accel.errors import ExportError
from accel.system.signals import terminations_interrupt


@contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """An empty directory, renamed to ``out`` when this context succeeds and removed when it fails.

    A termination signal interrupts what is inside.

    Raises:
        ExportError: ``out`` exists, another export writes it, or something cannot be written.
    """
    if out.exists() or out.is_symlink():
        raise ExportError(f"{out} exists already: choose another directory, or remove it")
    partial = partial_of(out)
    made = [parent for parent in partial.parents if not parent.exists()]
    try:
        partial.mkdir(parents=True, exist_ok=True)
        with _locked(partial, out):
            try:
                with terminations_interrupt():
                    yield partial
                partial.rename(out)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        reason = error.strerror or error
        raise ExportError(f"cannot write {out}: {reason}; choose a directory that you may write to") from error
    finally:
        if not out.exists():
            with contextlib.suppress(OSError):  # not empty: another process uses it
                for parent in made:
                    parent.rmdir()


def partial_of(out: Path) -> Path:
    """Where an export to ``out`` writes, which is there while it runs and where it was killed."""
    return out.absolute().with_name(f".{out.name}.partial")


@contextmanager
def _locked(directory: Path, out: Path) -> Iterator[None]:
    """Lock a directory and empty it. Raises ExportError where another process holds it, OSError."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for left in directory.iterdir():
            left.unlink()
        yield
    except BlockingIOError as error:
        raise ExportError(f"another export writes {out}: wait for it, or choose another directory") from error
    finally:
        os.close(descriptor)
