"""Speedups with intervals, and whether return is lost: a non-inferiority test with a stated margin."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import numpy as np

from accel.monitor.statistics import Interval, difference_of_means, ratio_of_means
from accel.reports.runs import Group, Run
from accel.reports.series import Floats

MIN_SEEDS = 5
"""With fewer on either side nothing is claimed, and no interval is given."""
ReturnOutcome = Literal["no_loss", "gain", "loss", "undecided", "too_few_seeds", "untested"]
RETURN_CLAIMS: Mapping[ReturnOutcome, str] = MappingProxyType(
    {
        "no_loss": "no loss of return",
        "gain": "higher return",
        "loss": "lower return",
        "undecided": "a loss of return is neither shown nor excluded",
        "too_few_seeds": "too few seeds to compare",
        "untested": "returns not compared",
    }
)


@dataclass(frozen=True)
class Speedup:
    """How many times better than the baseline; above 1 is better, whatever the quantity.

    Attributes:
        quantity: a key of ``QUANTITIES``.
        ratio: of geometric means, with Welch's interval on the logarithms; its ends are NaN below ``MIN_SEEDS``.
        baseline, group: the seeds' values; those of seeds without one are left out.
        missing: seeds of either side without a value, such as the command's time of resumed runs.
        bound: where seeds of one side never reached the threshold and count at their budget: ``at most`` where they are
            the group's, ``at least`` where they are the baseline's.
    """

    quantity: str
    ratio: Interval
    baseline: tuple[float, ...]
    group: tuple[float, ...]
    missing: int = 0
    bound: Literal["", "at most", "at least"] = ""

    @property
    def has_interval(self) -> bool:
        """Whether both sides have at least ``MIN_SEEDS`` seeds, all of which got there."""
        return math.isfinite(self.ratio.low)

    @property
    def is_shown(self) -> bool:
        """Whether the interval excludes 1."""
        return self.ratio.low > 1 or self.ratio.high < 1

    @property
    def text(self) -> str:
        """``1.62× [1.5, 1.7]``; ``1.62×`` with too few seeds for an interval; ``at most 1.62×``."""
        interval = f" [{self.ratio.low:.3g}, {self.ratio.high:.3g}]" if self.has_interval else ""
        return f"{self.bound} {self.ratio.estimate:.3g}×{interval}".strip()


@dataclass(frozen=True)
class ComparedQuantity:
    """Something two groups are compared in.

    Attributes:
        measure: of a run and a threshold.
        spent: what a run spent that failed to reach the threshold; None where every run has a value.
    """

    title: str
    unit: str
    measure: Callable[[Run, float], float | None]
    meaning: str
    higher_is_better: bool = False
    spent: Callable[[Run], float] | None = None


def _crossing(index: int) -> Callable[[Run, float], float | None]:
    def measure(run: Run, threshold: float) -> float | None:
        crossing = run.crossing(threshold)
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
        _crossing(0),
        "training seconds until the mean return reaches the threshold",
        spent=lambda run: run.training_s,
    ),
    "steps_to_threshold": ComparedQuantity(
        "Steps to the threshold",
        "env steps",
        _crossing(1),
        "environment steps until the mean return reaches the threshold",
        spent=lambda run: run.steps,
    ),
    "training_s": ComparedQuantity(
        "Whole training", "s", lambda run, _: run.training_s, "training seconds until the run stopped"
    ),
    "wall_s": ComparedQuantity(
        "Whole command", "s", _of_summary("wall_s"), "from the user's command until training ended"
    ),
    "env_steps_per_s": ComparedQuantity(
        "Throughput",
        "env steps/s",
        lambda run, _: run.steps / run.training_s if run.training_s > 0 else None,
        "valid steps consumed by the learner per second",
        higher_is_better=True,
    ),
    "actor_us_per_step": ComparedQuantity(
        "Actor time",
        "µs/step",
        lambda run, _: run.actor_us_per_step,
        "actors' work per environment step, waiting for the learner left out",
    ),
    "cpu_s": ComparedQuantity(
        "CPU time", "s", _of_summary("cpu_s"), "of training: the learner's process, and what actors did not wait"
    ),
}


@dataclass(frozen=True)
class ReturnVerdict:
    """Whether a group loses return against the baseline.

    Attributes:
        outcome: ``no_loss``: the interval of the difference lies above −margin; ``gain``: it lies above 0; ``loss``: it
            lies below 0; ``undecided``: none of these; ``too_few_seeds``: fewer than ``MIN_SEEDS`` on a side;
            ``untested``: no margin, or no finished episode.
        detail: what it rests on.
        difference: mean final return minus the baseline's, with its two-sided interval at 1 − 2α; None if not known.
        margin: the acceptable loss, in return; NaN where there is none.
    """

    outcome: ReturnOutcome
    detail: str
    difference: Interval | None = None
    margin: float = math.nan

    @property
    def text(self) -> str:
        """The claim and what it rests on."""
        return f"{RETURN_CLAIMS[self.outcome]}: {self.detail}"


def values_of(group: Group, quantity: str, threshold: float) -> tuple[float, ...]:
    """A quantity of every seed that has it."""
    return _known(QUANTITIES[quantity].measure(run, threshold) for run in group.runs)


def speedup(baseline: Group, group: Group, quantity: str, threshold: float, confidence: float = 0.95) -> Speedup | None:
    """How many times better ``group`` is, or a bound where seeds of one side failed to reach the threshold.

    None when a side has no value, or seeds of both sides failed.
    """
    ours, theirs = (values_of(side, quantity, threshold) for side in (baseline, group))
    missing = [len(side.runs) - len(values) for side, values in ((baseline, ours), (group, theirs))]
    bound: Literal["", "at most", "at least"] = ""
    spent = QUANTITIES[quantity].spent
    if any(missing) and spent is not None:
        if all(missing) or not math.isfinite(threshold):
            return None
        bound = "at most" if missing[1] else "at least"
        ours, theirs = (
            _known(QUANTITIES[quantity].measure(run, threshold) or spent(run) for run in side.runs)
            for side in (baseline, group)
        )
    if not ours or not theirs:
        return None
    if bound or min(len(ours), len(theirs)) < MIN_SEEDS:
        estimate = math.exp(float(np.log(theirs).mean() - np.log(ours).mean()))
        ratio = Interval.point(estimate, len(ours) + len(theirs))
    else:
        ratio = ratio_of_means(theirs, ours, confidence=confidence)
    if not QUANTITIES[quantity].higher_is_better:
        ratio = replace(ratio, estimate=1 / ratio.estimate, low=1 / ratio.high, high=1 / ratio.low)
    return Speedup(quantity, ratio, ours, theirs, sum(missing), bound)


def compare_returns(
    baseline: Sequence[float] | Floats,
    group: Sequence[float] | Floats,
    margin: float,
    *,
    alpha: float = 0.05,
    source: str = "",
) -> ReturnVerdict:
    """One-sided Welch test of "the final return is lower than the baseline's by ``margin`` or more", at level α.

    Args:
        baseline, group: final returns of the seeds.
        margin: in return, > 0.
        source: how the margin was derived, for the sentence.
    """
    if (seeds := min(len(group), len(baseline))) < MIN_SEEDS:
        return ReturnVerdict("too_few_seeds", f"{seeds} of at least {MIN_SEEDS}", margin=margin)
    difference = difference_of_means(group, baseline, confidence=1 - 2 * alpha)
    outcome: ReturnOutcome = "undecided"
    if difference.low > 0:
        outcome = "gain"
    elif difference.low > -margin:
        outcome = "no_loss"
    elif difference.high < 0:
        outcome = "loss"
    shown = f"{difference.estimate:+.4g} [{difference.low:.4g}, {difference.high:.4g}]"
    return ReturnVerdict(outcome, f"difference {shown}, margin {margin:.4g}{source}", difference, margin)


def _known(values: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(value for value in values if value is not None and math.isfinite(value) and value > 0)
