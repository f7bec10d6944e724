"""Benchmark rows as a table: drawn by rich on a terminal, plain aligned text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from accel.bench.rows import Row, Value


@dataclass(frozen=True)
class Column:
    """One column: its heading, the key of the rows, and how to write the value, as ``_write`` knows it.

    A terminal that is too narrow does without the ``extra`` ones.
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
    Column("µs", "us", "us"),
    Column("10–90 %", "us", "spread", True),
    Column("× torch", "speedup_torch", "ratio"),
    Column("× fp32", "speedup_fp32", "ratio"),
    Column("bytes", "bytes", "count", True),
    Column("KL", "kl", "small"),
    Column("greedy", "greedy_agreement", "share", True),
)
ACTOR = (
    Column("network", "network"),
    Column("envs", "envs", "count"),
    Column("runtime", "runtime"),
    Column("scheme", "scheme"),
    Column("µs/step", "us_per_env_step", "us"),
    Column("10–90 %", "us_per_env_step", "spread", True),
    Column("env", "env_us", "us"),
    Column("policy", "policy_us", "us"),
    Column("overhead", "overhead_us", "us", True),
    Column("env only", "env_only_us", "us", True),
    Column("÷ actor", "env_share", "share"),
    Column("× torch", "speedup_torch", "ratio"),
    Column("× fp32", "speedup_fp32", "ratio"),
    Column("Python µs/vector step", "python_us_per_vector_step", "us", True),
    Column("KL", "kl", "small", True),
)
REFRESH = (
    Column("network", "network"),
    Column("scheme", "scheme"),
    Column("bind ms", "bind_ms", "us", True),
    Column("requantise ms", "requantise_ms", "us"),
    Column("serialise ms", "serialise_ms", "us", True),
    Column("ms/million parameters", "refresh_ms_per_million_parameters", "us"),
    Column("schedule ms", "schedule_ms", "us"),
    Column("upkeep ms", "upkeep_ms", "us"),
    Column("send ms", "send_ms", "us"),
    Column("load ms", "load_ms", "us"),
    Column("10–90 %", "load_ms", "spread", True),
    Column("bytes", "bytes", "count", True),
    Column("KL", "kl", "small", True),
    Column("call µs", "us", "us"),
    Column("pays from steps", "break_even_env_steps", "steps"),
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
    Column("return", "return", "us"),
    Column("95 %", "return", "spread"),
    Column("fp32", "return_fp32", "us"),
)
LEARNER = (
    Column("network", "network"),
    Column("precision", "precision"),
    Column("µs/step", "us_per_env_step", "us"),
    Column("10–90 %", "us_per_env_step", "spread", True),
    Column("batch", "batch_us", "us", True),
    Column("forward", "forward_us", "us"),
    Column("correct", "correct_us", "us", True),
    Column("backward", "backward_us", "us"),
    Column("steps/s at most", "env_steps_per_s", "count"),
    Column("× none", "speedup_none", "ratio"),
)
CORRECTORS = (
    Column("corrector", "corrector"),
    Column("T", "T", "count"),
    Column("B", "B", "count"),
    Column("device", "device", "text", True),
    Column("µs", "us", "us"),
    Column("10–90 %", "us", "spread", True),
    Column("forward + backward µs", "learner_us", "us"),
    Column("share", "share", "share"),
)
TRANSPORT = (
    Column("carrier", "carrier"),
    Column("direction", "direction"),
    Column("bytes", "bytes", "count", True),
    Column("µs", "us", "us"),
    Column("10–90 %", "us", "spread", True),
    Column("MB/s", "mb_per_s", "us"),
)


def print_table(rows: Sequence[Row], columns: Sequence[Column], title: str) -> None:
    """Print rows on standard output, under a line that says what they are."""
    if not sys.stdout.isatty():
        print(plain_table([column.heading for column in columns], _cells(rows, columns), title))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    shown = fitting(rows, columns, console.width)
    table = Table(title=title, title_justify="left")
    for column in shown:
        table.add_column(column.heading, justify="left" if column.style == "text" else "right", no_wrap=True)
    for line in _cells(rows, shown):
        table.add_row(*line)
    console.print(table)
    if len(shown) < len(columns):
        missing = ", ".join(column.heading for column in columns if column not in shown)
        print(f"A wider terminal also shows {missing}; --json has everything.")


def fitting(rows: Sequence[Row], columns: Sequence[Column], width: int) -> list[Column]:
    """The columns that fit a terminal: the extra ones go first, from the right, then those of one value."""
    shown = list(columns)
    extra = [column for column in reversed(columns) if column.extra]
    constant = [c for c in columns if not c.extra and len(rows) > 1 and len({_write(row, c) for row in rows}) == 1]
    for candidate in [*extra, *constant]:
        lines = [[column.heading for column in shown], *_cells(rows, shown)]
        if sum(max(len(line[i]) for line in lines) + 3 for i in range(len(shown))) < width:
            break
        shown.remove(candidate)
    return shown


def _cells(rows: Sequence[Row], columns: Sequence[Column]) -> list[list[str]]:
    return [[_write(row, column) for column in columns] for row in rows]


def plain_table(headings: Sequence[str], cells: Sequence[Sequence[str]], title: str) -> str:
    """Aligned columns, texts to the left and numbers to the right."""
    lines = [list(headings), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    is_number = [all(_reads_as_number(line[i]) for line in cells) for i in range(len(headings))]
    text = [
        "  ".join(c.rjust(w) if n else c.ljust(w) for c, w, n in zip(line, widths, is_number, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([title, *text])


def _reads_as_number(text: str) -> bool:
    return text[:1].isdigit() or text in ("-", "never")


def _write(row: Row, column: Column) -> str:
    value = row.get(column.key)
    if column.style == "spread":
        return f"{_figure(row.get(f'{column.key}_low'))}–{_figure(row.get(f'{column.key}_high'))}"
    if column.style == "steps" and value is None:
        return "-" if row.get("scheme") == "fp32" else "never"
    if value is None:
        return "-"
    if column.style == "text" or not isinstance(value, int | float):
        return str(value)
    formats = {"us": _figure(value), "ratio": f"{value:.2f}", "share": f"{value:.1%}", "small": f"{value:.1e}"}
    return formats.get(column.style, f"{value:,.0f}")


def _figure(value: Value) -> str:
    """About three digits."""
    if not isinstance(value, int | float):
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
