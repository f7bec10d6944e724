"""``accel verify``: check a bundle where it is going to run, and measure its latency there."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from accel.errors import BundleError, ConfigError
from accel.exporting.verify import verify
from accel.monitor.plain_text import without_controls
from accel.system.deadline import deadline

_DESCRIPTION = """Check a bundle's files, contract and test vectors on this machine, and measure its latency here.

A bundle is treated as untrusted data; none of its programs is run without --run-native-check."""


def main(arguments: Sequence[str]) -> int:
    """Parse, check, print. With argparse: the runtime for devices has no tyro."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("accel verify", description=_DESCRIPTION, formatter_class=plain)
    parser.add_argument("bundle", type=Path, help="directory that accel export wrote")
    native = "compile and run the C sources of a bundle; only for a bundle that you trust"
    parser.add_argument("--run-native-check", action="store_true", help=native)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="limit of the whole check, in seconds (600)")
    options = parser.parse_args(arguments)
    if not options.timeout_s > 0:
        raise ConfigError(f"--timeout-s {options.timeout_s:g}: give how many seconds it may take")
    late = f"{without_controls(str(options.bundle))} was not checked within {options.timeout_s:g} s (--timeout-s)"
    with deadline(options.timeout_s, late, BundleError.exit_code):
        result = verify(options.bundle, run_native_check=options.run_native_check)
    print(json.dumps(result.to_json(), indent=2) if options.json else without_controls(result.text()))
    return 0
