"""What every benchmark's rows share: flat values, a spread, and the machine and versions they were measured with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from accel.system.machine import read_machine, read_source, read_versions

LEAST_CPU_SHARE = 0.9
"""With a smaller part of a core than this, figures are of the machine's other work as much as of ours."""

Value = str | int | float | bool | None
Row = dict[str, Value]
Rows = Sequence[Row]
Notify = Callable[[str], None]

LOW, HIGH = 10, 90
LEAST_GAIN = 0.02
"""A gain over full precision that is smaller than this share of its time is no gain: machines differ by more."""


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
    time = number(row, column)
    return time < (1.0 - LEAST_GAIN) * number(baseline, column) and time < number(baseline, f"{column}_low")


def provenance() -> Row:
    """The columns that say where rows come from: processor, cores, versions, commit."""
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
