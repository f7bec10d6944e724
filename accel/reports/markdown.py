"""The report as Markdown: the same sentences and tables, with the figures as separate files."""

from __future__ import annotations

import re
from collections.abc import Sequence

from accel.reports import tables, wording
from accel.reports.analysis import Analysis
from accel.reports.drawing import Drawing
from accel.reports.tables import publications_table

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|!~&])")


def render_markdown(analysis: Analysis, drawings: Sequence[Drawing], *, written: str) -> str:
    """The text; figures are expected in ``figures/NAME.png``."""
    parts = [f"# {escaped(wording.headline(analysis))}"]
    for outcome, label, text, marks in wording.verdicts(analysis):
        parts.append(f"**{escaped(label)}** ({outcome}): {escaped(text)}")
        parts += [f"**Not comparable:** {escaped(mark)}" for mark in marks]
    parts += [f"**{escaped(label)}**: {escaped(text)}" for label, text in wording.outcomes_beside(analysis)]
    for everywhere in (True, False):
        if (differing := tables.differing_table(analysis, everywhere=everywhere)) is not None:
            parts.append(f"## What differs{'' if everywhere else ', read by some'}\n\n{table_text(differing)}")
    if analysis.caveats:
        parts.append("\n".join(f"- {escaped(text)}" for text in analysis.caveats))
    for drawing in drawings:
        parts.append(f"## {escaped(drawing.title)}\n\n![{escaped(drawing.alt)}](figures/{drawing.name}.png)")
        parts.append(escaped(drawing.caption))
    sections = (
        ("Results", tables.results_table(analysis)),
        ("Bottlenecks", tables.bottleneck_table(analysis)),
        ("Speedups", tables.speedup_table(analysis)),
        ("Runs", tables.runs_table(analysis)),
        ("Mismatch", tables.mismatch_table(analysis)),
        ("Publications", publications_table(analysis)),
        ("Decisions", tables.decisions_table(analysis)),
        ("Machines", tables.machines_table(analysis)),
        ("Options", tables.options_table(analysis)),
    )
    parts += [f"## {title}\n\n{table_text(table)}" for title, table in sections if table is not None]
    if commands := tables.commands(analysis):
        parts.append("## Commands\n\n" + "\n".join(f"    {_one_line(command)}" for command in commands))
    parts.append("## Method\n\n" + "\n\n".join(map(escaped, wording.method(analysis))))
    parts.append(escaped(written))
    return "\n\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """Text without line breaks, and with the special characters of Markdown and HTML escaped."""
    return _SPECIAL.sub(r"\\\1", _one_line(text)).replace("\\<", "&lt;").replace("\\>", "&gt;").replace("\\&", "&amp;")


def table_text(table: tables.Table) -> str:
    """The caption and the table."""
    lines = [table.columns, tuple("---" for _ in table.columns), *table.rows]
    rows = [f"| {' | '.join(c if c == '---' else escaped(c) for c in line)} |" for line in lines]
    notes = "".join(f"\n- **{escaped(title)}**: {escaped(meaning)}" for title, meaning in table.notes)
    return f"{escaped(table.caption)}\n\n" + "\n".join(rows) + (f"\n{notes}" if notes else "")


def _one_line(text: str) -> str:
    return " ".join(text.split())
