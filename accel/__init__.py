"""Compression-aware accelerated actors: int8 policies act under MPI, one torch learner corrects for it.

    import accel

    print(accel.train(accel.TrainConfig(env="CartPole-v1", total_env_steps=200_000)).text())

Names are resolved on first use: an actor imports this package and never loads torch.
"""

from __future__ import annotations

from importlib import import_module
from os.path import exists
from typing import TYPE_CHECKING

from accel.version import __version__

if TYPE_CHECKING:
    from accel.bench.actor import bench_actor
    from accel.bench.policies import Policies
    from accel.bench.policy import bench_policy
    from accel.bench.refresh import bench_refresh
    from accel.cli.doctor import MachineReport, doctor
    from accel.config import TrainConfig
    from accel.errors import AccelError
    from accel.exporting.build import Bundle, export
    from accel.exporting.verify import Verification, verify
    from accel.imports.policy import compress
    from accel.launch.train import train
    from accel.reports.reporting import compare, report
    from accel.reports.watch import watch
    from accel.runs.evaluation import Evaluation, evaluate
    from accel.runs.loading import TrainedRun, load_run
    from accel.runs.summary import Summary
    from accel.sweep.driver import sweep_run, sweep_training
    from accel.sweep.population import sweep_population

_HOMES = {
    "AccelError": "errors",
    "Bundle": "exporting.build",
    "Evaluation": "runs.evaluation",
    "MachineReport": "cli.doctor",
    "Summary": "runs.summary",
    "TrainConfig": "config",
    "TrainedRun": "runs.loading",
    "Verification": "exporting.verify",
    "Policies": "bench.policies",
    "bench_actor": "bench.actor",
    "bench_policy": "bench.policy",
    "bench_refresh": "bench.refresh",
    "compare": "reports.reporting",
    "compress": "imports.policy",
    "doctor": "cli.doctor",
    "evaluate": "runs.evaluation",
    "export": "exporting.build",
    "load_run": "runs.loading",
    "report": "reports.reporting",
    "sweep_population": "sweep.population",
    "sweep_run": "sweep.driver",
    "sweep_training": "sweep.driver",
    "train": "launch.train",
    "verify": "exporting.verify",
    "watch": "reports.watch",
}

__all__ = [
    "AccelError",
    "Bundle",
    "Evaluation",
    "MachineReport",
    "Policies",
    "Summary",
    "TrainConfig",
    "TrainedRun",
    "Verification",
    "__version__",
    "bench_actor",
    "bench_policy",
    "bench_refresh",
    "compare",
    "compress",
    "doctor",
    "evaluate",
    "export",
    "load_run",
    "report",
    "sweep_population",
    "sweep_run",
    "sweep_training",
    "train",
    "verify",
    "watch",
]


_IS_RUNTIME = exists(f"{__path__[0]}/RUNTIME.md")  # the distribution for devices, which is a part of this package
if _IS_RUNTIME and exists(f"{__path__[0]}/launch"):
    raise ImportError(
        "accel-rl and accel-rl-runtime are installed in one place, where each overwrites the other's files: "
        "pip uninstall both, and install accel-rl again, which has all of the runtime"
    )


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        if _IS_RUNTIME:
            raise ImportError(f"accel.{name} is not in accel-rl-runtime: install accel-rl instead") from error
        from accel.system.extras import missing_extra

        if missing := missing_extra(error, f"accel.{name}"):
            raise missing from error
        raise
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
