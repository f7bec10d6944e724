"""What the tuner measures at each observation, and the effective experience that follows from it.

    effective(level) = min(actors' unblocked rate on the level, learner's rate) × quality(level)
                       1 / (1 / actors' rate + 1 / learner's rate) × quality(level)   where they take turns
    quality          = ESS × retention of π_θ against the level's μ, where measured at the same time; otherwise of π_v
                       against μ, the part due to compression, as last measured, or 1 before that

Staleness is common to levels that act at the same time, so either quality ranks them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from monitor.decisions import Figure
from monitor.tuner.returns import ReturnComparison

Bottleneck = Literal["learner", "environment", "policy"]


@dataclass(frozen=True)
class LevelMeasurement:
    """What was measured of one level since the present assignment began.

    Attributes:
        rate: valid environment steps per second of all living actors together, were they all on this level and never
            waiting; None while unknown. ``monitor.tuner.rates`` predicts it where the level does not act.
        ess: mean effective sample size of π_θ against this level's μ, in [0, 1]; None while no unroll was sampled.
        retention: mean trace retention of the same; None likewise.
        compression_quality: ESS × retention of π_v against μ, the part due to compression; None likewise.
        alarms: the level's numbers of compression mismatch that are outside their bounds, as sentences.
        samples: how many unrolls these rest on.
    """

    rate: float | None = None
    ess: float | None = None
    retention: float | None = None
    compression_quality: float | None = None
    alarms: tuple[str, ...] = ()
    samples: int = 0

    @property
    def quality(self) -> float | None:
        """ESS × retention of the product of staleness and compression; None while unmeasured."""
        return None if self.ess is None or self.retention is None else self.ess * self.retention


@dataclass(frozen=True)
class Measurements:
    """One observation of the run, over the time since the assignment last changed or a recent part of it.

    Attributes:
        time_s: any clock that does not go back, seconds.
        env_steps: valid steps learned from so far.
        actors: the living actors' indices.
        levels: what is known, by level. A level that is absent cannot be published yet.
        learner_rate: valid environment steps per second that the learner takes while it does not wait; None while
            unknown.
        alone: whether learner and actor take turns in one process, so that the time of both adds up.
        learner_wait_share: share of the learner's time spent waiting for unrolls, or acting where it is alone, in
            [0, 1].
        env_share: share of the actors' unblocked time spent in the environments, in [0, 1].
        surveyed: whether every living actor has measured every level since the present survey began.
        returns: returns under the level on trial, or under audit, against the reference, both concurrent; None outside
            trials and audits.
    """

    time_s: float
    env_steps: int
    actors: tuple[int, ...]
    levels: Mapping[str, LevelMeasurement]
    learner_rate: float | None = None
    alone: bool = False
    learner_wait_share: float = 0.0
    env_share: float = 0.0
    surveyed: bool = False
    returns: ReturnComparison | None = None

    def delivered_rate(self, level: str) -> float | None:
        """Valid steps per second that the learner would take with every actor on a level; None while unknown."""
        rate = self._rate(level)
        if rate is None or self.learner_rate is None:
            return rate
        if self.alone:
            return rate * self.learner_rate / (rate + self.learner_rate)
        return min(rate, self.learner_rate)

    def effective_rate(self, level: str, quality: float) -> float | None:
        """Effective environment steps per second; None while the level's rate is unknown."""
        rate = self.delivered_rate(level)
        return None if rate is None else rate * quality

    def qualities(self, levels: Iterable[str], compression: Mapping[str, float]) -> dict[str, float]:
        """ESS × retention of levels, comparable: of staleness × compression if all have it, else of compression.

        Args:
            compression: ESS × retention of compression alone, as last measured; 1 where absent.
        """
        chosen = tuple(levels)
        totals = {level: self.levels[level].quality for level in chosen if level in self.levels}
        measured = {level: quality for level, quality in totals.items() if quality is not None}
        if len(measured) == len(chosen):
            return measured
        return {level: compression.get(level, 1.0) for level in chosen}

    def bottleneck(self, level: str, busy_env_share: float) -> Bottleneck:
        """What limits the run with every actor on ``level``; faster actors help when it is the policy."""
        rate = self._rate(level)
        if rate is not None and self.learner_rate is not None and rate >= self.learner_rate:
            return "learner"
        return "environment" if self.env_share >= busy_env_share else "policy"

    def explain(self, level: str, busy_env_share: float) -> str:
        """The bottleneck as a clause with its numbers."""
        limit = self.bottleneck(level, busy_env_share)
        rate = self._rate(level)
        if limit == "learner" and rate is not None and self.learner_rate is not None:
            if self.alone:
                share = rate / (rate + self.learner_rate)
                return f"the learner is the bottleneck: with {level} it takes {share:.0%} of the process's time"
            return (
                f"the learner is the bottleneck: with {level} the actors can send {rate:,.0f} steps/s "
                f"and it takes {self.learner_rate:,.0f}"
            )
        if limit == "environment":
            return f"the environment is the bottleneck: it takes {self.env_share:.0%} of the actors' time"
        return f"the actors are the bottleneck: the environment takes {self.env_share:.0%} of their time"

    def figures(self, compression: Mapping[str, float], incumbent: str, busy_env_share: float) -> dict[str, Figure]:
        """Every number that a decision may rest on, by name."""
        result: dict[str, Figure] = {
            "bottleneck": self.bottleneck(incumbent, busy_env_share),
            "learner_rate": self.learner_rate,
            "learner_wait_share": self.learner_wait_share,
            "env_share": self.env_share,
        }
        for level, measured in self.levels.items():
            result[f"rate/{level}"] = measured.rate
            result[f"effective/{level}"] = self.effective_rate(level, compression.get(level, 1.0))
            if measured.ess is not None:
                result[f"ess/{level}"] = measured.ess
                result[f"retention/{level}"] = measured.retention
                result[f"compression_quality/{level}"] = measured.compression_quality
        return result if self.returns is None else result | self.returns.figures()

    def _rate(self, level: str) -> float | None:
        return self.levels[level].rate if level in self.levels else None
