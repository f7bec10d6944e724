"""A sweep's output directory: of one study, writable, and used by one worker of a host at a time where it must be."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from accel.errors import SweepError
from accel.system.atomic import write_atomically
from accel.system.untrusted import MAX_JSON_BYTES, parse_json, read_file

_LOCK, _ABOUT = ".lock", "study.json"
_OF_FILE_SYSTEMS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE})


def check_directory(directory: Path, about: Mapping[str, object], storage: Path | None = None) -> None:
    """Raises SweepError: the directory holds another study's runs and tables, or something else.

    Args:
        storage: the file of the study's storage, which may lie there with what belongs to it.
    """
    file = directory / _ABOUT
    if not file.exists():
        ours = (".", "study.", *(() if storage is None or storage.parent != directory else (storage.name,)))
        foreign = sorted(path.name for path in directory.iterdir() if not path.name.startswith(ours))
        if foreign:
            raise SweepError(f"{directory} holds {foreign[0]!r} and is no sweep's directory: give another --out")
        return
    try:
        found = parse_json(read_file(file, MAX_JSON_BYTES))
        if not isinstance(found, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError) as error:
        raise SweepError(f"{file} is damaged ({error}): give another --out, or remove the directory") from error
    if what := differences(found, about):
        raise SweepError(f"{directory} holds another study: {what}. Give another --out, or the study's own options")


def differences(found: Mapping[str, object], wanted: Mapping[str, object]) -> str:
    """What was and what is, by key; empty where the two are equal."""
    differing = [key for key in {**found, **wanted} if found.get(key) != wanted.get(key)]
    return "; ".join(f"{key} was {found.get(key)} and is {wanted.get(key)}" for key in differing)


def write_about(directory: Path, about: Mapping[str, object]) -> None:
    """Say whose directory it is; see ``check_directory``."""
    write_atomically(directory / _ABOUT, json.dumps(about, indent=2).encode() + b"\n")


@contextmanager
def writable(directory: Path) -> Iterator[None]:
    """Create the directory if necessary and check that it is writable; remove it at the end if it stays empty.

    Raises:
        SweepError: it cannot be created or written, or not any more.
    """
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    probe = directory / f".probe-{os.getpid()}"
    try:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise SweepError(f"cannot write to {directory}: {error.strerror}; choose another --out") from error
        try:
            yield
        except OSError as error:
            is_its = str(error.filename).startswith(str(directory)) or not directory.is_dir()
            if not (is_its or error.errno in _OF_FILE_SYSTEMS):
                raise
            raise SweepError(
                f"cannot write to {directory} any more: {error.strerror}. Run the same command to continue when it can "
                "be written again"
            ) from error
    finally:
        with suppress(OSError):  # not empty
            if made and [entry.name for entry in directory.iterdir()] == [_LOCK]:
                (directory / _LOCK).unlink()
            for path in made:
                path.rmdir()


@contextmanager
def one_at_a_time(directory: Path) -> Iterator[None]:
    """Let workers on one host begin and end one at a time, so that nothing is queued or written twice."""
    with (directory / _LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
