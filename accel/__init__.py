"""Compression-aware accelerated actors: int8 policies act under MPI, one torch learner corrects for it.

    import accel

    print(accel.train(accel.TrainConfig(env="CartPole-v1", total_env_steps=200_000)).text())

Names are resolved on first use: an actor imports this package and never loads torch.
"""

from __future__ import annotations

from importlib import import_module
from os.path import exists
from typing import TYPE_CHECKING

from accel.version import __version__ as __version__

if TYPE_CHECKING:
    from accel.bench.actor import bench_actor as bench_actor
    from accel.bench.policies import Policies as Policies
    from accel.bench.policy import bench_policy as bench_policy
    from accel.bench.refresh import bench_refresh as bench_refresh
    from accel.cli.doctor import MachineReport as MachineReport
    from accel.cli.doctor import doctor as doctor
    from accel.config import TrainConfig as TrainConfig
    from accel.errors import AccelError as AccelError
    from accel.exporting.build import Bundle as Bundle
    from accel.exporting.build import export as export
    from accel.exporting.verify import Verification as Verification
    from accel.exporting.verify import verify as verify
    from accel.imports.policy import compress as compress
    from accel.launch.train import train as train
    from accel.reports.reporting import compare as compare
    from accel.reports.reporting import report as report
    from accel.reports.watch import watch as watch
    from accel.runs.evaluation import Evaluation as Evaluation
    from accel.runs.evaluation import evaluate as evaluate
    from accel.runs.loading import TrainedRun as TrainedRun
    from accel.runs.loading import load_run as load_run
    from accel.runs.summary import Summary as Summary
    from accel.sweep.driver import sweep_run as sweep_run
    from accel.sweep.driver import sweep_training as sweep_training
    from accel.sweep.population import sweep_population as sweep_population

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

__all__ = sorted((*_HOMES, "__version__"))

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
    return __all__
