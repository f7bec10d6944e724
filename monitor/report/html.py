"""HTML by elements: every text and attribute is escaped unless it is HTML already."""

from __future__ import annotations

from html import escape

VOID = frozenset({"meta", "br", "hr"})


class Html(str):
    """Markup that is safe to embed as it is."""

    __slots__ = ()


Child = str | Html | None


def element(name: str, /, *children: Child, **attributes: str | bool) -> Html:
    """``<name attribute="…">children</name>``.

    Args:
        children: plain strings are escaped, ``Html`` is not, None is left out.
        attributes: ``class_`` loses its underscore, inner ones become dashes; True is an attribute without value.
    """
    words = [name]
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{escape(str(value), quote=True)}"')
    opening = f"<{' '.join(words)}>"
    return Html(opening if name in VOID else f"{opening}{join(*children)}</{name}>")


def join(*children: Child) -> Html:
    """Children one after the other, plain strings escaped."""
    return Html("".join(c if isinstance(c, Html) else escape(c) for c in children if c is not None))
