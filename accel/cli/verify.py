"""``accel verify``: check a bundle where it is going to run, and measure its latency there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from accel.errors import BundleError, ConfigError
from accel.exporting.verify import verify
from accel.monitor.plain_text import without_controls
from accel.system.deadline import deadline


@dataclass(frozen=True)
class VerifyOptions:
    """Check a bundle's files, contract and test vectors on this machine, and measure its latency here.

    A bundle is treated as untrusted data; none of its programs is run without --run-native-check.
    """

    bundle: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(help="directory that accel export wrote")]
    run_native_check: Annotated[
        bool, tyro.conf.arg(help="compile and run the C sources of a bundle; only for a bundle that you trust")
    ] = False
    json: Annotated[bool, tyro.conf.arg(help="print JSON")] = False
    timeout_s: Annotated[float, tyro.conf.arg(help="limit of the whole check, in seconds")] = 600.0


def main(arguments: Sequence[str]) -> int:
    """Parse, check, print."""
    options = tyro.cli(VerifyOptions, prog="accel verify", args=arguments, config=(tyro.conf.FlagCreatePairsOff,))
    if not options.timeout_s > 0:
        raise ConfigError(f"--timeout-s {options.timeout_s:g}: give how many seconds it may take")
    late = f"{without_controls(str(options.bundle))} was not checked within {options.timeout_s:g} s (--timeout-s)"
    with deadline(options.timeout_s, late, BundleError.exit_code):
        result = verify(options.bundle, run_native_check=options.run_native_check)
    print(json.dumps(result.to_json(), indent=2) if options.json else without_controls(result.text()))
    return 0
