"""Benchmarks behind ``accel bench``: each measures one part of training on this machine and returns flat rows.

    from accel.bench import Policies, bench_policy

    for row in bench_policy(Policies(["mlp:64x2"]), batches=[8], schemes=["fp32", "int8"], seconds=2):
        print(row["runtime"], row["scheme"], row["us"])

Names are resolved on first use: importing this package loads neither torch nor onnxruntime.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accel.bench.actor import bench_actor
    from accel.bench.learner import bench_learner
    from accel.bench.policies import Policies
    from accel.bench.policy import bench_policy
    from accel.bench.refresh import bench_refresh

_HOMES = {
    "Policies": "policies",
    "bench_actor": "actor",
    "bench_learner": "learner",
    "bench_policy": "policy",
    "bench_refresh": "refresh",
}

__all__ = [
    "Policies",
    "bench_actor",
    "bench_learner",
    "bench_policy",
    "bench_refresh",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
