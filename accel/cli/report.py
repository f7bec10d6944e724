"""``accel report``: a page, figures, Markdown and JSON about one run or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from accel.cli.report_choices import ReportChoices
from accel.runs.reporting import report


@dataclass(frozen=True)
class ReportOptions(ReportChoices):
    """Write one self-contained page, Markdown, figures and JSON about runs; seeds of one configuration are one curve.

    accel report results/NAME            into results/NAME/report
    accel report results/* --out page    all runs of one environment, grouped by configuration
    """

    runs: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="RUN…", help="runs, directories of runs, or of their runs.json"),
    ] = ()
    out: Annotated[Path | None, tyro.conf.arg(help="directory to make; default: RUN/report, or report")] = None


def main(arguments: Sequence[str]) -> int:
    """Parse, write, say where."""
    options = tyro.cli(ReportOptions, prog="accel report", args=arguments, config=(tyro.conf.FlagCreatePairsOff,))
    written = report(options.runs, out=options.out, choices=options.choices(), overwrite=options.overwrite)
    print(f"{written.headline}\n{written.page}")
    return 0
