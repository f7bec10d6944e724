"""Text and tables as Markdown, with everything escaped that Markdown or HTML would act on."""

from __future__ import annotations

import re

from accel.reports.tables import Table

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|!~&])")


def escaped(text: str) -> str:
    """Text without line breaks, and with the special characters of Markdown and HTML escaped."""
    one_line = " ".join(text.split())
    return _SPECIAL.sub(r"\\\1", one_line).replace("\\<", "&lt;").replace("\\>", "&gt;").replace("\\&", "&amp;")


def table_text(table: Table) -> str:
    """The caption, the table and its notes."""
    lines = [table.columns, tuple("---" for _ in table.columns), *table.rows]
    rows = [f"| {' | '.join(c if c == '---' else escaped(c) for c in line)} |" for line in lines]
    notes = "".join(f"\n- **{escaped(title)}**: {escaped(meaning)}" for title, meaning in table.notes)
    return f"{escaped(table.caption)}\n\n" + "\n".join(rows) + (f"\n{notes}" if notes else "")
