"""The report as an HTML page and as Markdown, from the templates beside this file.

The page has no script and takes nothing from elsewhere; it is light and dark, for paper and for phones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from accel.monitor.plain_text import one_line, percent
from accel.reports import tables, wording
from accel.reports.analysis import Analysis
from accel.reports.comparison import QUANTITIES
from accel.reports.figure import Figure
from accel.reports.markdown import escaped, table_text
from accel.reports.plotting import colour_variables

Template = Literal["page.html", "report.md"]
OUTCOMES = {
    "no_loss": "No loss of return",
    "gain": "Higher return",
    "loss": "Lower return",
    "undecided": "Undecided",
    "too_few_seeds": "Too few seeds",
    "untested": "Returns not compared",
}
_TILES = ("time_to_threshold_s", "actor_us_per_step", "env_steps_per_s", "training_s")


def render(
    template: Template, analysis: Analysis, figures: Sequence[Figure], *, written: str, svgs: Mapping[str, str]
) -> str:
    """One of the two texts.

    Args:
        analysis: its numbers. figures: in order; the Markdown expects them as ``figures/NAME.png``.
        written: when and by what, for the footer.
        svgs: the figures for a page, by name.
    """
    environment = Environment(
        loader=PackageLoader("accel.reports"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"md": escaped, "md_table": table_text, "one_line": one_line}
    return environment.get_template(template).render(
        headline=wording.headline(analysis),
        kind=_kind(analysis),
        verdicts=[(outcome, OUTCOMES[outcome], *rest) for outcome, *rest in wording.verdicts(analysis)],
        tiles=_tiles(analysis),
        outcomes=wording.outcomes_beside(analysis),
        differing=_known([tables.differing_table(analysis)]),
        caveats=analysis.caveats,
        figures=figures,
        svgs=svgs,
        sections=_sections(analysis),
        commands=tables.commands(analysis),
        options=tables.options_table(analysis),
        method=wording.method(analysis),
        written=written,
        colours=colour_variables(),
    )


def _kind(analysis: Analysis) -> str:
    runs, groups = sum(len(group.runs) for group in analysis.groups), len(analysis.groups)
    kind = "Report" if analysis.baseline is None else f"Comparison with {analysis.baseline.label}"
    plural = ("s" if runs != 1 else "", "s" if groups != 1 else "")
    return f"{kind} · {analysis.environment} · {runs} run{plural[0]}, {groups} configuration{plural[1]}"


def _tiles(analysis: Analysis) -> list[tuple[str, str]]:
    """The main speedups of a single comparison, as (number, meaning)."""
    if len(analysis.comparisons) != 1:
        return []
    tiles = []
    for name in _TILES:
        if (value := analysis.comparisons[0].speedups.get(name)) is not None:
            between = f"between {value.ratio.low:.3g}× and {value.ratio.high:.3g}×"
            sure = f"{between} at {percent(analysis.choices.confidence)}" if value.has_interval else "too few seeds"
            quantity = QUANTITIES[name]
            meaning = f"{quantity.title}, times better: {quantity.meaning}; {sure}"
            tiles.append((f"{value.ratio.estimate:.3g}×", meaning))
    return tiles


def _sections(analysis: Analysis) -> list[tuple[str, list[tables.Table]]]:
    """Tables by heading, those that have rows."""
    results = (tables.results_table, tables.speedup_table, tables.runs_table)
    sections = {
        "Results": _known(table(analysis) for table in results),
        "Mismatch": _known([tables.mismatch_table(analysis)]),
        "Publications": _known([tables.publications_table(analysis)]),
        "Decisions": _known([tables.decisions_table(analysis)]),
        "Machines": [tables.machines_table(analysis)],
    }
    return [(title, found) for title, found in sections.items() if found]


def _known(found: Iterable[tables.Table | None]) -> list[tables.Table]:
    return [table for table in found if table is not None]
