"""``accel doctor``: what this machine offers, as text or JSON; exit status 1 when training cannot run here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from accel.system.doctor import doctor


@dataclass(frozen=True)
class DoctorOptions:
    """Say what this machine offers a run, what is missing, and what to do about it."""

    results_dir: Annotated[Path, tyro.conf.arg(help="where runs are going to be kept")] = Path("results")
    json: Annotated[bool, tyro.conf.arg(help="print JSON, with the machine's description")] = False
    timeout_s: Annotated[float, tyro.conf.arg(help="limit of each probe, in seconds")] = 60.0


def main(arguments: Sequence[str]) -> int:
    """Parse, look, print."""
    options = tyro.cli(DoctorOptions, prog="accel doctor", args=arguments, config=(tyro.conf.FlagCreatePairsOff,))
    report = doctor(options.results_dir, timeout_s=options.timeout_s)
    print(json.dumps(report.to_json(), indent=2) if options.json else report.text())
    return 0 if report.healthy else 1
