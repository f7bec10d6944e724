"""Recommendations that close a benchmark: for each cell the fastest scheme that is worth it, if any."""

from __future__ import annotations

from collections.abc import Sequence

from accel.bench.rows import FULL_PRECISION, Row, gains, is_faster, number
from accel.monitor.mismatch import ESS_ALARM, KL_ALARM

CELLS = {
    "policy": ("us", "per call", ("network", "batch")),
    "actor": ("us_per_env_step", "per environment step", ("env", "network", "envs")),
    "refresh": ("us", "per call", ("network", "envs")),
}
"""By benchmark: the column that is compared, of what it is the time, and the columns that make a cell."""


def advise(kind: str, rows: Sequence[Row]) -> list[str]:
    """One line per cell, and whether mismatch was considered.

    Args:
        kind: of ``CELLS``.
    """
    column, of, names = CELLS[kind]
    cells: dict[str, list[Row]] = {}
    for row in rows:
        shown = (str(row[name]) if name in ("env", "network") else f"{name} {row[name]}" for name in names)
        cells.setdefault(", ".join(shown), []).append(row)
    lines = [f"{cell}: {_recommended(found, column, of)}" for cell, found in cells.items()]
    if any(row["weights"] == "random" for row in rows):
        lines.append("weights are random: schemes are recommended by speed alone; --run also measures mismatch")
    return lines


def _recommended(rows: Sequence[Row], column: str, of: str) -> str:
    """A scheme counts on compiled kernels where these run it, as actors do."""
    placed = [row for row in rows if row.get("runtime") != "torch"]
    placed.sort(key=lambda row: row.get("runtime") == "native")
    schemes = {str(row["scheme"]): row for row in placed}
    baseline = schemes.pop(FULL_PRECISION, None)
    if baseline is None:
        return "nothing to recommend, as no compressed policy was measured"
    fp32 = f"fp32 ({_us(number(baseline, column))} {of})"
    faster = sorted(
        (row for row in schemes.values() if is_faster(row, baseline, column)), key=lambda r: number(r, column)
    )
    best = next((row for row in faster if _is_worth_it(row)), None)
    if best is None:
        why = f", as {faster[0]['scheme']} differs too much from fp32 or is no faster by itself" if faster else ""
        doubtful = [row for row in schemes.values() if gains(row, baseline, column) and _is_worth_it(row)]
        if doubtful and not faster:
            times = ", ".join(f"{row['scheme']} ({_us(number(row, column))})" for row in doubtful)
            why = f" beyond its spread, in which {times} lies: measure longer, or on an idle machine"
        return f"no compression: nothing else is worth more than {fp32}{why}"
    ratio = number(baseline, column) / number(best, column)
    text = f"{best['scheme']} ({_us(number(best, column))}) is {ratio:.2f} times as fast as {fp32}"
    if best["weights"] == "trained":
        text += "; its actions are within the bar"
        text += "" if best["kl"] is None else f", KL {number(best, 'kl'):.2g} nats, ESS {number(best, 'ess'):.2f}"
    return text


def _is_worth_it(row: Row) -> bool:
    """Not fp16, which a CPU computes in single precision, no untrained student, no mismatch beyond the alarm levels."""
    scheme, trained = str(row["scheme"]), row["weights"] == "trained"
    if "fp16" in scheme or ("distill" in scheme and not trained):
        return False
    near = row["kl"] is None or (number(row, "kl") <= KL_ALARM and number(row, "ess") >= ESS_ALARM)
    return not trained or (near and bool(row["holds"]))


def _us(microseconds: float) -> str:
    return f"{microseconds:.3g} µs" if microseconds < 1000.0 else f"{microseconds:,.0f} µs"
