"""The report as an HTML page and as Markdown, from the templates beside this file.

The page has no script and takes nothing from elsewhere; it is for screens, paper and phones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from accel.monitor.plain_text import one_line
from accel.reports import across, tables, wording
from accel.reports.across import Across
from accel.reports.analysis import Analysis
from accel.reports.comparison import RETURN_CLAIMS
from accel.reports.figure import Figure
from accel.reports.tables import Table

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|!~&])")


Content = Mapping[str, Any]
"""What the templates print, by their names for it."""


def render(
    template: Literal["page.html", "report.md"],
    content: Content,
    figures: Sequence[Figure],
    *,
    written: str,
    svgs: Mapping[str, str],
) -> str:
    """One of the two texts.

    Args:
        content: of one of the functions below. figures: in order; the Markdown expects them as ``figures/NAME.png``.
        written: when and by what, for the footer.
        svgs: the figures for a page, by name, in base64.
    """
    environment = Environment(
        loader=PackageLoader("accel.reports"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"md": _escaped, "md_table": _markdown_table, "one_line": one_line}
    return environment.get_template(template).render(**content, figures=figures, svgs=svgs, written=written)


def of_analysis(analysis: Analysis) -> Content:
    """A report or a comparison in one environment."""
    runs, groups = len(analysis.runs), len(analysis.groups)
    kind = "Report" if analysis.baseline is None else f"Comparison with {analysis.baseline.label}"
    counts = f"{runs} run{'s' * (runs != 1)}, {groups} configuration{'s' * (groups != 1)}"
    results = (tables.results_table(analysis), tables.speedup_table(analysis), tables.runs_table(analysis))
    sections = {
        "Results": results,
        "Mismatch": [tables.mismatch_table(analysis)],
        "Decisions": [tables.decisions_table(analysis)],
        "Machines": [tables.machines_table(analysis)],
    }
    known = [(title, [table for table in found if table is not None]) for title, found in sections.items()]
    return {
        "headline": wording.headline(analysis),
        "kind": f"{kind} · {analysis.environment} · {counts}",
        "verdicts": [
            (c.verdict.outcome, RETURN_CLAIMS[c.verdict.outcome], c.group.label, wording.verdict(c, analysis), c.marks)
            for c in analysis.comparisons
        ],
        "differing": tables.differing_table(analysis),
        "caveats": analysis.caveats,
        "sections": [(title, found) for title, found in known if found],
        "commands": tables.commands(analysis),
        "options": tables.options_table(analysis),
        "method": wording.method(analysis),
    }


def of_environments(compared: Across, pages: Mapping[str, str]) -> Content:
    """A comparison over several environments; ``pages``: the directory of each one's own page."""
    outcomes = tuple(
        (name, wording.headline(analysis), f"{pages[name]}/index.html") for name, analysis in compared.analyses.items()
    )
    environments = Table("Each environment by itself.", ("environment", "outcome", "page"), outcomes)
    notes = [f"{name}: {note}" for name, analysis in compared.analyses.items() for note in analysis.caveats]
    return {
        "headline": across.headline(compared),
        "kind": f"Comparison with {compared.baseline} · {', '.join(compared.analyses)}",
        "verdicts": [],
        "differing": None,
        "caveats": notes,
        "sections": [("Scores", [across.scores_table(compared), environments])],
        "commands": (),
        "options": None,
        "method": [
            "A score is a run's gain in return, from the baseline's mean first return on, by the baseline's mean gain "
            "in the same environment. Interquartile means, bootstrap and profile are those of rliable (Agarwal et al. "
            "2021, arXiv 2108.13264)."
        ],
    }


def _escaped(text: str) -> str:
    """Text without line breaks, and with the special characters of Markdown and HTML escaped."""
    return _SPECIAL.sub(r"\\\1", one_line(text)).replace("\\<", "&lt;").replace("\\>", "&gt;").replace("\\&", "&amp;")


def _markdown_table(table: Table) -> str:
    """The caption, the table and its notes."""
    lines = [table.columns, tuple("---" for _ in table.columns), *table.rows]
    rows = [f"| {' | '.join(c if c == '---' else _escaped(c) for c in line)} |" for line in lines]
    notes = "".join(f"\n- **{_escaped(title)}**: {_escaped(meaning)}" for title, meaning in table.notes)
    return f"{_escaped(table.caption)}\n\n" + "\n".join(rows) + (f"\n{notes}" if notes else "")
