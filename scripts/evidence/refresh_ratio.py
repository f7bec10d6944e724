#!/usr/bin/env python
"""A refresh of an int8 policy and its load, against onnxruntime's own way to make one from the same weights.

    python scripts/evidence/refresh_ratio.py        (a minute)

Ours is ``Plan.refresh``, ``to_bytes`` and a ``PolicySession``, on compiled kernels and on onnxruntime: what stands
between new weights and a policy that acts; activation ranges were calibrated before, as in a run, where that is done
some hundred times more rarely. Theirs is ``quantize_static`` on the same float graph with the same 64 rows to
calibrate, and an ``InferenceSession``; the float file is written before the clock starts. New weights before each, one
thread.

Measured in two ways: in turns, so that either finds the processor's caches as the other left them, and repeated, each
after itself. A run is between the two: a publication follows an update. OUT/rows.json.gz has the samples.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import onnx
import onnxruntime as ort
import torch
from onnxruntime.quantization import QuantType, quantize_static

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel.bench.policies import Policies
from accel.bench.rows import provenance
from accel.compressors.kernels.library import why_none
from accel.compressors.runtime import PolicySession, Runtime
from scripts.evidence.foreign_policies import Once
from scripts.evidence.samples import arguments, write_samples
from tests.compressors.oracle import float_model

NETWORKS = ("mlp:256x2", "mlp:512x3", "mlp:2048x3")
ROUNDS, ROWS, ENVS = 15, 64, 8


def main() -> None:
    """Measure every network and write the page."""
    parser = arguments(__doc__, "refresh-ratio")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(network) for network in NETWORKS]
    facts = provenance()
    write_samples(options.out / "rows.json.gz", {"machine": facts, "rows": rows})
    (options.out / "README.md").write_text(page(rows, facts))
    print(page(rows, facts))


def measure(network: str) -> dict[str, Any]:
    """Milliseconds of every way, by round, in turns and repeated."""
    (policy,) = Policies([network], activation="relu")
    module, rows = policy.run.policy, {k: v[:ROWS] for k, v in policy.calibration.items()}
    plans = {scheme: policy.bind(scheme) for scheme in ("fp32", "int8")}

    def change() -> None:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(1.001)

    def load(runtime: Runtime) -> None:
        artifact = plans["int8"].refresh(module, version=1)
        artifact.to_bytes()
        if PolicySession(artifact, batch=ENVS, runtime=runtime).runtime != runtime:
            raise SystemExit(f"no kernels: {why_none()}")

    def native() -> None:
        load("native")

    def onnxruntime() -> None:
        load("onnxruntime")

    with tempfile.TemporaryDirectory() as directory:
        whole, quantised = Path(directory, "whole.onnx"), Path(directory, "quantised.onnx")

        def theirs() -> None:
            quantize_static(
                whole, quantised, Once(dict(rows)), activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8
            )
            ort.InferenceSession(quantised, providers=["CPUExecutionProvider"])

        def timed(way: Callable[[], None]) -> float:
            start = time.perf_counter()
            way()
            return 1e3 * (time.perf_counter() - start)

        ways = (native, theirs, onnxruntime, theirs)  # theirs before each of ours; its second times are not kept

        def turn() -> list[float]:
            change()
            onnx.save(float_model(plans["fp32"], module), whole)
            return [timed(way) for way in ways]

        def again(way: Callable[[], None]) -> float:
            change()
            return timed(way)

        turns = [turn() for _ in range(ROUNDS + 1)][1:]  # the first one pays for imports
        columns = list(zip(*turns, strict=True))
        found = {"native": columns[0], "onnxruntime": columns[2], "theirs": columns[1]}
        found |= {f"{way.__name__}_repeated": [again(way) for _ in range(ROUNDS + 1)][1:] for way in ways[:3]}
    return {"network": network, **found}


def page(rows: list[dict[str, Any]], facts: dict[str, object]) -> str:
    """The table."""
    lines = [
        "# A refresh and a load, against quantize_static", "",
        "`python scripts/evidence/refresh_ratio.py`; the samples are in `rows.json.gz`. Median of "
        f"{ROUNDS} rounds, least and greatest, milliseconds; one thread, {ROWS} rows to calibrate. Loaded on compiled "
        "kernels, as by default, and on onnxruntime. In turns "
        "either finds the caches as the other left them, repeated as it left them itself; in a run "
        "a publication follows an update.",
        "",
        "| network | | refresh, serialise, load | quantize_static, load | ratio | loaded on onnxruntime | ratio |",
        "|---|---|---|---|---:|---|---:|",
    ]  # fmt: skip
    for row in rows:
        for way, ending in (("in turns", ""), ("repeated", "_repeated")):
            native, theirs, other = (row[f"{name}{ending}"] for name in ("native", "theirs", "onnxruntime"))
            cells = [f"{median(v):.3g} ({min(v):.3g} to {max(v):.3g})" for v in (native, theirs, other)]
            ratios = [f"{median(theirs) / median(v):.1f}" for v in (native, other)]
            cells = [*cells[:2], ratios[0], cells[2], ratios[1]]
            lines.append(f"| {row['network']} | {way} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"{facts['cpu']}, onnxruntime {facts['onnxruntime']}, commit {facts['commit']}.", ""])


if __name__ == "__main__":
    main()
