"""``accel report`` and ``accel compare``: a page, figures, Markdown and JSON about runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from accel.display.arguments import argument
from accel.monitor.plain_text import without_controls
from accel.reports.analysis import Choices
from accel.reports.reporting import compare, report

if TYPE_CHECKING:
    from accel.reports.document import WrittenReport

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


Runs = Annotated[
    tuple[Path, ...],
    tyro.conf.Positional,
    tyro.conf.arg(metavar="RUN…", help="runs, directories of runs, or of their runs.json.gz"),
]
Overwrite = Annotated[bool, tyro.conf.arg(help="replace a report that is there")]


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Choices):
    """Options of ``accel report``."""

    margin: tyro.conf.Suppress[float] = 0.05
    margin_return: tyro.conf.Suppress[float | None] = None
    force: tyro.conf.Suppress[bool] = False
    overwrite: Overwrite = False
    runs: Runs = ()
    out: Annotated[Path | None, argument("directory to make; default: RUN/report, or report")] = None


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Choices):
    """Options of ``accel compare``."""

    baseline: Annotated[
        Path, tyro.conf.Positional, tyro.conf.arg(metavar="BASELINE", help="a run, or a directory of its seeds")
    ]
    overwrite: Overwrite = False
    runs: Runs = ()
    out: Annotated[Path, tyro.conf.arg(help="directory to make")] = Path("comparison")


def main(arguments: Sequence[str]) -> int:
    """Parse, write, say where."""
    options = tyro.cli(ReportOptions, prog="accel report", description=REPORT, args=arguments, config=_CONFIG)
    return _say(report(options.runs, out=options.out, choices=options, overwrite=options.overwrite))


def main_compare(arguments: Sequence[str]) -> int:
    """Parse, write, say where."""
    options = tyro.cli(CompareOptions, prog="accel compare", description=COMPARE, args=arguments, config=_CONFIG)
    written = compare(options.baseline, options.runs, out=options.out, choices=options, overwrite=options.overwrite)
    return _say(written)


def _say(written: WrittenReport) -> int:
    print(without_controls(f"{written.headline}\n{written.page}"))
    return 0
