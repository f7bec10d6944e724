"""What a configuration learned, and the threshold and the margin of "same return" that follow from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monitor.report.runs import Group
from monitor.statistics import interquartile_mean

THRESHOLD_SHARE = 0.9


@dataclass(frozen=True)
class Gain:
    """From a group's first known return to its final one, the mean over the last tenth of the steps.

    Attributes:
        first, final: interquartile means over seeds; NaN without a finished episode.
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
class Level:
    """A threshold or margin, in return, and how it came about; ``value`` is NaN where there is none."""

    value: float
    source: str


def gain_of(group: Group) -> Gain:
    """What a group learned."""
    ends = [(run.first_return, run.final_return) for run in group.runs]
    known = np.array([pair for pair in ends if all(map(math.isfinite, pair))], np.float64).reshape(-1, 2)
    if not known.size:
        return Gain(math.nan, math.nan, math.nan)
    first, final = (float(interquartile_mean(column)) for column in known.T)
    return Gain(first, final, float(known[:, 1].std(ddof=1)) if len(known) > 1 else 0.0)


def common_target(groups: Sequence[Group]) -> float | None:
    """The return at which every run of these groups stops; None where they differ or some have none."""
    targets = [value for group in groups for value in group.values("stop_at_return")]
    first = targets[0]
    return float(first) if isinstance(first, int | float) and all(value == first for value in targets) else None


def threshold_of(groups: Sequence[Group], asked: float | None) -> Level:
    """The return for "time to threshold": as asked for, the runs' own target, or most of the first group's gain."""
    if asked is not None:
        return Level(asked, "as asked for")
    if (target := common_target(groups)) is not None:
        return Level(target, "the return at which the runs stop")
    gain, label = gain_of(groups[0]), groups[0].label
    if math.isnan(gain.size):
        return Level(math.nan, "no episode finished")
    if not gain.is_learning:
        return Level(math.nan, f"none, as {_nothing(gain, label)}")
    share = f"{THRESHOLD_SHARE:.0%} of the way from the first known return to the final return of {label}"
    return Level(gain.first + THRESHOLD_SHARE * gain.size, share)


def margin_of(baseline: Group, share: float, asked: float | None) -> Level:
    """How much worse a final return still counts as the same: as asked for, or a share of the baseline's gain."""
    if asked is not None:
        return Level(asked, "as asked for")
    gain = gain_of(baseline)
    if math.isnan(gain.size):
        return Level(math.nan, "the baseline finished no episode")
    if not gain.is_learning:
        return Level(math.nan, _nothing(gain, "the baseline"))
    return Level(
        share * gain.size,
        f"{share:.0%} of the baseline's gain, {gain.size:.4g} from its first known return to its final return",
    )


def _nothing(gain: Gain, label: str) -> str:
    return (
        f"{label} learned nothing: from its first known return to its final return it gained {gain.size:.4g}, its "
        f"seeds' standard deviation is {gain.spread:.4g}"
    )
