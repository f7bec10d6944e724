"""Speedups with intervals, and whether return is lost: a non-inferiority test with a stated margin."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

from accel.monitor.statistics import Interval, difference_of_means, ratio_of_means
from accel.reports.runs import Group, Run

NO_INTERVAL = Interval(math.nan, math.nan, math.nan, 0.95, 0)
ReturnOutcome = Literal["no_loss", "gain", "loss", "undecided", "too_few_seeds", "untested"]
SpeedFinding = Literal["faster", "slower", "undecided", "too_few_seeds"]
MIN_SEEDS = 5
"""With fewer on either side nothing is claimed, and no interval is given."""


@dataclass(frozen=True)
class Speedup:
    """How many times better than the baseline; above 1 is better, whatever the quantity.

    Attributes:
        quantity: a key of ``QUANTITIES``.
        ratio: of geometric means, with Welch's interval on the logarithms; its ends are NaN below ``MIN_SEEDS``.
        baseline, group: the seeds' values; those of seeds without one are left out.
        missing: seeds of either side without a value, such as the command's time of resumed runs.
    """

    quantity: str
    ratio: Interval
    baseline: tuple[float, ...]
    group: tuple[float, ...]
    missing: int = 0

    @property
    def has_interval(self) -> bool:
        """Whether both sides have at least ``MIN_SEEDS`` seeds."""
        return math.isfinite(self.ratio.low)

    @property
    def finding(self) -> SpeedFinding:
        """What the interval shows: ``undecided`` where it contains 1."""
        if not self.has_interval:
            return "too_few_seeds"
        return "faster" if self.ratio.low > 1 else "slower" if self.ratio.high < 1 else "undecided"

    @property
    def time_saved(self) -> float:
        """Share of the baseline's time that is saved, in (−∞, 1)."""
        return 1 - 1 / self.ratio.estimate


@dataclass(frozen=True)
class SpeedupBound:
    """A bound in place of a speedup, where seeds of one side never reached the threshold and count at their budget.

    Attributes:
        quantity: a key of ``CENSORED``.
        side: ``at most`` where seeds of the group failed, ``at least`` where those of the baseline did.
        ratio: of geometric means, what failed seeds spent in place of what they would have needed.
        failed: how many seeds.
    """

    quantity: str
    side: Literal["at most", "at least"]
    ratio: float
    failed: int


@dataclass(frozen=True)
class ComparedQuantity:
    """Something two groups are compared in: what it is called, its unit, and which way is better."""

    title: str
    unit: str
    higher_is_better: bool
    measure: Callable[[Run, float], float | None]
    meaning: str


def _crossing(index: int) -> Callable[[Run, float], float | None]:
    def measure(run: Run, threshold: float) -> float | None:
        crossing = run.crossing(threshold) if math.isfinite(threshold) else None
        return None if crossing is None else crossing[index]

    return measure


def _of_summary(name: str) -> Callable[[Run, float], float | None]:
    """A number of the summary, which covers a run's last start only."""

    def measure(run: Run, _: float) -> float | None:
        value = None if run.summary is None or run.starts > 1 else run.summary.get(name)
        return float(value) if isinstance(value, int | float) else None

    return measure


QUANTITIES = {
    "time_to_threshold_s": ComparedQuantity(
        "Wall-clock to the threshold",
        "s",
        False,
        _crossing(0),
        "training seconds until the mean return reaches the threshold",
    ),
    "steps_to_threshold": ComparedQuantity(
        "Steps to the threshold",
        "env steps",
        False,
        _crossing(1),
        "environment steps until the mean return reaches the threshold",
    ),
    "training_s": ComparedQuantity(
        "Whole training", "s", False, lambda run, _: run.training_s, "training seconds until the run stopped"
    ),
    "wall_s": ComparedQuantity(
        "Whole command", "s", False, _of_summary("wall_s"), "from the user's command until training ended"
    ),
    "env_steps_per_s": ComparedQuantity(
        "Throughput",
        "env steps/s",
        True,
        lambda run, _: run.steps / run.training_s if run.training_s > 0 else None,
        "valid steps consumed by the learner per second",
    ),
    "actor_us_per_step": ComparedQuantity(
        "Actor time",
        "µs/step",
        False,
        lambda run, _: run.actor_us_per_step,
        "actors' work per environment step, waiting for the learner left out",
    ),
    "cpu_s": ComparedQuantity(
        "CPU time", "s", False, _of_summary("cpu_s"), "of training: the learner's process, and what actors did not wait"
    ),
    "energy_j": ComparedQuantity(
        "Energy", "J", False, _of_summary("energy_j"), "of training, by the processor packages' counters"
    ),
}

CENSORED: Mapping[str, Callable[[Run], float]] = MappingProxyType(
    {"time_to_threshold_s": lambda run: run.training_s, "steps_to_threshold": lambda run: run.steps}
)
"""Quantities that a failed seed lacks, and what it spent instead: there is no speedup among the seeds that remain."""


@dataclass(frozen=True)
class ReturnVerdict:
    """Whether a group loses return against the baseline.

    Attributes:
        outcome: ``no_loss``: the interval of the difference lies above −margin; ``gain``: it lies above 0; ``loss``: it
            lies below 0; ``undecided``: none of these; ``too_few_seeds``: fewer than ``MIN_SEEDS`` on a side;
            ``untested``: no margin, or no finished episode.
        difference: mean final return minus the baseline's, with its two-sided interval at 1 − 2α.
        margin: the acceptable loss, in return; NaN where there is none.
        text: the sentence that says so.
    """

    outcome: ReturnOutcome
    difference: Interval
    margin: float
    text: str


def values_of(group: Group, quantity: str, threshold: float) -> tuple[float, ...]:
    """A quantity of every seed that has it."""
    measured = (QUANTITIES[quantity].measure(run, threshold) for run in group.runs)
    return tuple(value for value in measured if value is not None and math.isfinite(value) and value > 0)


def speedup(baseline: Group, group: Group, quantity: str, threshold: float, confidence: float = 0.95) -> Speedup | None:
    """How many times better ``group`` is; None when a side has no value, or failed seeds make a ratio too good."""
    ours, theirs = (values_of(side, quantity, threshold) for side in (baseline, group))
    missing = len(baseline.runs) + len(group.runs) - len(ours) - len(theirs)
    if not ours or not theirs or (missing and quantity in CENSORED):
        return None
    if min(len(ours), len(theirs)) < MIN_SEEDS:
        ratio = _geometric_ratio(theirs, ours, confidence)
    else:
        ratio = ratio_of_means(theirs, ours, confidence=confidence)
    if not QUANTITIES[quantity].higher_is_better:
        ratio = Interval(1 / ratio.estimate, 1 / ratio.high, 1 / ratio.low, confidence, ratio.count)
    return Speedup(quantity, ratio, ours, theirs, missing)


def speedup_bound(baseline: Group, group: Group, quantity: str, threshold: float) -> SpeedupBound | None:
    """The bound that failed seeds leave; None when none failed, or some on both sides, or nothing is known.

    Args:
        quantity: one of ``CENSORED``.
    """
    sides = [len(side.runs) - len(values_of(side, quantity, threshold)) for side in (baseline, group)]
    if not math.isfinite(threshold) or not any(sides) or all(sides):
        return None

    def spent(run: Run) -> float:
        value = QUANTITIES[quantity].measure(run, threshold)
        return CENSORED[quantity](run) if value is None else value

    ours, theirs = ([spent(run) for run in side.runs] for side in (baseline, group))
    if not all(math.isfinite(value) and value > 0 for value in (*ours, *theirs)):
        return None
    ratio = _geometric_ratio(ours, theirs, 0.95).estimate
    return SpeedupBound(quantity, "at most" if sides[1] else "at least", ratio, sum(sides))


def compare_returns(
    baseline: Sequence[float], group: Sequence[float], margin: float, *, alpha: float = 0.05, source: str = ""
) -> ReturnVerdict:
    """One-sided Welch test of "the final return is lower than the baseline's by ``margin`` or more", at level α.

    Args:
        baseline, group: final returns of the seeds.
        margin: in return, > 0.
        source: how the margin was derived, for the sentence.
    """
    if few := too_few_seeds(len(group), len(baseline)):
        return ReturnVerdict("too_few_seeds", NO_INTERVAL, margin, few)
    difference = difference_of_means(group, baseline, confidence=1 - 2 * alpha)
    shown = f"{difference.estimate:+.4g} [{difference.low:.4g}, {difference.high:.4g}]"
    outcome: ReturnOutcome
    if difference.low > 0:
        outcome, said = "gain", "higher return"
    elif difference.low > -margin:
        outcome, said = "no_loss", "no loss of return"
    elif difference.high < 0:
        outcome, said = "loss", "lower return"
    else:
        outcome, said = "undecided", "a loss of return is neither shown nor excluded"
    return ReturnVerdict(outcome, difference, margin, f"{said}: difference {shown}, margin {margin:.4g}{source}")


def too_few_seeds(group: int, baseline: int) -> str:
    """``too few seeds to compare: 3 of at least 5``; empty where both sides have enough."""
    seeds = min(group, baseline)
    return f"too few seeds to compare: {seeds} of at least {MIN_SEEDS}" if seeds < MIN_SEEDS else ""


def _geometric_ratio(numerator: Sequence[float], denominator: Sequence[float], confidence: float) -> Interval:
    """Ratio of geometric means without an interval."""
    ratio = math.exp(float(np.log(numerator).mean() - np.log(denominator).mean()))
    return Interval(ratio, math.nan, math.nan, confidence, len(numerator) + len(denominator))
