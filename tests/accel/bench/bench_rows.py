"""What every benchmark's rows have in common."""

from __future__ import annotations

import json
import math

from accel.bench.rows import Row, number

PROVENANCE = frozenset("host cpu int8_flags cores python torch onnxruntime numpy gymnasium commit dirty".split())


def check_rows(rows: list[Row], *spreads: str) -> None:
    """Flat, finite, JSON, with spreads in order, and the machine and versions in each."""
    assert rows
    assert len({tuple(row) for row in rows}) == 1, "every row has the same columns"
    for row in rows:
        assert PROVENANCE <= row.keys()
        assert row["onnxruntime"] and row["cpu"]
        assert all(value is None or isinstance(value, str | int | float | bool) for value in row.values())
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))
        for name in spreads:
            assert 0 < number(row, f"{name}_low") <= number(row, name) <= number(row, f"{name}_high")
    json.dumps(rows, allow_nan=False)
