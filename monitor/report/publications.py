"""The report's table of what the checks before publication found, by configuration and scheme."""

from __future__ import annotations

from statistics import median

import numpy as np

from monitor.report.analysis import Analysis
from monitor.report.runs import Group, Run
from monitor.report.series import Floats
from monitor.report.tables import Table
from monitor.report.wording import number

_WITHHELD, _INCONCLUSIVE, _KL, _RATE, _STEPS = (
    "withheld",
    "inconclusive_checks",
    "publish_kl",
    "qat_differences",
    "qat_greatest_difference",
)
_TITLES = {
    _WITHHELD: ("withheld",),
    _INCONCLUSIVE: ("inconclusive checks",),
    _KL: ("KL at the last check, nats", "greatest KL, nats"),
    _RATE: ("greatest share of codes that differ",),
    _STEPS: ("by at most, steps",),
}
_CAPTION = "What the checks before publication found."
_MEANINGS = {
    _WITHHELD: "Withheld: publications, over all seeds, at which a scheme was unfit and another policy acted.",
    _INCONCLUSIVE: "Inconclusive checks: quick checks, over all seeds, that called for a full check.",
    _KL: "KL(learner's policy ‖ artifact) is of checks that passed, the last one's in the median over seeds.",
    _RATE: "With qat the learner rounds as its artifact does; compared are the codes of activations that both compute.",
}


def publications_table(analysis: Analysis) -> Table | None:
    """One row for each configuration and scheme of which a check was recorded; None where there was none.

    Counts are summed over seeds, and over the processes of a resumed run, which count from zero again.
    """
    recorded = {
        name.partition("/")[0]
        for group in analysis.groups
        for run in group.runs
        for name in run.series.columns
        if "/" in name
    }
    shown = [quantity for quantity in _TITLES if quantity in recorded]
    if not shown:
        return None
    rows = []
    for group in analysis.groups:
        names = {name for run in group.runs for name in run.series.columns}
        schemes = sorted({scheme for name in names for q, _, scheme in [name.partition("/")] if scheme and q in shown})
        for scheme in schemes:
            cells = [text for quantity in shown for text in _cells(group, quantity, scheme)]
            rows.append((group.label, scheme, *cells))
    caption = " ".join([_CAPTION, *(_MEANINGS[quantity] for quantity in shown if quantity in _MEANINGS)])
    columns = ("configuration", "scheme", *(title for quantity in shown for title in _TITLES[quantity]))
    return Table(caption, columns, tuple(rows))


def _cells(group: Group, quantity: str, scheme: str) -> list[str]:
    found = [values for run in group.runs if (values := _known(run, f"{quantity}/{scheme}")).size]
    if not found:
        return ["–"] * len(_TITLES[quantity])
    if quantity in {_WITHHELD, _INCONCLUSIVE}:
        return [number(sum(map(_counted, found)))]
    greatest = number(max(float(values.max()) for values in found))
    return [number(median(float(values[-1]) for values in found)), greatest] if quantity == _KL else [greatest]


def _known(run: Run, name: str) -> Floats:
    values = run.series.column(name)
    return values[~np.isnan(values)]


def _counted(values: Floats) -> float:
    """What a counter came to that starts at zero whenever its process does."""
    more = np.diff(values, prepend=0.0)
    return float(np.where(more < 0, values, more).sum())
