"""Benchmark rows as aligned text that fits a given width."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from accel.bench.rows import Row, Value

_GAP, _LEAST_TEXT = 2, 12
_UNLIMITED = 10_000


@dataclass(frozen=True)
class Column:
    """One column: its heading, the key in the rows, and the number format, as ``_write`` knows it.

    ``extra`` columns are the first to go where the table is too wide.
    """

    heading: str
    key: str
    style: str = "text"
    extra: bool = False


TABLES: Mapping[str, Sequence[Column]] = MappingProxyType(
    {
        "policy": (
            Column("network", "network"),
            Column("batch", "batch", "count"),
            Column("runtime", "runtime"),
            Column("scheme", "scheme"),
            Column("µs", "us", "number"),
            Column("10–90 %", "us", "spread", True),
            Column("× torch", "speedup_torch", "ratio"),
            Column("× ORT", "speedup_fp32", "ratio"),
            Column("bytes", "bytes", "count", True),
            Column("KL", "kl", "small"),
            Column("greedy", "greedy_agreement", "share", True),
            Column("error", "action_error", "share", True),
        ),
        "actor": (
            Column("network", "network"),
            Column("envs", "envs", "count"),
            Column("runtime", "runtime"),
            Column("scheme", "scheme"),
            Column("µs/step", "us_per_env_step", "number"),
            Column("10–90 %", "us_per_env_step", "spread", True),
            Column("env", "env_us", "number"),
            Column("policy", "policy_us", "number"),
            Column("overhead", "overhead_us", "number", True),
            Column("env only", "env_only_us", "number", True),
            Column("env share", "env_share", "share"),
            Column("× torch", "speedup_torch", "ratio"),
            Column("× ORT", "speedup_fp32", "ratio"),
            Column("KL", "kl", "small", True),
        ),
        "refresh": (
            Column("network", "network"),
            Column("scheme", "scheme"),
            Column("bind", "bind_ms", "number", True),
            Column("requantise", "requantise_ms", "number"),
            Column("serialise", "serialise_ms", "number", True),
            Column("per M", "refresh_ms_per_million_parameters", "number"),
            Column("load", "load_ms", "number"),
            Column("10–90 %", "load_ms", "spread", True),
            Column("bytes", "bytes", "count", True),
            Column("KL", "kl", "small", True),
            Column("call µs", "us", "number"),
            Column("break-even", "break_even_env_steps", "steps"),
        ),
        "learner": (
            Column("learner", "learner"),
            Column("network", "network"),
            Column("precision", "mode"),
            Column("µs/step", "us_per_env_step", "number"),
            Column("10–90 %", "us_per_env_step", "spread", True),
            Column("batch", "batch_us", "number", True),
            Column("forward", "forward_us", "number"),
            Column("correct", "correct_us", "number", True),
            Column("backward", "backward_us", "number"),
            Column("steps/s at most", "env_steps_per_s", "count"),
            Column("× none", "speedup_none", "ratio"),
        ),
    }
)


def table_text(rows: Sequence[Row], columns: Sequence[Column], title: str, width: int) -> str:
    """The title, the rows under their headings, and a line that names the columns that do not fit.

    Long texts, such as networks and schemes, are folded where all columns that must be shown are too wide together.
    """
    shown = fitting(rows, columns, width)
    table = _table(rows, shown)
    least = sum((column.min_width or 0) + _GAP for column in table.columns) - _GAP
    console = Console(width=max(width, least), color_system=None)
    with console.capture() as capture:
        console.print(table)
    missing = [column.heading for column in columns if column not in shown and not _is_empty(rows, column)]
    hint = [f"not shown: {', '.join(missing)}; --json writes every column"] if missing else []
    lines = [textwrap.fill(title, width), *(line.rstrip() for line in capture.get().splitlines())]
    return "\n".join([*lines, *(textwrap.fill(line, width) for line in hint)])


def fitting(rows: Sequence[Row], columns: Sequence[Column], width: int) -> list[Column]:
    """The columns that fit: empty ones go first, then extra ones from the right."""
    console = Console(width=_UNLIMITED)
    shown = [column for column in columns if not _is_empty(rows, column)]
    for candidate in [column for column in reversed(shown) if column.extra]:
        if Measurement.get(console, console.options, _table(rows, shown)).maximum <= width:
            break
        shown.remove(candidate)
    return shown


def _table(rows: Sequence[Row], columns: Sequence[Column]) -> Table:
    """Texts to the left and foldable, numbers to the right and whole."""
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False)
    for column in columns:
        cells = [_write(row, column) for row in rows]
        is_number, widest = column.style != "text", max(map(len, cells))
        table.add_column(
            column.heading,
            justify="right" if is_number else "left",
            no_wrap=is_number,
            overflow="fold",
            min_width=max(len(column.heading), widest if is_number else min(widest, _LEAST_TEXT)),
        )
    for row in rows:
        table.add_row(*(Text(_write(row, column)) for column in columns))
    return table


def _is_empty(rows: Sequence[Row], column: Column) -> bool:
    return all(_write(row, column) in ("-", "-–-") for row in rows)


def _write(row: Row, column: Column) -> str:
    value = row.get(column.key)
    if column.style == "spread":
        low, high = (_number(row.get(f"{column.key}_{end}")) for end in ("low", "high"))
        return f"{low} to {high}" if low.startswith("-") and low != "-" else f"{low}–{high}"
    if column.style == "steps" and value is None:
        return "-" if row.get("scheme") == "fp32" else "never"
    if value is None:
        return "-"
    if column.style == "text" or not isinstance(value, int | float):
        return str(value)
    formats = {"number": _number(value), "ratio": f"{value:.2f}", "share": f"{value:.1%}", "small": f"{value:.1e}"}
    return formats.get(column.style, f"{value:,.0f}")


def _number(value: Value) -> str:
    """About three digits."""
    if not isinstance(value, int | float):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
