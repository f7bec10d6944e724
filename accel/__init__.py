"""Compression-aware accelerated actors: int8 policies act under MPI, one torch learner corrects for it.

    import accel

    print(accel.train(accel.TrainConfig(env="CartPole-v1", total_env_steps=200_000)).text())

Names are resolved on first use: an actor imports this package and never loads torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accel.bench import bench_actor, bench_correctors, bench_policy, bench_refresh, bench_transport
    from accel.config import TrainConfig
    from accel.doctor import Report, doctor
    from accel.errors import AccelError
    from accel.evaluation import Evaluation, evaluate
    from accel.exporting.bundle import Bundle, export
    from accel.launch import train
    from accel.loading import TrainedRun, load_run
    from accel.reporting import compare, report
    from accel.summary import Summary
    from accel.sweep import sweep_run, sweep_training
    from accel.verification import Verification, verify
    from accel.watching import watch

__version__ = "0.1.0"

_HOMES = {
    "AccelError": "errors",
    "Bundle": "exporting.bundle",
    "Evaluation": "evaluation",
    "Report": "doctor",
    "Summary": "summary",
    "TrainConfig": "config",
    "TrainedRun": "loading",
    "Verification": "verification",
    "bench_actor": "bench",
    "bench_correctors": "bench",
    "bench_policy": "bench",
    "bench_refresh": "bench",
    "bench_transport": "bench",
    "compare": "reporting",
    "doctor": "doctor",
    "evaluate": "evaluation",
    "export": "exporting.bundle",
    "load_run": "loading",
    "report": "reporting",
    "sweep_run": "sweep",
    "sweep_training": "sweep",
    "train": "launch",
    "verify": "verification",
    "watch": "watching",
}

__all__ = [
    "AccelError",
    "Bundle",
    "Evaluation",
    "Report",
    "Summary",
    "TrainConfig",
    "TrainedRun",
    "Verification",
    "__version__",
    "bench_actor",
    "bench_correctors",
    "bench_policy",
    "bench_refresh",
    "bench_transport",
    "compare",
    "doctor",
    "evaluate",
    "export",
    "load_run",
    "report",
    "sweep_run",
    "sweep_training",
    "train",
    "verify",
    "watch",
]


class _Package(ModuleType):
    """Keeps ``accel.doctor`` the function: importing the submodule would otherwise bind the module over it."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
