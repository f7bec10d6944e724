"""The threshold of "time to threshold" and the margin of "no loss of return", and what they are derived from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from accel.monitor.plain_text import percent
from accel.reports.runs import Group

THRESHOLD_SHARE = 0.9


@dataclass(frozen=True)
class Target:
    """A threshold or margin, in return, and how it was derived; ``value`` is NaN where there is none.

    Attributes:
        derived: whether it was derived from what was learned, which neither the user nor the runs asked for.
    """

    value: float
    source: str
    derived: bool = False

    @property
    def exists(self) -> bool:
        """Whether there is one."""
        return math.isfinite(self.value)


def gain_of(group: Group) -> tuple[float, float, float]:
    """(mean first known return, mean final return, standard deviation of the seeds' final returns); NaN if unknown."""
    played = [run for run in group.runs if math.isfinite(run.final_return)]
    if not played:
        return math.nan, math.nan, math.nan
    firsts = [run.returns[np.isfinite(run.returns)][0] for run in played]
    finals = np.array([run.final_return for run in played])
    return float(np.mean(firsts)), float(finals.mean()), float(finals.std(ddof=1)) if len(finals) > 1 else 0.0


def common_target(groups: Sequence[Group]) -> float | None:
    """The return at which every run of these groups stops; None where they differ or some have none."""
    targets = {value for group in groups for value in group.values("stop_at_return")}
    first = next(iter(targets))
    return float(first) if len(targets) == 1 and isinstance(first, int | float) else None


def threshold_of(groups: Sequence[Group], asked: float | None) -> Target:
    """The return for "time to threshold": as chosen, the runs' own target, or most of the first group's gain."""
    if asked is not None:
        return Target(asked, "as chosen")
    if (target := common_target(groups)) is not None:
        return Target(target, "the return at which the runs stop")
    label = groups[0].label
    source = f"{THRESHOLD_SHARE:.0%} of the way from the first known return to the final return of {label}"
    return _share_of_gain(groups[0], THRESHOLD_SHARE, label, source, start=True)


def margin_of(baseline: Group, share: float, asked: float | None) -> Target:
    """The loss of return that is still acceptable: as chosen, or a share of the baseline's gain."""
    if asked is not None:
        return Target(asked, "as chosen")
    return _share_of_gain(baseline, share, "the baseline", f"{percent(share)} of the baseline's gain")


def _share_of_gain(group: Group, share: float, label: str, source: str, *, start: bool = False) -> Target:
    """A share of what a group learned, from its first return on with ``start``; none unless that exceeds its spread."""
    first, final, spread = gain_of(group)
    gain = final - first
    if math.isnan(gain):
        return Target(math.nan, f"{label} finished no episode")
    if gain <= spread:
        return Target(
            math.nan,
            f"{label} learned nothing: its gain from first to final return is {gain:.4g}, the standard deviation of "
            f"its seeds {spread:.4g}",
        )
    return Target(share * gain + (first if start else 0.0), source, derived=True)
