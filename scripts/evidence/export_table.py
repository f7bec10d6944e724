#!/usr/bin/env python3
"""What exporting trained policies costs and saves: format × scheme → bytes, latency, return difference.

    python scripts/evidence/export_table.py results/cartpole results/halfcheetah results/pong

Every row is one ``accel export`` with all its checks; its report, raw samples included, is kept beside the table.
Returns are played once per scheme, as onnx; image policies are compiled to C in int8 only, which takes long enough.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from accel.errors import AccelError
from accel.exporting.bundle import export
from accel.exporting.formats import FORMATS
from accel.loading import TrainedRun, load_run
from accel.machine import describe_machine
from compressors.errors import CompressorError

VECTOR_SCHEMES = ("fp32", "fp16", "int8", "prune(0.5)+int8", "distill(32x2)+int8")
IMAGE_SCHEMES = ("fp32", "int8", "prune(0.5)+int8")
Row = dict[str, Any]


def main() -> int:
    """Parse, export everything, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="run directories")
    parser.add_argument("--out", type=Path, default=Path("results/export-table"), help="replaced if it is there")
    parser.add_argument("--episodes", type=int, default=20, help="per policy, on the same seeds")
    parser.add_argument("--image-episodes", type=int, default=8, help="the same for image policies")
    parser.add_argument("--play-all", action="store_true", help="play on every target, not on onnxruntime alone")
    parser.add_argument("--schemes", nargs="*", help="instead of the usual ones")
    parser.add_argument("--formats", nargs="*", default=list(FORMATS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    shutil.rmtree(options.out, ignore_errors=True)
    (options.out / "reports").mkdir(parents=True)
    rows: list[Row] = []
    for path in options.runs:
        run = load_run(path)
        for row in table_rows(run, options):
            rows.append(row)
            print(f"{time.perf_counter() - started:5.0f} s  {line(row)}", flush=True)
    write(options.out, rows)
    print(f"{options.out} is written, after {time.perf_counter() - started:.0f} s")
    return 0


def table_rows(run: TrainedRun, options: argparse.Namespace) -> Iterator[Row]:
    """One row per scheme and format, onnx first: its return stands for the others' where those are not played."""
    is_image = run.spec.is_image
    for scheme in options.schemes or (IMAGE_SCHEMES if is_image else VECTOR_SCHEMES):
        for format in options.formats:
            if is_image and format == "c" and scheme != "int8":
                continue
            episodes = options.image_episodes if is_image else options.episodes
            if format != "onnx" and not options.play_all:
                episodes = 0
            yield export_row(run, scheme, format, episodes, options.out)


def export_row(run: TrainedRun, scheme: str, format: str, episodes: int, out: Path) -> Row:
    """Export once and keep the report; what cannot be exported is a row that says why."""
    row: Row = {"run": run.path.name, "env": run.config.env, "network": run.config.network}
    row |= {"scheme": scheme, "format": format}
    with tempfile.TemporaryDirectory() as scratch:
        try:
            bundle = export(run, Path(scratch) / "bundle", scheme=scheme, format=format, episodes=episodes)
        except (AccelError, CompressorError) as error:
            return row | {"refused": str(error)}
    report = bundle.report
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{run.path.name}-{scheme}-{format}").strip("-")
    text = json.dumps({"contract": bundle.contract, "report": report}, indent=1, default=str)
    (out / "reports" / f"{name}.json").write_text(text + "\n")
    return row | {
        "bytes": report["bytes"],
        "latency": report["latency"],
        "mismatch": report["mismatch"],
        "returns": report["returns"],
        "compiled": bundle.contract["target"].get("compiled"),
    }


def line(row: Row) -> str:
    """One row of the Markdown table."""
    start = f"| {row['env']} | {row['network']} | {row['scheme']} | {row['format']} "
    if "refused" in row:
        return f"{start}| refused: {row['refused']} | | | | | |"
    sizes, latency, mismatch, returns = row["bytes"], row["latency"], row["mismatch"], row["returns"]
    played = "see onnx | "
    if returns is not None:
        difference = returns["difference"]
        ends = (
            "-"
            if difference is None
            else f"{difference['estimate']:+.4g} [{difference['low']:.4g}, {difference['high']:.4g}]"
        )
        played = f"{returns['model']['mean']:.5g} / {returns['fp32']['mean']:.5g} | {ends}"
    return (
        f"{start}| {sizes['model']:,} | {sizes['ratio']:.2f} | {latency['model']['p50_us']:.1f} / "
        f"{latency['model']['p99_us']:.1f} | {latency['speed_up_p50']:.2f} | {mismatch['relative']:.1e} / "
        f"{mismatch['greedy_agreement']:.1%} | {played} |"
    )


def write(out: Path, rows: list[Row]) -> None:
    """table.md, table.json and what produced them."""
    head = [
        "# Exported policies: format × scheme",
        "",
        "Sizes and speeds are against the fp32 ONNX model on onnxruntime: bytes of the model (of compiled code and "
        "constants for C), medians of one call with one observation on one thread, measured in turns. Returns are "
        "greedy, on the same seeds as full precision; the difference has its 95 % interval (Student's t, by seed). "
        "Mismatch is the relative difference of distribution parameters on real inputs, and the share of equal greedy "
        "actions. A format whose return was not played computes what onnx does to within the bound in its contract.",
        "",
        f"Command: `{' '.join(['python', *sys.argv])}`; machine and commit in table.json, raw samples in reports/.",
        "",
        "| environment | network | scheme | format | bytes | × smaller | p50 / p99 µs | × as fast | mismatch / "
        "same action | return / fp32's | difference |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    (out / "table.md").write_text("\n".join([*head, *map(line, rows)]) + "\n")
    document = {"command": ["python", *sys.argv], "machine": describe_machine(), "rows": rows}
    (out / "table.json").write_text(json.dumps(document, indent=1, default=str) + "\n")


if __name__ == "__main__":
    sys.exit(main())
