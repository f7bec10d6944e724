"""Numbers that are not finite in what environments sent: found before anything learns from them. No torch.

Rows that count for nothing may hold anything: the rewards of automatic resets, and the observation after a termination.
They are overwritten with zeros, as 0 · NaN is NaN. A value that counts costs its environment's part of the unroll: its
rows become invalid, and the fault says which actor, environment and field.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from accel.experience.unroll import Unroll

_FIELDS = ("observations", "final_observations", "rewards", "behaviour_log_prob", "behaviour_params")


@dataclass(frozen=True)
class Fault:
    """One environment's value that is not finite, in a row that counts."""

    environment: int
    field: str
    row: int

    def text(self, actor: int) -> str:
        """A sentence for the log."""
        return (
            f"actor {actor}: environment {self.environment} gave a {self.field} that is not finite in row {self.row}; "
            "its part of this unroll is left out"
        )


def remove_faults(unroll: Unroll) -> list[Fault]:
    """Zero what is not finite, and invalidate the environments whose rows count; writes into the unroll's buffer."""
    faults: list[Fault] = []
    floats = [name for name in _FIELDS if name in unroll and unroll[name].dtype.kind == "f"]
    # One sum finds out that all is well; a sum that overflows is looked at closely, no more.
    with np.errstate(over="ignore", invalid="ignore"):
        if all(math.isfinite(unroll[name].sum()) for name in floats):
            return faults
    for name in floats:
        values = unroll[name]
        finite = np.isfinite(values)
        bad = ~finite.reshape(*finite.shape[:2], -1).all(-1)
        values[~finite] = 0.0
        counts = bad & _rows_that_count(unroll, name)
        for environment in np.flatnonzero(counts.any(0)).tolist():
            faults.append(Fault(environment, name.removesuffix("s"), int(np.flatnonzero(counts[:, environment])[0])))
    for environment in {fault.environment for fault in faults}:
        unroll["valid"][:, environment] = False
    if faults:
        unroll["header"][2] = np.count_nonzero(unroll["valid"][:-1])
    return faults


def _rows_that_count(unroll: Unroll, name: str) -> npt.NDArray[np.bool_]:
    """[rows of the field, B]: rows that a learner reads."""
    valid = unroll["valid"].view(np.bool_)
    if name == "observations":
        # A final observation is read where the row before it was truncated, for the bootstrap.
        counts = valid.copy()
        counts[1:] |= unroll["truncated"].view(np.bool_)
        return counts
    if name == "final_observations":
        return unroll["truncated"].view(np.bool_)
    return valid[:-1]
