"""A bundle appears complete or not at all.

It is written to a locked temporary directory beside its final path, which is renamed at the end. The next export
removes what a killed one left.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accel.errors import ExportError
from accel.system.signals import terminations_interrupt

logger = logging.getLogger("accel")


@contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """An empty temporary directory, renamed to ``out`` when this context succeeds and removed when it fails.

    What killed exports left is removed too. A termination signal interrupts what is inside.

    Raises:
        ExportError: ``out`` exists, or something cannot be written.
    """
    if out.exists() or out.is_symlink():
        raise ExportError(f"{out} exists already: choose another directory, or remove it")
    partial = out.absolute().with_name(f".{out.name}.{os.getpid()}.partial")
    made = [parent for parent in partial.parents if not parent.exists()]
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(out)
        partial.mkdir()
        lock = os.open(partial, os.O_RDONLY)
    except OSError as error:
        raise ExportError(f"cannot write {out}: {error.strerror}; choose a directory that you may write to") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with terminations_interrupt():
            yield partial
        if out.exists():
            raise ExportError(f"{out} exists by now: choose another directory")
        partial.rename(out)
    except OSError as error:
        raise ExportError(f"cannot write {out}: {error.strerror or error}") from error
    finally:
        os.close(lock)
        shutil.rmtree(partial, ignore_errors=True)
        if not out.exists():
            with contextlib.suppress(OSError):  # not empty: another process uses it
                for parent in made:
                    parent.rmdir()


def partials(out: Path) -> list[Path]:
    """Temporary directories of exports to ``out`` that are running or were killed."""
    out = out.absolute()
    return sorted(out.parent.glob(f".{glob.escape(out.name)}.*.partial"))


def abandoned_partials(out: Path) -> list[Path]:
    """Temporary directories of killed exports: a running export holds a lock on its own."""
    return [path for path in partials(out) if _is_unlocked(path)]


def _remove_abandoned(out: Path) -> None:
    for abandoned in abandoned_partials(out):
        logger.info("removing %s, which an export that was killed has left", abandoned)
        shutil.rmtree(abandoned)


def _is_unlocked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
