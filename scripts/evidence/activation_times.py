#!/usr/bin/env python
"""One policy call in compiled kernels and on onnxruntime, int8, for every activation, all of them in turns.

    python scripts/evidence/activation_times.py --seconds 110

MLPs of 256×2 and 512×3 with random weights, one LayerNorm before each ELU of 512-256-128, steps of an LSTM and a GRU,
and the Nature CNN; batches of 1 and 8, one thread. Prints the third percentile of each in µs: few machines are idle.
Every sample goes to OUT/activations.json.gz.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel.bench.policies import Policies
from accel.bench.policy import session_call
from accel.bench.rows import provenance
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.pipeline import make_compressor
from accel.networks.dense import FUNCTIONS
from accel.system.timing import interleave, timed_calls
from scripts.evidence.samples import arguments, write_samples

NETWORKS = ("mlp:256x2", "mlp:512x3")
OTHERS = ("mlp:64x1+lstm:128", "mlp:128x1+gru:128", "nature-cnn")
SAMPLE_S, ROUNDS = 3e-4, 100_000


def normalised() -> nn.Module:
    """LayerNorm and ELU between dense layers."""
    sizes = (64, 512, 256, 128)
    layers = [layer for i, o in pairwise(sizes) for layer in (nn.Linear(i, o), nn.LayerNorm(o), nn.ELU())]
    return nn.Sequential(*layers, nn.Linear(128, 4))


def main() -> None:
    """Measure, print, write the samples."""
    parser = arguments(__doc__, "policy-time")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    made: dict[tuple[str, str], tuple[CompressedPolicy, Mapping[str, np.ndarray]]] = {}
    for network, activation in [*((n, a) for n in NETWORKS for a in FUNCTIONS), *((n, "tanh") for n in OTHERS)]:
        (policy,) = Policies([network], activation=activation)
        made[network, activation] = policy.artifacts(["int8"], print)["int8"], policy.held_out
    inputs = {"observations": rng.standard_normal((512, 64), np.float32)}
    module, examples = normalised(), {"observations": torch.zeros(1, 64)}
    plan = make_compressor("int8").bind(module, examples, inputs, output_names=["params"])
    made["512-256-128", "LayerNorm, ELU"] = plan.refresh(module, version=1), inputs
    groups: dict[str, dict[tuple[str, ...], Callable[[], float]]] = {}
    for (network, between), (artifact, arrays) in made.items():
        for batch in (1, 8):
            rows = {name: np.resize(array, (batch, *array.shape[1:])) for name, array in arrays.items()}
            for runtime in ("onnxruntime", "native"):
                key = (network, between, str(batch), runtime)
                groups.setdefault(network, {})[key] = timed_calls(session_call(artifact, rows, runtime), SAMPLE_S)
    samples: dict[tuple[str, ...], Sequence[float]] = {}
    count = sum(map(len, groups.values()))
    for cells in groups.values():
        samples |= interleave(cells, options.seconds * len(cells) / count, ROUNDS).samples
    us = {key: float(np.percentile(times, 3)) for key, times in samples.items()}
    for *cell, runtime in us:
        if runtime == "native":
            ours, theirs = (us[*cell, which] for which in ("native", "onnxruntime"))
            print(f"{' | '.join(cell)} | {theirs:.1f} | {ours:.1f} | {theirs / ours:.1f}")
    us_of = {" | ".join(key): np.round(times, 2).tolist() for key, times in samples.items()}
    write_samples(options.out / "activations.json.gz", {"provenance": provenance(), "us": us_of})


if __name__ == "__main__":
    main()
