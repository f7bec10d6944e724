"""Files that somebody else may have made: read within bounds on size, nesting and the parser's memory. No torch."""

from __future__ import annotations

import io
import json
import stat
import struct
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

MAX_TOML_BYTES, MAX_JSON_BYTES = 2**16, 2**22
MAX_DEPTH = 32
# tomllib takes memory by the square of a dotted key's parts
_MAX_LINE_DOTS = 2048
# what reading a damaged zip archive may raise; RuntimeError of an encrypted one
ARCHIVE_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, KeyError, OverflowError),
    *(RuntimeError, OSError, MemoryError),
)


def read_file(path: Path, limit: int) -> bytes:
    """A regular file of at most ``limit`` bytes. Raises OSError, and ValueError for what is larger or no file."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no regular file")
    if status.st_size > limit:
        raise ValueError(f"it has {status.st_size:,} bytes, and may have {limit:,}")
    with path.open("rb") as file:
        return file.read(min(status.st_size, limit))  # read(n) takes n bytes of memory at once


def unpack(content: bytes, limit: int, wanted: Callable[[str], bool] = lambda _: True) -> dict[str, bytes]:
    """Members of a zip archive, by name. Raises ValueError for a damaged one, and for more than ``limit`` bytes."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [info for info in archive.infolist() if wanted(info.filename)]
            if (size := sum(info.file_size for info in members)) > limit:
                raise ValueError(f"it unpacks to {size:,} bytes, and may have {limit:,}")
            return {info.filename: archive.read(info) for info in members}
    except ARCHIVE_ERRORS as error:
        raise ValueError(f"it is no sound zip archive: {error}") from error


def read_toml(path: Path) -> dict[str, object]:
    """A TOML file of a configuration's size. Raises OSError and ValueError."""
    text = read_file(path, MAX_TOML_BYTES).decode("utf-8")
    if max(line.count(".") for line in text.split("\n")) > _MAX_LINE_DOTS:
        raise ValueError(f"a line has more than {_MAX_LINE_DOTS:,} dots")
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_depth(values)
    return values


def parse_json(content: str | bytes) -> object:
    """Strict JSON, without NaN and infinity. Raises ValueError."""
    try:
        value: object = json.loads(content, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_depth(value)
    return value


def check_depth(value: object, limit: int = MAX_DEPTH) -> None:
    """Raise ValueError for lists and mappings that are nested deeper than ``limit``."""
    layer: list[object] = [value]
    for _ in range(limit):
        layer = [item for part in layer for item in _items(part)]
    if layer:
        raise ValueError(f"it is nested more than {limit} deep")


def _items(part: object) -> Iterable[object]:
    if isinstance(part, dict):
        return part.values()
    return part if isinstance(part, list) else ()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
