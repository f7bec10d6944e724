"""``accel.sweep``: search compression policies with Optuna, after training or in training.

Names resolve on first use, so that reading the command line loads neither Optuna nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accel.sweep.choices import ChoiceOptions
    from accel.sweep.driver import SweepResult
    from accel.sweep.entry import CandidateOptions, SearchOptions, sweep_run, sweep_training
    from accel.sweep.errors import SweepError

_HOMES = {
    "CandidateOptions": "entry",
    "ChoiceOptions": "choices",
    "SearchOptions": "entry",
    "SweepError": "errors",
    "SweepResult": "driver",
    "sweep_run": "entry",
    "sweep_training": "entry",
}

__all__ = [
    "CandidateOptions",
    "ChoiceOptions",
    "SearchOptions",
    "SweepError",
    "SweepResult",
    "sweep_run",
    "sweep_training",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
