"""Rows, which every benchmark returns: flat values, spreads, speed-ups, and the machine and versions behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from accel.system.machine import read_machine, read_source, read_versions

FULL_PRECISION = "fp32"
LEAST_CPU_SHARE = 0.9
"""Below this share of a core, results depend on the machine's other processes as much as on what is measured."""

Value = str | int | float | bool | None
Row = dict[str, Value]
Rows = Sequence[Row]
Notify = Callable[[str], None]

LOW, HIGH = 10, 90
LEAST_GAIN = 0.02
"""The smallest relative gain over full precision that counts: machines differ by more than that."""


def spread(name: str, samples: Sequence[float]) -> Row:
    """``name`` (the median), ``name_low`` and ``name_high`` (10th and 90th percentile) of at least one sample."""
    low, middle, high = (float(value) for value in np.percentile(samples, (LOW, 50, HIGH)))
    return {name: middle, f"{name}_low": low, f"{name}_high": high}


def number(row: Row, name: str) -> float:
    """A numeric value of a row; raises TypeError for a text."""
    value = row[name]
    if not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r}, not a number")
    return float(value)


def is_faster(row: Row, baseline: Row, column: str) -> bool:
    """Whether a median is below the baseline's by ``LEAST_GAIN``, and below all but a tenth of its samples."""
    return gains(row, baseline, column) and number(row, column) < number(baseline, f"{column}_low")


def gains(row: Row, baseline: Row, column: str) -> bool:
    """Whether a median is below the baseline's by ``LEAST_GAIN``."""
    return number(row, column) < (1.0 - LEAST_GAIN) * number(baseline, column)


def speedups(row: Row, cells: Rows, column: str) -> Row:
    """``speedup_torch`` and ``speedup_fp32``: over torch eager and over onnxruntime's fp32; None without a baseline."""
    found: Row = {}
    for name, runtime in (("speedup_torch", "torch"), ("speedup_fp32", "onnxruntime")):
        baseline = next((c for c in cells if c["runtime"] == runtime and c["scheme"] == FULL_PRECISION), None)
        found[name] = None if baseline is None else number(baseline, column) / number(row, column)
    return found


def provenance() -> Row:
    """Processor, cores, versions and commit that rows were measured with."""
    machine, versions, source = read_machine(), read_versions(), read_source()
    return {
        "host": machine.host,
        "cpu": machine.cpu,
        "int8_flags": " ".join(machine.int8_flags),
        "cores": machine.cores,
        **{name: versions[name] for name in ("python", "torch", "onnxruntime", "numpy", "gymnasium")},
        "commit": source["commit"],
        "dirty": source["dirty"],
    }
