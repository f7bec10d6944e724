"""Measures, records and reports: phase timers, metrics, statistics, mismatch. Numbers in, decisions and pictures out.

    from monitor import PhaseTimer, Recorder, bootstrap_interval

Names are resolved on first use, so that importing one module never loads what another needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monitor.annealing import AnnealingSchedule
    from monitor.decisions import Decision, DecisionLog, read_decisions
    from monitor.divergence import Divergences, divergences
    from monitor.errors import MismatchError, MonitorError, PhaseError, RecorderError, StatisticsError, TunerError
    from monitor.mismatch import (
        Alarm,
        FactoredMismatch,
        Mismatch,
        effective_horizon,
        factor_mismatch,
        measure_mismatch,
        trace_retention,
    )
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
    from monitor.tuner import Tuner
    from monitor.tuner_measurements import LevelMeasurement, Measurements, TunerOptions, Verdict
    from monitor.tuner_rates import RateTable
    from monitor.tuner_returns import ReturnComparison, ReturnLedger

_HOMES = {
    "Alarm": "mismatch",
    "AnnealingSchedule": "annealing",
    "CudaPhaseTimer": "timers",
    "Decision": "decisions",
    "DecisionLog": "decisions",
    "Divergences": "divergence",
    "FactoredMismatch": "mismatch",
    "Interval": "statistics",
    "LevelMeasurement": "tuner_measurements",
    "Measurements": "tuner_measurements",
    "Mismatch": "mismatch",
    "MismatchError": "errors",
    "MonitorError": "errors",
    "PhaseError": "errors",
    "PhaseTimer": "timers",
    "PhaseTimes": "timers",
    "RateTable": "tuner_rates",
    "Recorder": "recorder",
    "RecorderError": "errors",
    "ReturnComparison": "tuner_returns",
    "ReturnLedger": "tuner_returns",
    "StatisticsError": "errors",
    "Tuner": "tuner",
    "TunerError": "errors",
    "TunerOptions": "tuner_measurements",
    "Verdict": "tuner_measurements",
    "bootstrap_interval": "statistics",
    "divergences": "divergence",
    "effective_horizon": "mismatch",
    "factor_mismatch": "mismatch",
    "interquartile_mean": "statistics",
    "mean_interval": "statistics",
    "measure_mismatch": "mismatch",
    "quantiles": "statistics",
    "read_decisions": "decisions",
    "read_metrics": "recorder",
    "student_t_quantile": "statistics",
    "trace_retention": "mismatch",
    "wilson_interval": "statistics",
}

__all__ = [
    "Alarm",
    "AnnealingSchedule",
    "CudaPhaseTimer",
    "Decision",
    "DecisionLog",
    "Divergences",
    "FactoredMismatch",
    "Interval",
    "LevelMeasurement",
    "Measurements",
    "Mismatch",
    "MismatchError",
    "MonitorError",
    "PhaseError",
    "PhaseTimer",
    "PhaseTimes",
    "RateTable",
    "Recorder",
    "RecorderError",
    "ReturnComparison",
    "ReturnLedger",
    "StatisticsError",
    "Tuner",
    "TunerError",
    "TunerOptions",
    "Verdict",
    "bootstrap_interval",
    "divergences",
    "effective_horizon",
    "factor_mismatch",
    "interquartile_mean",
    "mean_interval",
    "measure_mismatch",
    "quantiles",
    "read_decisions",
    "read_metrics",
    "student_t_quantile",
    "trace_retention",
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
