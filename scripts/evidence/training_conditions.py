"""Under what conditions kept runs were made, from their times, loads and commits: in words, and as a table of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Any

from monitor.report.runs import Run
from monitor.report.tables import Table
from monitor.report.wording import number

OVERLAP_S = 1.0
"""Times are rounded: runs that overlap by less followed one another."""


@dataclass(frozen=True)
class Conditions:
    """What is known about how one run was made.

    Attributes:
        variant: its configuration's name. run: what it measured.
        ended_s: Unix time at which each of its parts ended, one for a run that was never resumed; empty if unknown.
        loads: load averages over a minute before each part, as far as they were kept.
        wall_s: how long its command trained; None if unknown.
    """

    variant: str
    run: Run
    ended_s: tuple[float, ...] = ()
    loads: tuple[float, ...] = ()
    wall_s: float | None = None

    @property
    def span_s(self) -> tuple[float, float] | None:
        """Unix times of its beginning and end; None where either is unknown, as of a resumed run."""
        if len(self.ended_s) != 1 or self.wall_s is None:
            return None
        return self.ended_s[0] - self.wall_s, self.ended_s[0]


def conditions_of(run: Run, sample: Mapping[str, Any]) -> Conditions:
    """What is kept of a run: its variant, its summary, and in ``load`` what the runner noted after each part of it."""
    load, summary = sample.get("load", ()), sample["summary"] or {}
    ended = tuple(float(str(part["unix_time_s"])) for part in load if "unix_time_s" in part)
    loads = tuple(float(str(part["load_average_before"])) for part in load if "load_average_before" in part)
    return Conditions(str(sample["variant"]), run, ended, loads, summary.get("wall_s"))


def conditions_text(made: Sequence[Conditions]) -> str:
    """Whether runs were interleaved and alone, how busy the machine was, of how many commits they are."""
    return " ".join((_order(made), _load(made), _source(made)))


def conditions_table(made: Sequence[Conditions]) -> Table:
    """One row a run, in order of time: when it ended, the load before it, what an environment step took."""
    rows = tuple(
        (
            one.run.name,
            one.variant,
            f"{datetime.fromtimestamp(one.ended_s[-1], UTC):%Y-%m-%d %H:%M:%S}" if one.ended_s else "–",
            ", ".join(f"{load:.2f}" for load in one.loads) or "–",
            number(one.run.environment_us_per_step),
            _commit(one.run),
        )
        for one in sorted(made, key=lambda one: one.ended_s[-1:] or (0.0,))
    )
    columns = ("run", "configuration", "ended, UTC", "load average before", "environment, µs/step", "commit")
    return Table("How the runs were made, in order of time.", columns, rows)


def _commit(run: Run) -> str:
    return str(run.machine.get("commit") or "unknown")[:12] + (" with changes" if run.machine.get("dirty") else "")


def _order(made: Sequence[Conditions]) -> str:
    known = sorted((one for one in made if one.ended_s), key=lambda one: one.ended_s[-1])
    if len(known) < len(made):
        return f"When {len(made) - len(known)} of {len(made)} runs were made is not known, nor whether interleaved."
    repeated = sum(before.variant == after.variant for before, after in pairwise(known))
    if len({one.variant for one in known}) < 2:
        order = "All runs are of one variant"
    elif not repeated:
        order = "Variants were run interleaved: no run followed one of its own variant"
    else:
        order = f"Variants were not run strictly interleaved: {repeated} of {len(known)} runs followed one of their own"
    spans = sorted(span for one in known if (span := one.span_s) is not None)
    overlaps = sum(after[0] < before[1] - OVERLAP_S for before, after in pairwise(spans))
    if len(spans) < len(known):
        resumed = len(known) - len(spans)
        alone = f"whether one at a time is not known, as {resumed} of {len(known)} were resumed"
    else:
        alone = f"{overlaps} of them began before another had ended" if overlaps else "one at a time"
    return f"{order}; {alone}."


def _load(made: Sequence[Conditions]) -> str:
    loads = [load for one in made for load in one.loads]
    if not loads:
        return "The machine's load was not noted."
    return (
        f"The load average before a run was {min(loads):.2f} to {max(loads):.2f}, {median(loads):.2f} in the median; "
        "it covers a minute, so the run before counts in it."
    )


def _source(made: Sequence[Conditions]) -> str:
    commits = {str(one.run.machine.get("commit") or "unknown") for one in made}
    dirty = sum(bool(one.run.machine.get("dirty")) for one in made)
    of = "one commit" if len(commits) == 1 else f"{len(commits)} commits"
    changes = f"{dirty} of {len(made)} with" if dirty else "none with"
    return f"The runs are of {of}, {changes} uncommitted changes."
