"""Writes TOML, which the standard library only reads: enough of it for configurations."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(values: Mapping[str, object], comments: Mapping[str, str] | None = None) -> str:
    """TOML text that ``tomllib.loads`` turns back into equal values.

    Args:
        values: strings, integers, floats, booleans, sequences of those, and mappings, which become tables.
        comments: by key of the top level, a text to stand above it.
    Raises:
        TypeError: a value that TOML cannot hold, None among them; leave such keys out.
    """
    return _table(values, (), comments or {}).lstrip("\n")


def _table(values: Mapping[str, object], path: tuple[str, ...], comments: Mapping[str, str]) -> str:
    lines: list[str] = []
    for key, value in values.items():
        if not isinstance(value, Mapping):
            lines += [f"# {line}" for line in comments.get(key, "").splitlines()]
            lines.append(f"{_key(key)} = {_value(value, key)}")
    text = "".join(f"{line}\n" for line in lines)
    for key, value in values.items():
        if isinstance(value, Mapping):
            inner = (*path, _key(key))
            text += f"\n[{'.'.join(inner)}]\n{_table(value, inner, {})}"
    return text


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _value(value: object, key: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return "nan" if math.isnan(value) else repr(float(value))
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return f"[{', '.join(_value(item, key) for item in value)}]"
    raise TypeError(f"{key!r} is a {type(value).__name__}, which TOML cannot hold; leave it out")


def _string(text: str) -> str:
    """A basic string. JSON escapes what TOML escapes, but for DEL and pairs of surrogates."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
