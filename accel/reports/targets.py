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
class ReturnGain:
    """From a group's first known return to its final one, the mean over the last tenth of the steps.

    Attributes:
        first, final: means over seeds; NaN without a finished episode.
        spread: standard deviation of the seeds' final returns; 0 for a single seed.
    """

    first: float
    final: float
    spread: float

    @property
    def size(self) -> float:
        """How much the return rose."""
        return self.final - self.first

    @property
    def is_learning(self) -> bool:
        """Whether it rose by more than its seeds differ."""
        return self.size > self.spread


@dataclass(frozen=True)
class Target:
    """A threshold or margin, in return, and how it was derived; ``value`` is NaN where there is none.

    Attributes:
        derived: whether it was derived from what was learned, which neither the user nor the runs asked for.
    """

    value: float
    source: str
    derived: bool = False


def gain_of(group: Group) -> ReturnGain:
    """What a group learned."""
    ends = [(run.first_return, run.final_return) for run in group.runs]
    known = np.array([pair for pair in ends if all(map(math.isfinite, pair))], np.float64).reshape(-1, 2)
    if not known.size:
        return ReturnGain(math.nan, math.nan, math.nan)
    first, final = (float(column.mean()) for column in known.T)
    return ReturnGain(first, final, float(known[:, 1].std(ddof=1)) if len(known) > 1 else 0.0)


def common_target(groups: Sequence[Group]) -> float | None:
    """The return at which every run of these groups stops; None where they differ or some have none."""
    targets = [value for group in groups for value in group.values("stop_at_return")]
    first = targets[0]
    return float(first) if isinstance(first, int | float) and all(value == first for value in targets) else None


def threshold_of(groups: Sequence[Group], asked: float | None) -> Target:
    """The return for "time to threshold": as chosen, the runs' own target, or most of the first group's gain."""
    if asked is not None:
        return Target(asked, "as chosen")
    if (target := common_target(groups)) is not None:
        return Target(target, "the return at which the runs stop")
    gain, label = gain_of(groups[0]), groups[0].label
    if math.isnan(gain.size):
        return Target(math.nan, "no episode finished")
    if not gain.is_learning:
        return Target(math.nan, f"none, as {_no_gain(gain, label)}")
    share = f"{THRESHOLD_SHARE:.0%} of the way from the first known return to the final return of {label}"
    return Target(gain.first + THRESHOLD_SHARE * gain.size, share, derived=True)


def margin_of(baseline: Group, share: float, asked: float | None) -> Target:
    """The loss of return that is still acceptable: as chosen, or a share of the baseline's gain."""
    if asked is not None:
        return Target(asked, "as chosen")
    gain = gain_of(baseline)
    if math.isnan(gain.size):
        return Target(math.nan, "the baseline finished no episode")
    if not gain.is_learning:
        return Target(math.nan, _no_gain(gain, "the baseline"))
    return Target(
        share * gain.size,
        f"{percent(share)} of the baseline's gain, {gain.size:.4g} from its first known return to its final return",
    )


def _no_gain(gain: ReturnGain, label: str) -> str:
    return (
        f"{label} learned nothing: its gain from first to final return is {gain.size:.4g}, the standard deviation of "
        f"its seeds {gain.spread:.4g}"
    )
