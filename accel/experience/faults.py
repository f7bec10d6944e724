"""Finds values from environments that are not finite, before they are learned from. No torch.

Invalid rows may hold any value: rewards of automatic resets, the observation after a termination, and the action taken
on it. These are overwritten with zeros, as 0 · NaN is NaN. For a value in a valid row, the environment's part of the
unroll becomes invalid, and the fault names actor, environment and field; what the policy made of such an observation is
no fault.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from accel.experience.unroll import Unroll

Array = npt.NDArray[np.generic]
_FIELDS = ("observations", "final_observations", "rewards", "actions", "behaviour_log_prob", "behaviour_params")


@dataclass(frozen=True)
class Fault:
    """A value of one environment that is not finite, in a valid row."""

    environment: int
    field: str
    row: int

    def text(self, actor: int) -> str:
        """A sentence for the log."""
        article = "an" if self.field.startswith(("a", "o")) else "a"
        return (
            f"actor {actor}: environment {self.environment} gave {article} {self.field} that is not finite in row "
            f"{self.row}; its part of this unroll is left out"
        )


def remove_faults(unroll: Unroll, float_bytes: int = 0) -> list[Fault]:
    """Zero what is not finite, and invalidate the environments whose rows count; writes into the unroll's buffer.

    ``float_bytes``: of the observation, see ``EnvSpec.float_bytes``.
    """
    faults: list[Fault] = []
    records = [name for name in _FIELDS[:2] if name in unroll] if float_bytes else []
    floats: dict[str, Array] = {name: unroll[name][..., :float_bytes].view(np.float32) for name in records}
    floats |= {name: unroll[name] for name in _FIELDS if name in unroll and unroll[name].dtype.kind == "f"}
    # a finite sum shows that all is well; an infinite one only leads to the exact check
    with np.errstate(over="ignore", invalid="ignore"):
        if all(math.isfinite(values.sum()) for values in floats.values()):
            return faults
    for name, values in floats.items():
        finite = np.isfinite(values)
        bad = ~finite.reshape(*finite.shape[:2], -1).all(-1)
        values[~finite] = 0.0
        counts = bad & _rows_that_count(unroll, name)
        known = {fault.environment for fault in faults} if name.startswith(("actions", "behaviour")) else set()
        for environment in np.flatnonzero(counts.any(0)).tolist():
            if environment not in known:
                row = int(np.flatnonzero(counts[:, environment])[0])
                faults.append(Fault(environment, name.removesuffix("s"), row))
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
