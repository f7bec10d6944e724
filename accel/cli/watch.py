"""``accel watch``: a run's live display, in another terminal or on another host that sees its directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from accel.reports.watch import watch


@dataclass(frozen=True)
class WatchOptions:
    """Follow a run until it ends. Ctrl-C ends watching, not the run."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help="the run's directory")]
    once: Annotated[bool, tyro.conf.arg(help="print the current status and exit")] = False


def main(arguments: Sequence[str]) -> int:
    """Parse, follow."""
    options = tyro.cli(WatchOptions, prog="accel watch", args=arguments, config=(tyro.conf.FlagCreatePairsOff,))
    return watch(options.run, once=options.once)
