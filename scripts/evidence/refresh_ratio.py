#!/usr/bin/env python
"""A refresh of an int8 policy and its load, against onnxruntime's own way to make one from the same weights.

    python scripts/evidence/refresh_ratio.py        (a minute)

Ours is ``Plan.refresh``, ``to_bytes`` and a ``PolicySession``: what stands between new weights and a policy that acts;
activation ranges were calibrated before, as in a run, where that is done some hundred times more rarely. Theirs is
``quantize_static`` on the same float graph with the same 64 rows to calibrate, and an ``InferenceSession``; the float
file is written before the clock starts. New weights before each, in turns, one thread. OUT/rows.json has every sample.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median

import onnx
import onnxruntime as ort
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

from accel.bench.rows import provenance
from accel.bench.subject import make_subject
from compressors.runtime import PolicySession
from tests.compressors.oracle import float_model

NETWORKS = ("mlp:256x2", "mlp:512x3", "mlp:2048x3")
ROUNDS, ROWS, ENVS = 15, 64, 8


class Once(CalibrationDataReader):
    """One batch."""

    def __init__(self, inputs: dict[str, object]) -> None:
        self._left = iter([inputs])

    def get_next(self) -> dict[str, object] | None:
        """The batch, then nothing."""
        return next(self._left, None)


def main() -> None:
    """Measure every network and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/refresh-ratio"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(network) for network in NETWORKS]
    options.out.mkdir(parents=True, exist_ok=True)
    facts = provenance()
    (options.out / "rows.json").write_text(json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n")
    (options.out / "README.md").write_text(page(rows, facts))
    print(page(rows, facts))


def measure(network: str) -> dict[str, object]:
    """Milliseconds of either way, by round."""
    subject = make_subject(network, None, None, None, "relu")
    module, rows = subject.run.policy, {k: v[:ROWS] for k, v in subject.calibration.items()}
    plans = {scheme: subject.bind(scheme) for scheme in ("fp32", "int8")}
    found: dict[str, list[float]] = {"ours": [], "theirs": []}
    with tempfile.TemporaryDirectory() as directory:
        whole, quantised = Path(directory, "whole.onnx"), Path(directory, "quantised.onnx")
        for version in range(ROUNDS + 1):
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.mul_(1.001)
            onnx.save(float_model(plans["fp32"], module), whole)
            start = time.perf_counter()
            artifact = plans["int8"].refresh(module, version=version)
            artifact.to_bytes()
            PolicySession(artifact, batch=ENVS)
            between = time.perf_counter()
            quantize_static(
                whole, quantised, Once(dict(rows)), activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8
            )
            ort.InferenceSession(quantised, providers=["CPUExecutionProvider"])
            end = time.perf_counter()
            if version:  # the first round has cold caches
                found["ours"].append(1e3 * (between - start))
                found["theirs"].append(1e3 * (end - between))
    return {"network": network, **found}


def page(rows: list[dict[str, object]], facts: dict[str, object]) -> str:
    """The table."""
    lines = [
        "# A refresh and a load, against quantize_static", "",
        "`python scripts/evidence/refresh_ratio.py`; every sample is in `rows.json`. Median of "
        f"{ROUNDS} rounds, least and greatest, milliseconds; one thread, {ROWS} rows to calibrate.", "",
        "| network | refresh, serialise and load | quantize_static and load | ratio |", "|---|---|---|---:|",
    ]  # fmt: skip
    for row in rows:
        ours, theirs = row["ours"], row["theirs"]
        cells = [f"{median(v):.3g} ({min(v):.3g} to {max(v):.3g})" for v in (ours, theirs)]  # type: ignore[type-var, call-overload]
        ratio = median(t / o for o, t in zip(ours, theirs, strict=True))  # type: ignore[call-overload]
        lines.append(f"| {row['network']} | {' | '.join(cells)} | {ratio:.1f} |")
    return "\n".join([*lines, "", f"{facts['cpu']}, onnxruntime {facts['onnxruntime']}, commit {facts['commit']}.", ""])


if __name__ == "__main__":
    main()
