"""Benchmark rows as aligned text that fits a given width."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from accel.bench.rows import Row, Value

_GAP = "  "
_LEAST_TEXT = 12


@dataclass(frozen=True)
class Column:
    """One column: its heading, the key in the rows, and the number format, as ``_write`` knows it.

    ``extra`` columns are the first to go where the table is too wide.
    """

    heading: str
    key: str
    style: str = "text"
    extra: bool = False


POLICY = (
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
)
ACTOR = (
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
    Column("Python", "python_us_per_vector_step", "number", True),
    Column("KL", "kl", "small", True),
)
INFERENCE = (
    Column("network", "network"),
    Column("envs", "envs", "count"),
    Column("scheme", "scheme"),
    Column("inference", "inference"),
    Column("steps/s", "env_steps_per_s", "count"),
    Column("10–90 %", "env_steps_per_s", "spread", True),
    Column("× local", "speedup_local", "ratio"),
    Column("CPU s per M", "cpu_s_per_million", "number"),
    Column("lag", "lag", "number"),
    Column("step lag", "step_lag", "number"),
)
REFRESH = (
    Column("network", "network"),
    Column("scheme", "scheme"),
    Column("bind", "bind_ms", "number", True),
    Column("requantise", "requantise_ms", "number"),
    Column("serialise", "serialise_ms", "number", True),
    Column("per M", "refresh_ms_per_million_parameters", "number"),
    Column("schedule", "schedule_ms", "number"),
    Column("upkeep", "upkeep_ms", "number"),
    Column("load", "load_ms", "number"),
    Column("10–90 %", "load_ms", "spread", True),
    Column("bytes", "bytes", "count", True),
    Column("KL", "kl", "small", True),
    Column("call µs", "us", "number"),
    Column("break-even", "break_even_env_steps", "steps"),
    Column("on one core", "break_even_shared_env_steps", "steps", True),
)
BITS = (
    Column("network", "network"),
    Column("bits", "bits", "count"),
    Column("rounded", "rounded"),
    Column("arithmetic", "arithmetic"),
    Column("KL", "kl", "small"),
    Column("ESS", "ess", "share", True),
    Column("greedy", "greedy_agreement", "share"),
    Column("bytes", "bytes", "count"),
    Column("return", "return", "number"),
    Column("95 %", "return", "spread"),
    Column("fp32", "return_fp32", "number"),
)
LEARNER = (
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
)


def table_text(rows: Sequence[Row], columns: Sequence[Column], title: str, width: int) -> str:
    """The title, the rows under their headings, and a line that names the columns that do not fit."""
    shown = fitting(rows, columns, width)
    headings = [column.heading for column in shown]
    text = aligned(headings, _narrowed(headings, _cells(rows, shown), width))
    missing = [column.heading for column in columns if column not in shown and not _is_empty(rows, column)]
    hint = [f"not shown: {', '.join(missing)}; --json writes every column"] if missing else []
    return "\n".join([textwrap.fill(title, width), text, *(textwrap.fill(line, width) for line in hint)])


def fitting(rows: Sequence[Row], columns: Sequence[Column], width: int) -> list[Column]:
    """The columns that fit: empty ones go first, then extra ones from the right, then those of one value."""
    shown = [column for column in columns if not _is_empty(rows, column)]
    extra = [column for column in reversed(shown) if column.extra]
    constant = [c for c in shown if not c.extra and len(rows) > 1 and len({_write(row, c) for row in rows}) == 1]
    for candidate in [*extra, *constant]:
        if _total([[column.heading for column in shown], *_cells(rows, shown)]) <= width:
            break
        shown.remove(candidate)
    return shown


def aligned(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Aligned columns, texts to the left and numbers to the right."""
    lines = [list(headings), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    is_number = [all(_reads_as_number(line[i]) for line in cells) for i in range(len(headings))]
    return "\n".join(
        _GAP.join(c.rjust(w) if n else c.ljust(w) for c, w, n in zip(line, widths, is_number, strict=True)).rstrip()
        for line in lines
    )


def _narrowed(headings: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """The cells with the longest texts, such as networks and schemes, cut in the middle until the lines fit."""
    lines = [list(headings), *(list(line) for line in cells)]
    while (excess := _total(lines) - width) > 0:
        texts = [i for i in range(len(headings)) if not all(_reads_as_number(line[i]) for line in cells)]
        longest, i = max(((max(len(line[i]) for line in lines), i) for i in texts), default=(0, -1))
        room = max(longest - excess, _LEAST_TEXT)
        if room >= longest or len(lines[0][i]) > room:
            break
        for line in lines[1:]:
            line[i] = _cut(line[i], room)
    return lines[1:]


def _cut(text: str, room: int) -> str:
    tail = room // 2
    return text if len(text) <= room else f"{text[: room - tail - 1]}…{text[-tail:]}"


def _total(lines: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, cells)) + len(_GAP) for cells in zip(*lines, strict=True)) - len(_GAP)


def _cells(rows: Sequence[Row], columns: Sequence[Column]) -> list[list[str]]:
    return [[_write(row, column) for column in columns] for row in rows]


def _is_empty(rows: Sequence[Row], column: Column) -> bool:
    return all(_write(row, column) in ("-", "-–-") for row in rows)


def _reads_as_number(text: str) -> bool:
    return text.lstrip("-")[:1].isdigit() or text in ("-", "never")


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
