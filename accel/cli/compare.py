"""``accel compare``: configurations against a baseline, with speedups, intervals and a verdict on the return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from accel.cli.report_choices import ReportChoices
from accel.runs.reporting import compare


@dataclass(frozen=True)
class CompareOptions(ReportChoices):
    """Compare runs with a baseline: time to the same return, speed, and whether the return is the same.

    Seeds of one configuration are put together, on both sides. Runs of another environment, machine, torch,
    onnxruntime or budget are refused unless forced.

    accel compare runs/fp32-s0 runs/fp32-s1 runs/int8-s0 runs/int8-s1
    """

    baseline: Annotated[
        Path, tyro.conf.Positional, tyro.conf.arg(metavar="BASELINE", help="a run, or a directory of its seeds")
    ]
    runs: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="RUN…", help="runs, directories of runs, or of their runs.json"),
    ] = ()
    out: Annotated[Path, tyro.conf.arg(help="directory to make")] = Path("comparison")
    margin: Annotated[
        float, tyro.conf.arg(help="how much lower a return still counts as the same, as a share of the baseline's gain")
    ] = 0.05
    margin_return: Annotated[
        float | None, tyro.conf.arg(help="the same in units of return, such as 25; replaces the share")
    ] = None
    force: Annotated[bool, tyro.conf.arg(help="compare what is not comparable, and mark it")] = False


def main(arguments: Sequence[str]) -> int:
    """Parse, write, say where."""
    options = tyro.cli(CompareOptions, prog="accel compare", args=arguments, config=(tyro.conf.FlagCreatePairsOff,))
    choices = options.choices(margin=options.margin, margin_return=options.margin_return, force=options.force)
    written = compare(options.baseline, options.runs, out=options.out, choices=choices, overwrite=options.overwrite)
    print(f"{written.headline}\n{written.page}")
    return 0
