"""The report as one HTML page: no script, nothing from elsewhere, light and dark, on paper and on a phone."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from accel.monitor.plain_text import percent
from accel.reports import tables, wording
from accel.reports.analysis import Analysis
from accel.reports.comparison import QUANTITIES
from accel.reports.drawing import Drawing, colour_variables
from accel.reports.tables import publications_table

OUTCOMES = {
    "no_loss": "No loss of return",
    "gain": "Higher return",
    "loss": "Lower return",
    "undecided": "Undecided",
    "too_few_seeds": "Too few seeds",
    "untested": "Returns not compared",
}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_WIDTHS = {"from": "brief", "to": "brief", "reason": "long"}
"""Columns of tables that are narrower or wider than others."""
_WHOLE = 28
_TILES = ("time_to_threshold_s", "actor_us_per_step", "env_steps_per_s", "training_s")


def render_page(analysis: Analysis, drawings: Sequence[Drawing], *, written: str) -> str:
    """The page.

    Args:
        analysis: its numbers. drawings: its figures, in order.
        written: when and by what, for the footer.
    """
    headline = wording.headline(analysis)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        element("title", headline),
        element("style", Html(_style())),
    )
    body = element(
        "body",
        _header(analysis, headline),
        element(
            "main",
            _verdicts(analysis),
            _outcomes(analysis),
            _differing(analysis),
            _caveats(analysis),
            _figures(drawings),
            _tables(analysis),
            _method(analysis),
        ),
        element("footer", element("p", written)),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _style() -> str:
    sheet = files("accel.reports").joinpath("page.css").read_text(encoding="utf-8")
    variables = colour_variables()
    light = "".join(f"{name}:{value[1]};" for name, value in variables.items())
    dark = "".join(f"{name}:{value[2]};" for name, value in variables.items())
    # The print rule comes last: paper is light, whatever the screen is.
    return (
        f":root{{{light}}}@media (prefers-color-scheme: dark){{:root{{{dark}}}}}\n{sheet}"
        f"@media print{{:root{{{light}--good:#1f7a4d;--bad:#a8324b;--open:#8a6d00;}}}}"
    )


def _header(analysis: Analysis, headline: str) -> Html:
    runs = sum(len(group.runs) for group in analysis.groups)
    kind = "Report" if analysis.baseline is None else f"Comparison with {analysis.baseline.label}"
    count = f"{runs} run{'s' if runs != 1 else ''}, {len(analysis.groups)} configuration"
    count += "s" if len(analysis.groups) != 1 else ""
    return element(
        "header", element("p", f"{kind} · {analysis.environment} · {count}", class_="kind"), element("h1", headline)
    )


def _verdicts(analysis: Analysis) -> Html:
    if not analysis.comparisons:
        return Html()
    cards = [
        element(
            "div",
            element("span", OUTCOMES[outcome], class_="badge"),
            element("h3", label),
            element("p", text),
            *(element("p", f"Not comparable: {mark}", class_="mark") for mark in marks),
            class_=f"verdict {outcome}",
        )
        for outcome, label, text, marks in wording.verdicts(analysis)
    ]
    tiles = []
    if len(analysis.comparisons) == 1:
        for name in _TILES:
            value = analysis.comparisons[0].speedups.get(name)
            if value is not None:
                between = f"between {value.ratio.low:.3g}× and {value.ratio.high:.3g}×"
                sure = f"{between} at {percent(analysis.choices.confidence)}" if value.has_interval else "too few seeds"
                quantity = QUANTITIES[name]
                said = f"{quantity.title}, times better: {quantity.meaning}; {sure}"
                shown = f"{value.ratio.estimate:.3g}×"
                tiles.append(element("div", element("b", shown), element("span", said), class_="tile"))
    return element(
        "section",
        element("div", *cards, class_="verdicts"),
        element("div", *tiles, class_="tiles") if tiles else None,
        aria_label="Verdicts",
    )


def _outcomes(analysis: Analysis) -> Html:
    cards = [
        element("div", element("h3", label), element("p", text), class_="verdict outcome")
        for label, text in wording.outcomes_beside(analysis)
    ]
    return element("section", *cards, class_="verdicts", aria_label="Configurations") if cards else Html()


def _differing(analysis: Analysis) -> Html:
    table, some = tables.differing_table(analysis), tables.differing_table(analysis, everywhere=False)
    if table is None and some is None:
        return Html()
    more = None if some is None else element("details", element("summary", "Options that some read"), _table(some))
    return join(element("h2", "What differs"), None if table is None else _table(table), more)


def _caveats(analysis: Analysis) -> Html:
    if not analysis.caveats:
        return Html()
    items = [element("li", text) for text in analysis.caveats]
    return element("section", element("h3", "Caveats"), element("ul", *items), class_="caveats")


def _figures(drawings: Sequence[Drawing]) -> Html:
    return element(
        "section",
        element("h2", "Figures"),
        element("div", *map(_figure, drawings), class_="figures"),
        aria_label="Figures",
    )


def _figure(drawing: Drawing) -> Html:
    name = f"{drawing.name}-alt"
    opening, _, rest = drawing.inline.partition(">")
    described = f'{opening} role="img" aria-labelledby="{name}">{element("title", drawing.alt, id=name)}{rest}'
    return element("figure", element("h3", drawing.title), Html(described), element("figcaption", drawing.caption))


def _tables(analysis: Analysis) -> Html:
    speedups, decisions = tables.speedup_table(analysis), tables.decisions_table(analysis)
    limits = tables.bottleneck_table(analysis)
    mismatch, checks = tables.mismatch_table(analysis), publications_table(analysis)
    commands = tables.commands(analysis)
    return join(
        element("h2", "Results"),
        _table(tables.results_table(analysis)),
        None if limits is None else _table(limits),
        None if speedups is None else _table(speedups),
        _table(tables.runs_table(analysis)),
        None if mismatch is None else join(element("h2", "Mismatch"), _table(mismatch)),
        None if checks is None else join(element("h2", "Publications"), _table(checks)),
        None if decisions is None else join(element("h2", "Decisions"), _table(decisions)),
        element("h2", "Machines and commands"),
        _table(tables.machines_table(analysis)),
        element("pre", "\n".join(commands)) if commands else None,
        element("h2", "Options"),
        element(
            "details",
            element("summary", "Every option of every configuration"),
            _table(tables.options_table(analysis)),
        ),
    )


def _table(table: tables.Table) -> Html:
    head = element("tr", *(element("th", title, scope="col") for title in table.columns))
    rows = [element("tr", *map(_cell, table.columns, row, ("th", *("td",) * (len(row) - 1)))) for row in table.rows]
    inner = element(
        "table", element("caption", element("span", table.caption)), element("thead", head), element("tbody", *rows)
    )
    notes = [part for title, meaning in table.notes for part in (element("dt", title), element("dd", meaning))]
    return element(
        "div",
        element("div", inner, class_="scroll", tabindex="0"),
        element("dl", *notes, class_="notes") if notes else None,
        class_="table",
    )


def _cell(column: str, text: str, kind: str) -> Html:
    """A row's name (``th``) or one of its figures (``td``); short words and numbers are never broken at a hyphen."""
    whole = "whole" if len(text) <= _WHOLE and " " not in text else None
    classes = [name for name in (_WIDTHS.get(column), whole) if name]
    attributes: dict[str, str | bool] = {"scope": "row"} if kind == "th" else {}
    return element(kind, text, **attributes, **({"class_": " ".join(classes)} if classes else {}))


def _method(analysis: Analysis) -> Html:
    return join(element("h2", "Method"), *(element("p", text) for text in wording.method(analysis)))


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
