#!/usr/bin/env python3
"""What exporting trained policies costs and saves: format × scheme → bytes, latency, memory, returns.

    python scripts/evidence/export_table.py runs/cartpole/int8-s1 runs/halfcheetah/int8-s1 runs/pong-long --budget-s 540

Every row is one ``accel export`` with all its checks, played on its own target. OUT/rows gets one file a row: contract
and report with every raw sample, or why the format refuses the scheme. The same command goes on where it stopped; rows
that are there are not measured again. OUT/README.md is written from the rows. Games are greedy; where greedy games of
full precision repeat each other, the run's are sampled.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT), str(Path(__file__).parent)]

from export_summary import line, summary  # noqa: E402

from accel.errors import AccelError  # noqa: E402
from accel.exporting.build import export  # noqa: E402
from accel.exporting.formats import FORMATS, make_format  # noqa: E402
from accel.runs.loading import TrainedRun, load_run  # noqa: E402
from accel.runs.playing import play  # noqa: E402
from accel.system.atomic import write_atomically  # noqa: E402
from accel.system.machine import describe_machine  # noqa: E402
from compressors.errors import CompressorError  # noqa: E402

SCHEMES = (
    "fp32",
    "fp16",
    "int8",
    "int8(per_channel)",
    "int8-dynamic",
    "int4",
    "prune(0.5)+int8",
    "lowrank(0.25)+int8",
)
# students are MLPs, which see images as one long vector
VECTOR_SCHEMES = (*SCHEMES, "distill(32x2)+int8")
LEAST_EPISODES = 20
LEAST_BUDGET_S = 5.0
Row = dict[str, Any]
Cell = tuple[TrainedRun, str, str]


def main() -> int:
    """Parse, export what is missing, write the summary; status 3 when the budget is used and rows are left."""
    options = parse()
    deadline = time.monotonic() + options.budget_s
    torch.set_num_threads(1)
    for format in options.formats:
        make_format(format)  # what it needs is asked for before work starts
    runs = [load_run(path) for path in options.runs]
    rows_dir = options.out / "rows"
    rows_dir.mkdir(parents=True, exist_ok=True)
    check_names(runs, options, rows_dir)
    left, measured = 0, 0
    for run, scheme, format in cells(runs, options):
        path = rows_dir / row_name(run, scheme, format)
        if is_there(path, run):
            continue
        slowest_s = max((row["seconds"] for row in read_rows(rows_dir) if row["env"] == run.config.env), default=0.0)
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
    """What to export, in the order of work: one format after the other, so that a part of it is of use."""
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
    text = "-".join((run.config.env, run.path.resolve().name, scheme, format))
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-") + ".json"


def check_names(runs: list[TrainedRun], options: argparse.Namespace, rows_dir: Path) -> None:
    """Every cell has a file of its own, which is not another policy's."""
    owners: dict[str, Path] = {}
    for run, scheme, format in cells(runs, options):
        name = row_name(run, scheme, format)
        if owners.setdefault(name, run.path) != run.path:
            raise SystemExit(f"{run.path} and {owners[name]} would both be {name}: rename one of them")
        is_there(rows_dir / name, run)


def identity(run: TrainedRun) -> Row:
    """What tells one policy from another."""
    config = run.config
    facts = {"run": run.path.resolve().name, "env": config.env, "network": config.network}
    return {**facts, "seed": config.seed, "env_steps": run.env_steps, "policy_version": run.version}


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
    """Export once; what cannot be exported is a row that says why."""
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


if __name__ == "__main__":
    sys.exit(main())
