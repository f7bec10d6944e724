"""Removes control characters from untrusted text before it reaches a terminal or a page."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

_KEPT = "\n\t"
_DIRECTIONS = frozenset(map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029)))


def without_controls(text: str) -> str:
    """Without control characters and without those that turn the direction of writing; line breaks and tabs stay.

    An escape sequence loses the character that makes a terminal act on it, and stays as harmless text.
    """
    return "".join(c for c in text if c in _KEPT or not (unicodedata.category(c) == "Cc" or c in _DIRECTIONS))


def one_line(text: str) -> str:
    """``without_controls``, with each stretch of white space as one blank."""
    return " ".join(without_controls(text).split())


def plain_values(value: object) -> object:
    """JSON or TOML values with every text in them, keys too, as ``one_line`` gives it."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, Mapping):
        return {one_line(str(key)): plain_values(item) for key, item in value.items()}
    return [plain_values(item) for item in value] if isinstance(value, list | tuple) else value
