"""``accel.sweep``: search compression policies with Optuna, after training or in training.

Names resolve on first use, so that reading the command line loads neither Optuna nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from accel.errors import MissingExtraError
from accel.system.extras import install_command, missing_distributions

if TYPE_CHECKING:
    from accel.sweep.driver import SweepResult, sweep_run, sweep_training
    from accel.sweep.population import PopulationResult, sweep_population
    from accel.sweep.search import CandidateOptions, SearchOptions

_HOMES = {
    "CandidateOptions": "search",
    "PopulationResult": "population",
    "SearchOptions": "search",
    "SweepResult": "driver",
    "sweep_population": "population",
    "sweep_run": "driver",
    "sweep_training": "driver",
}

__all__ = [
    "CandidateOptions", "PopulationResult", "SearchOptions", "SweepResult", "sweep_population",
    "sweep_run", "sweep_training",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Raises MissingExtraError: Optuna or matplotlib is not installed."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if missing := missing_distributions("sweep"):
        raise MissingExtraError(f"accel sweep needs {' and '.join(missing)}: {install_command('sweep')}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
