#!/usr/bin/env python3
"""Exported policies: bytes, latency, memory and returns by format and scheme.

    python scripts/evidence/export_table.py runs/cartpole/int8-s1 runs/halfcheetah/int8-s1 runs/pong-long --budget-s 540

Every row is one ``accel export`` with all its checks, played on its own target. OUT/rows gets one file a row: contract
and report with every raw sample, or why the format refuses the scheme. The same command continues where it stopped;
existing rows are not measured again. OUT/README.md is written from the rows. Games are greedy; where greedy games of
full precision repeat each other, the run's are sampled.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from accel.compressors.errors import CompressorError  # noqa: E402
from accel.errors import AccelError  # noqa: E402
from accel.exporting.build import export  # noqa: E402
from accel.exporting.formats import FORMATS, make_format  # noqa: E402
from accel.reports.markdown import escaped  # noqa: E402
from accel.runs.loading import TrainedRun, load_run  # noqa: E402
from accel.runs.playing import play  # noqa: E402
from accel.system.atomic import write_atomically  # noqa: E402
from accel.system.machine import describe_machine  # noqa: E402

SCHEMES = (
    "fp32",
    "fp16",
    "int8",
    "int8(per_channel)",
    "int4",
    "prune(0.5)+int8",
    "lowrank(0.25)+int8",
)
# students are MLPs, which see images as one long vector
VECTOR_SCHEMES = (*SCHEMES, "distill(32x2)+int8")
LEAST_EPISODES = 20
LEAST_BUDGET_S = 5.0
# repeatability of the median of short calls
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
Row = dict[str, Any]
Cell = tuple[TrainedRun, str, str]


def main() -> int:
    """Parse, export what is missing, write the summary; status 3 when the budget is used and rows are left."""
    options = parse()
    deadline = time.monotonic() + options.budget_s
    torch.set_num_threads(1)
    for format in options.formats:
        make_format(format)  # requirements are checked before work starts
    runs = [load_run(path) for path in options.runs]
    rows_dir = options.out / "rows"
    rows_dir.mkdir(parents=True, exist_ok=True)
    check_names(runs, options, rows_dir)
    left, measured = 0, 0
    for run, scheme, format in cells(runs, options):
        path = rows_dir / row_name(run, scheme, format)
        if is_there(path, run):
            continue
        slowest_s = max(
            (row["seconds"] for row in read_rows(rows_dir) if row["env"] == run.config.environment.env), default=0.0
        )
        remaining_s = deadline - time.monotonic()
        if remaining_s < LEAST_BUDGET_S or (measured and remaining_s < slowest_s):
            left += 1
            continue
        row = export_row(run, scheme, format, options.episodes, is_greedy(run, rows_dir, options.episodes))
        write_atomically(path, (json.dumps(row, indent=1, default=str) + "\n").encode())
        measured += 1
        print(f"{row['seconds']:5.0f} s  {line(row)}", flush=True)
    rows = sorted(read_rows(rows_dir), key=in_order(options))
    write_atomically(options.out / "README.md", summary(rows, left).encode())
    print(f"{options.out} is written; {left} rows are left{': give the same command again' if left else ''}")
    return 3 if left else 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="run directories")
    parser.add_argument("--out", type=Path, default=PROJECT / "results" / "export-table")
    parser.add_argument("--episodes", type=int, default=LEAST_EPISODES, help="per policy, on the same seeds")
    parser.add_argument("--schemes", nargs="*", help="instead of the usual ones")
    parser.add_argument("--formats", nargs="*", default=list(FORMATS))
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin no row after this")
    return parser.parse_args()


def cells(runs: list[TrainedRun], options: argparse.Namespace) -> Iterator[Cell]:
    """What to export, in order: one format after the other, so that a partial result is useful."""
    for format in options.formats:
        for run in runs:
            for scheme in options.schemes or (SCHEMES if run.spec.is_image else VECTOR_SCHEMES):
                yield run, scheme, format


def in_order(options: argparse.Namespace) -> Any:  # noqa: ANN401
    """A sort key of rows: by environment and run, scheme, format."""
    schemes = [*(options.schemes or ()), *VECTOR_SCHEMES]
    formats = [*options.formats, *FORMATS]

    def key(row: Row) -> tuple[object, ...]:
        known = row["scheme"] in schemes
        place = schemes.index(row["scheme"]) if known else len(schemes)
        return row["env"], row["run"], place, row["scheme"], formats.index(row["format"])

    return key


def row_name(run: TrainedRun, scheme: str, format: str) -> str:
    """The file of a row: environment, run, scheme and format."""
    text = "-".join((run.config.environment.env, run.path.resolve().name, scheme, format))
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-") + ".json"


def check_names(runs: list[TrainedRun], options: argparse.Namespace, rows_dir: Path) -> None:
    """Check that every cell has its own file, not shared with another policy."""
    owners: dict[str, Path] = {}
    for run, scheme, format in cells(runs, options):
        name = row_name(run, scheme, format)
        if owners.setdefault(name, run.path) != run.path:
            raise SystemExit(f"{run.path} and {owners[name]} would both be {name}: rename one of them")
        is_there(rows_dir / name, run)


def identity(run: TrainedRun) -> Row:
    """What identifies a policy."""
    config = run.config
    facts = {"run": run.path.resolve().name, "env": config.environment.env, "network": config.policy.network}
    return {**facts, "seed": config.run.seed, "env_steps": run.env_steps, "policy_version": run.version}


def is_there(path: Path, run: TrainedRun) -> bool:
    """Whether the row was measured; a file of another policy is never overwritten, but an error."""
    if not path.exists():
        return False
    row = json.loads(path.read_text())
    other = {key: row.get(key) for key, value in identity(run).items() if row.get(key) != value}
    if other:
        raise SystemExit(f"{path} is of another policy than {run.path}, of {other}: rename the run, or give --out")
    return True


def read_rows(rows_dir: Path) -> list[Row]:
    """All rows that were measured."""
    return [json.loads(path.read_text()) for path in sorted(rows_dir.glob("*.json"))]


def is_greedy(run: TrainedRun, rows_dir: Path, episodes: int) -> bool:
    """Greedy games, unless those of full precision repeat each other; decided once for all rows of a run."""
    for row in read_rows(rows_dir):
        if all(row[key] == value for key, value in identity(run).items()):
            return bool(row["acted"] == "greedy")
    return play(run.compress("fp32"), run, episodes=episodes).caveat is None


def export_row(run: TrainedRun, scheme: str, format: str, episodes: int, greedy: bool) -> Row:
    """Export once; a refusal becomes a row with the reason."""
    row: Row = {**identity(run), "scheme": scheme, "format": format, "acted": "greedy" if greedy else "sampled"}
    row |= {"machine": describe_machine(), "command": ["python", *sys.argv]}
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            bundle = export(
                run, Path(scratch) / "bundle", scheme=scheme, format=format, episodes=episodes, greedy=greedy
            )
        except (AccelError, CompressorError) as error:
            return row | {"refused": str(error), "seconds": time.perf_counter() - started}
    row |= {"contract": bundle.contract, "report": bundle.report}
    return row | {"seconds": time.perf_counter() - started}


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
        "\n".join([_row_text(_HEAD), _row_text(["---"] * len(_HEAD)), *map(line, rows)]),
        "## How it was made",
        "\n".join(_sources(rows)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def line(row: Row) -> str:
    """One row of the Markdown table."""
    start = [row["env"], f"`{row['scheme']}`", row["format"]]
    if "refused" in row:
        return _row_text([*start, f"refused: {escaped(str(row['refused']))}", *[""] * (len(_HEAD) - 4)])
    report = row["report"]
    sizes, latency, mismatch = report["bytes"], report["latency"], report["mismatch"]
    return _row_text(
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


def _row_text(values: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, values))} |"


if __name__ == "__main__":
    sys.exit(main())
