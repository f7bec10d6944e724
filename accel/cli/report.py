"""``accel report`` and ``accel compare``: a page, figures, Markdown and JSON about runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from accel.display.arguments import argument
from accel.reports.analysis import Choices
from accel.reports.reporting import compare, report

REPORT = """Write one self-contained page, Markdown, figures and JSON about runs; seeds of one
configuration are one curve.

  accel report results/NAME            into results/NAME/report
  accel report results/* --out page    all runs of one environment, grouped by configuration
"""
COMPARE = """Compare runs with a baseline: time to the same return, speed, and whether the return is the same.

Seeds of one configuration are put together, on both sides. Runs of another environment, machine, torch,
onnxruntime or budget are refused unless forced.

  accel compare results/fp32-s0 results/fp32-s1 results/int8-s0 results/int8-s1
"""

_CONFIG = (tyro.conf.FlagCreatePairsOff,)


@dataclass(frozen=True, kw_only=True)
class ReportChoices:
    """How runs are grouped and measured."""

    threshold: Annotated[
        float | None,
        argument("return for time to threshold; default: the runs' stop-at-return; in tables, else 90 % of the gain"),
    ] = None
    group: Annotated[
        tuple[str, ...],
        argument("options, such as compressor, by which to put runs together; default: all but the seed"),
    ] = ()
    label: Annotated[
        tuple[str, ...],
        argument(
            "names of the configurations, one for each, in their order, a baseline first; default: what differs "
            "where that is short, else the runs' names"
        ),
    ] = ()
    confidence: Annotated[float, tyro.conf.arg(help="confidence level of the intervals, in (0, 1)")] = 0.95
    overwrite: Annotated[bool, tyro.conf.arg(help="replace a report that is there")] = False

    def choices(self, *, margin: float = 0.05, margin_return: float | None = None, force: bool = False) -> Choices:
        """For the analysis. Raises ReportError for a value out of range."""
        group = tuple(key.replace("-", "_") for key in self.group)
        return Choices(
            self.threshold, margin, group, force, self.confidence, margin_return=margin_return, labels=self.label
        )


@dataclass(frozen=True)
class ReportOptions(ReportChoices):
    """Options of ``accel report``."""

    runs: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="RUN…", help="runs, directories of runs, or of their runs.json.gz"),
    ] = ()
    out: Annotated[Path | None, argument("directory to make; default: RUN/report, or report")] = None


def main(arguments: Sequence[str]) -> int:
    """Parse, write, say where."""
    options = tyro.cli(ReportOptions, prog="accel report", description=REPORT, args=arguments, config=_CONFIG)
    written = report(options.runs, out=options.out, choices=options.choices(), overwrite=options.overwrite)
    print(f"{written.headline}\n{written.page}")
    return 0


@dataclass(frozen=True)
class CompareOptions(ReportChoices):
    """Options of ``accel compare``."""

    baseline: Annotated[
        Path, tyro.conf.Positional, tyro.conf.arg(metavar="BASELINE", help="a run, or a directory of its seeds")
    ]
    runs: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="RUN…", help="runs, directories of runs, or of their runs.json.gz"),
    ] = ()
    out: Annotated[Path, tyro.conf.arg(help="directory to make")] = Path("comparison")
    margin: Annotated[
        float, tyro.conf.arg(help="how much lower a return still counts as the same, as a share of the baseline's gain")
    ] = 0.05
    margin_return: Annotated[
        float | None, tyro.conf.arg(help="the same in units of return, such as 25; replaces the share")
    ] = None
    force: Annotated[bool, tyro.conf.arg(help="compare what is not comparable, and mark it")] = False


def main_compare(arguments: Sequence[str]) -> int:
    """Parse, write, say where."""
    options = tyro.cli(
        CompareOptions,
        prog="accel compare",
        description=COMPARE,
        args=arguments,
        config=_CONFIG,
    )
    choices = options.choices(margin=options.margin, margin_return=options.margin_return, force=options.force)
    written = compare(options.baseline, options.runs, out=options.out, choices=choices, overwrite=options.overwrite)
    print(f"{written.headline}\n{written.page}")
    return 0
