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
        lock = _empty_and_lock(partial)
    except OSError as error:
        raise ExportError(f"cannot write {out}: {error.strerror}; choose a directory that you may write to") from error
    if lock is None:
        raise ExportError(f"another export writes {out}: wait for it, or choose another directory")
    try:
        with terminations_interrupt():
            yield partial
        if out.exists():
            raise ExportError(f"{out} exists by now: choose another directory")
        partial.rename(out)
    except OSError as error:
        raise ExportError(f"cannot write {out}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(lock)
        if not out.exists():
            with contextlib.suppress(OSError):  # not empty: another process uses it
                for parent in made:
                    parent.rmdir()


def partial_of(out: Path) -> Path:
    """Where an export to ``out`` writes, which is there while it runs and where it was killed."""
    return out.absolute().with_name(f".{out.name}.partial")


def _empty_and_lock(directory: Path) -> int | None:
    """The descriptor that holds the lock of an emptied directory; None where another process has it. Raises OSError.

    A link in its place is not followed: what it leads to is not ours to empty.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), directory.lstat()):
            for left in directory.iterdir():
                left.unlink()
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass  # held, or removed by an export that has just ended
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
