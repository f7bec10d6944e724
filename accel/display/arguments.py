"""Help texts of command-line options."""

from __future__ import annotations

import tyro


def argument(text: str, *, value: object = None, name: str | None = None) -> object:
    """A ``tyro.conf.arg``; a default that depends on other options is told in the text, as ``; default: …``.

    Args:
        text: what the option is for, with its unit. value: the default, if a preset or a file has one.
        name: of the flag, where it is not the field's.
    """
    about, _, depends = text.partition("; default: ")
    hint = f"(default: {depends})" if depends and value is None else None
    return tyro.conf.arg(help=about, name=name, help_behavior_hint=hint)
