"""Measures, records and reports: phase timers, metrics, statistics, mismatch. Numbers in, decisions and pictures out.

    from monitor import PhaseTimer, Recorder, bootstrap_interval

Names are resolved on first use, so that importing one module never loads what another needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monitor.errors import MonitorError, PhaseError, RecorderError, StatisticsError
    from monitor.recorder import Recorder, read_metrics
    from monitor.statistics import (
        Interval,
        bootstrap_interval,
        interquartile_mean,
        mean_interval,
        quantiles,
        student_t_quantile,
        wilson_interval,
    )
    from monitor.timers import CudaPhaseTimer, PhaseTimer, PhaseTimes

_HOMES = {
    "CudaPhaseTimer": "timers",
    "Interval": "statistics",
    "MonitorError": "errors",
    "PhaseError": "errors",
    "PhaseTimer": "timers",
    "PhaseTimes": "timers",
    "Recorder": "recorder",
    "RecorderError": "errors",
    "StatisticsError": "errors",
    "bootstrap_interval": "statistics",
    "interquartile_mean": "statistics",
    "mean_interval": "statistics",
    "quantiles": "statistics",
    "read_metrics": "recorder",
    "student_t_quantile": "statistics",
    "wilson_interval": "statistics",
}

__all__ = [
    "CudaPhaseTimer",
    "Interval",
    "MonitorError",
    "PhaseError",
    "PhaseTimer",
    "PhaseTimes",
    "Recorder",
    "RecorderError",
    "StatisticsError",
    "bootstrap_interval",
    "interquartile_mean",
    "mean_interval",
    "quantiles",
    "read_metrics",
    "student_t_quantile",
    "wilson_interval",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
