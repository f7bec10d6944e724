"""Removes control characters from untrusted text before it reaches a terminal or a page."""

from __future__ import annotations

import re

# The controls of C0 and C1 without tab and line feed, then what turns the direction of writing and breaks lines.
_REMOVED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


def without_controls(text: str) -> str:
    """Without control characters and without those that turn the direction of writing; line breaks and tabs stay.

    An escape sequence loses the character that makes a terminal act on it, and stays as harmless text.
    """
    return _REMOVED.sub("", text)


def one_line(text: str) -> str:
    """``without_controls``, with each stretch of white space as one blank."""
    return " ".join(without_controls(text).split())


def percent(share: float) -> str:
    """A level or a margin as it was given: 0.999 is 99.9%."""
    return f"{100 * share:.3g}%"
