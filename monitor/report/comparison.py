"""Speedups with intervals, and the verdict on "same return": a non-inferiority test with a stated margin."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from monitor.report.runs import Group, Run
from monitor.report.series import Floats
from monitor.statistics import Interval, student_t_quantile

ReturnOutcome = Literal["same", "higher", "lower", "few", "undecided", "untested"]
Shown = Literal["better", "worse", "nothing", "unknown"]
FEW_SEEDS = 5
"""With fewer on either side nothing is claimed about the return, but that it is lower."""
LEAST_SEEDS = 3
"""With fewer on either side there is no interval: one of a single degree of freedom says nothing."""


@dataclass(frozen=True)
class Speedup:
    """How many times better than the baseline; above 1 is better, whatever the quantity.

    Attributes:
        quantity: a key of ``QUANTITIES``.
        ratio: of geometric means, with Welch's interval on the logarithms; its ends are NaN below ``LEAST_SEEDS``.
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
        """Whether both sides have at least ``LEAST_SEEDS`` seeds."""
        return math.isfinite(self.ratio.low)

    @property
    def shown(self) -> Shown:
        """What the interval shows: ``nothing`` where 1 lies in it, ``unknown`` where there is none."""
        if not self.has_interval:
            return "unknown"
        return "better" if self.ratio.low > 1 else "worse" if self.ratio.high < 1 else "nothing"

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


def _wall_s(run: Run, _: float) -> float | None:
    value = None if run.summary is None or run.starts > 1 else run.summary.get("wall_s")
    return float(value) if isinstance(value, int | float) else None


QUANTITIES = {
    "time_to_threshold_s": ComparedQuantity(
        "Wall-clock to the threshold", "s", False, _crossing(0), "training seconds until the mean return reaches it"
    ),
    "steps_to_threshold": ComparedQuantity(
        "Steps to the threshold", "env steps", False, _crossing(1), "environment steps until the mean return reaches it"
    ),
    "training_s": ComparedQuantity(
        "Whole training", "s", False, lambda run, _: run.training_s, "training seconds until the run stopped"
    ),
    "wall_s": ComparedQuantity("Whole command", "s", False, _wall_s, "from the user's command until training ended"),
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
}

CENSORED: Mapping[str, Callable[[Run], float]] = MappingProxyType(
    {"time_to_threshold_s": lambda run: run.training_s, "steps_to_threshold": lambda run: run.steps}
)
"""Quantities that a failed seed lacks, and what it spent instead: there is no speedup among the seeds that remain."""


@dataclass(frozen=True)
class ReturnVerdict:
    """Whether a group's return is the baseline's.

    Attributes:
        outcome: ``same``: not worse than the baseline by the margin; ``higher``: that, and significantly higher;
            ``lower``: significantly lower and not shown to be within the margin; ``few``: not worse than the baseline
            by the margin, but with fewer than ``FEW_SEEDS``; ``undecided``: neither shown; ``untested``: no margin, or
            fewer than ``LEAST_SEEDS``.
        difference: mean final return minus the baseline's, with its two-sided interval at 1 − 2α.
        margin: how much worse still counts as the same, in return; NaN where there is none.
        text: the sentence that says so, with the test.
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
    ratio = ratio_of_means(theirs, ours, confidence)
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
    ratio = ratio_of_means(ours, theirs).estimate
    return SpeedupBound(quantity, "at most" if sides[1] else "at least", ratio, sum(sides))


def ratio_of_means(numerator: ArrayLike, denominator: ArrayLike, confidence: float = 0.95) -> Interval:
    """Ratio of geometric means with Welch's t interval on the logarithms.

        exp(ln̄x − ln̄y ± t_{(1+confidence)/2, ν} √(s²_x/n_x + s²_y/n_y)),  ν by Welch and Satterthwaite, rounded down

    Chosen over the bootstrap because that is far too narrow for the three to ten seeds that runs have.
    """
    x, y = np.log(np.asarray(numerator, np.float64)), np.log(np.asarray(denominator, np.float64))
    difference = difference_of_means(x, y, confidence)
    low, centre, high = (math.exp(v) for v in (difference.low, difference.estimate, difference.high))
    return Interval(centre, low, high, confidence, difference.count)


def difference_of_means(x: Floats, y: Floats, confidence: float) -> Interval:
    """Mean of ``x`` minus mean of ``y`` with Welch's t interval; its ends are NaN below ``LEAST_SEEDS`` on a side.

    Source: Welch 1947, doi:10.2307/2332510. Deviations: degrees of freedom rounded down, which widens the interval.
    """
    centre, count = float(x.mean() - y.mean()), x.size + y.size
    if min(x.size, y.size) < LEAST_SEEDS:
        return Interval(centre, math.nan, math.nan, confidence, count)
    parts = x.var(ddof=1) / x.size, y.var(ddof=1) / y.size
    total = float(sum(parts))
    if total == 0:
        return Interval(centre, centre, centre, confidence, count)
    degrees = total**2 / float(parts[0] ** 2 / (x.size - 1) + parts[1] ** 2 / (y.size - 1))
    half = student_t_quantile((1 + confidence) / 2, max(1, math.floor(degrees + 1e-9))) * math.sqrt(total)
    return Interval(centre, centre - half, centre + half, confidence, count)


def same_return(
    baseline: Sequence[float], group: Sequence[float], margin: float, *, alpha: float = 0.05, unit: str = ""
) -> ReturnVerdict:
    """One-sided Welch test of "the final return is lower than the baseline's by ``margin`` or more", at level α.

    Args:
        baseline, group: final returns of the seeds.
        margin: in return, > 0.
        unit: how the margin came about, for the sentence.
    """
    x, y = np.asarray(group, np.float64), np.asarray(baseline, np.float64)
    difference = difference_of_means(x, y, 1 - 2 * alpha)
    seeds = f"{x.size} and {y.size} seeds"
    if math.isnan(difference.low):
        text = f"not tested: {seeds} are too few, needs {LEAST_SEEDS} on either side; difference "
        return ReturnVerdict("untested", difference, margin, f"{text}{difference.estimate:+.4g}")
    shown = f"{difference.estimate:+.4g} [{difference.low:.4g}, {difference.high:.4g}]"
    stated = f"margin {margin:.4g}{unit}, one-sided Welch test at {alpha:.0%}"
    outcome: ReturnOutcome
    if difference.low > -margin:
        outcome = "higher" if difference.low > 0 else "same"
        said = f"{outcome} return"
        if min(x.size, y.size) < FEW_SEEDS:
            outcome, said = few_seeds(x.size, y.size)
    elif difference.high < 0:
        outcome, said = "lower", "lower return"
    else:
        outcome, said = "undecided", "undecided: these seeds neither show the same return nor a lower one"
    return ReturnVerdict(outcome, difference, margin, f"{said}: difference {shown}, {stated}")


def few_seeds(group: int, baseline: int) -> tuple[ReturnOutcome, str]:
    """ReturnOutcome and words where a return looks the same or higher, but the seeds are too few to say so."""
    return "few", f"no claim about the return: {group} and {baseline} seeds, needs {FEW_SEEDS} on either side"
