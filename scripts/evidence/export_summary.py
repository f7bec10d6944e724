"""The page about exported policies, generated from their rows: the table, what pays, what does not."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monitor.report.markdown import escaped

Row = Mapping[str, Any]
# medians of short calls repeat to within this
PAYS, COSTS = 1.1, 0.9

_HEAD = (
    "environment",
    "scheme",
    "format",
    "bytes",
    "× smaller",
    "p50 / p99 µs",
    "× as fast",
    "code / static / stack bytes",
    "mismatch",
    "agreement",
    "return / fp32's",
    "worst / fp32's",
    "difference [95 %]",
    "verdict",
)
_HOW = (
    "Sizes and speeds are against the fp32 ONNX model on onnxruntime: bytes of the model (of compiled code and "
    "constants for C), medians of one call with one observation on one thread, measured in turns. The two policies "
    "play the same seeds, each row on its own target where one call takes at most 2 ms and on onnxruntime otherwise "
    "(then marked); the difference has its interval by Student's t over seeds. Mismatch is the root mean square "
    "difference of distribution parameters on real inputs, over their spread; agreement is the share of equal greedy "
    "actions, or, where actions are continuous, of means within half a standard deviation. These are single trained "
    "policies: others may fare otherwise."
)
_QUARL = (
    "QuaRL (Krishnan et al., arXiv:1910.01055, the deployment on a Raspberry Pi 3b) publishes 4× smaller and 14 to 18× "
    "as fast for large policies in int8, while success fell by 11 to 15 points. Those are large policies on a small "
    "device; what int8 alone makes of the policies here, on the machine named below:"
)


def summary(rows: Sequence[Row], left: int) -> str:
    """README.md: what was measured, what pays and what does not, the table, what produced it."""
    exported = [row for row in rows if "refused" not in row]
    parts = [
        "# Exported policies: format × scheme",
        _HOW,
        "\n".join(_played(exported)),
        f"{len(exported)} rows were exported, {len(rows) - len(exported)} refused"
        + (f", {left} not measured yet." if left else "."),
        "## What pays",
        _list(exported, lambda row: _speed(row) >= PAYS and not _is_worse(row)),
        "## What does not",
        "Slower than fp32 as ONNX:",
        _list(exported, lambda row: _speed(row) <= COSTS),
        "Larger than fp32 as ONNX:",
        _list(exported, lambda row: _ratio(row) < 1),
        "Returns that are lower, or may be by more than the margin:",
        _list(exported, _is_worse),
        "## Beside QuaRL",
        _QUARL,
        _quarl_rows(exported),
        "## All rows",
        "\n".join([_cells(_HEAD), _cells(["---"] * len(_HEAD)), *map(line, rows)]),
        "## How it was made",
        "\n".join(_sources(rows)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def line(row: Row) -> str:
    """One row of the Markdown table."""
    start = [row["env"], f"`{row['scheme']}`", row["format"]]
    if "refused" in row:
        return _cells([*start, f"refused: {escaped(str(row['refused']))}", *[""] * (len(_HEAD) - 4)])
    report = row["report"]
    sizes, latency, mismatch = report["bytes"], report["latency"], report["mismatch"]
    return _cells(
        [
            *start,
            f"{sizes['model']:,}",
            f"{_ratio(row):.2f}",
            f"{latency['model']['p50_us']:.1f} / {latency['model']['p99_us']:.1f}",
            f"{_speed(row):.2f}",
            _memory(row),
            f"{mismatch['relative']:.1e}",
            f"{mismatch['greedy_agreement']:.1%}",
            *_returns(report["returns"]),
        ]
    )


def _returns(returns: Row) -> list[str]:
    model, full, difference = returns["model"], returns["fp32"], returns["difference"]
    ends = "-" if difference is None else _interval(difference)
    return [
        f"{model['mean']:.5g} / {full['mean']:.5g}" + ("" if returns["engine"] == "onnxruntime" else " (onnxruntime)"),
        f"{model['worst']:.5g} / {full['worst']:.5g}",
        ends,
        returns["verdict"],
    ]


def _interval(difference: Row) -> str:
    return f"{difference['estimate']:+.4g} [{difference['low']:.4g}, {difference['high']:.4g}]"


def _memory(row: Row) -> str:
    compiled = row["contract"]["target"].get("compiled")
    if not compiled:
        return ""
    stack = "unknown" if compiled["stack_bytes"] is None else f"{compiled['stack_bytes']:,}"
    return f"{compiled['code_bytes']:,} / {compiled['static_bytes']:,} / {stack}"


def _speed(row: Row) -> float:
    return float(row["report"]["latency"]["speed_up_p50"])


def _ratio(row: Row) -> float:
    return float(row["report"]["bytes"]["ratio"])


def _is_worse(row: Row) -> bool:
    verdict = str(row["report"]["returns"]["verdict"])
    return verdict.startswith(("lower", "undecided"))


def _list(rows: Sequence[Row], holds: Callable[[Row], bool]) -> str:
    """One line an environment and format: the schemes that it holds for, with their figures."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if holds(row):
            figures = f"`{row['scheme']}` {_speed(row):.2f}× as fast, {_ratio(row):.2f}× smaller"
            verdict = row["report"]["returns"]["verdict"]
            groups.setdefault((row["env"], row["format"]), []).append(f"{figures} ({verdict})")
    if not groups:
        return "Nothing."
    return "\n".join(f"- {env}, {format}: {'; '.join(found)}" for (env, format), found in groups.items())


def _quarl_rows(rows: Sequence[Row]) -> str:
    """Plain int8 of every environment and format, in the terms of those figures."""
    found = []
    for row in rows:
        if row["scheme"] == "int8":
            returns = row["report"]["returns"]
            change = "-" if returns["difference"] is None else _interval(returns["difference"])
            start = f"- {row['env']}, {row['format']}: {_ratio(row):.2f}× smaller, {_speed(row):.2f}× as fast"
            found.append(f"{start}, return {change}: {returns['verdict']}")
    return "\n".join(found)


def _played(rows: Sequence[Row]) -> list[str]:
    """How every policy was played."""
    found: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        how = f"{row['network']}, run `{row['run']}` of {row['env_steps']:,} environment steps, {row['acted']} games"
        found.setdefault((row["env"], how), []).append(len(row["report"]["returns"]["model"]["returns"]))
    return [
        f"- {env}: {how}, {min(counts) if min(counts) == max(counts) else f'{min(counts)} to {max(counts)}'} a row"
        for (env, how), counts in found.items()
    ]


def _sources(rows: Sequence[Row]) -> list[str]:
    """Commands, machines and commits, each once; raw samples are in rows/."""
    found = {
        f"- `{shlex.join(row['command'])}` on {row['machine']['cpu']}, {row['machine']['cores']} cores, commit "
        f"{row['machine']['commit']}{' with changes' if row['machine']['dirty'] else ''}"
        for row in rows
    }
    return ["Every row's contract, report and raw samples lie in `rows/`.", "", *sorted(found)]


def _cells(values: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, values))} |"
