"""Off-policy corrections: pure functions on time-major torch tensors.

    from accel.correctors import nstep, retrace, vtrace

Names are resolved on first use: importing the package alone imports no torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accel.correctors.checks import CorrectorError as CorrectorError
    from accel.correctors.checks import DtypeError as DtypeError
    from accel.correctors.checks import OptionError as OptionError
    from accel.correctors.checks import ShapeError as ShapeError
    from accel.correctors.nstep import nstep as nstep
    from accel.correctors.retrace import RetraceReturns as RetraceReturns
    from accel.correctors.retrace import retrace as retrace
    from accel.correctors.vtrace import VTraceReturns as VTraceReturns
    from accel.correctors.vtrace import vtrace as vtrace

_HOMES = {
    "CorrectorError": "checks",
    "DtypeError": "checks",
    "OptionError": "checks",
    "ShapeError": "checks",
    "nstep": "nstep",
    "RetraceReturns": "retrace",
    "retrace": "retrace",
    "VTraceReturns": "vtrace",
    "vtrace": "vtrace",
}

__all__ = sorted(_HOMES)


class _Package(ModuleType):
    """Keeps ``accel.correctors.vtrace`` the function: importing the submodule would bind the module over it."""

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
