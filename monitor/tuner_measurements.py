"""What the tuner is told at each step, what it answers, and the levels at which it acts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from monitor.decisions import Figure
from monitor.tuner_returns import ReturnComparison

Split = tuple[tuple[str, int], ...]
"""An actor's levels and how many of its environments each acts on, in order; 0: measured on the actor, never acting."""


@dataclass(frozen=True)
class LevelMeasurement:
    """What is known of one level since the present assignment began.

    Attributes:
        rate: valid environment steps per second of all living actors together, were they all on this level and never
            made to wait; None while unknown. ``monitor.tuner_rates`` predicts it where the level does not act.
        ess: mean effective sample size of π_θ against this level's μ, in [0, 1]; None while no unroll was sampled.
        retention: mean trace retention of the same; None likewise.
        compression_quality: ESS × retention of π_v against μ, the part that is the level's own doing; None likewise.
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
    """One look at the run; every number covers the time since the assignment last changed, or a recent part of it.

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


@dataclass(frozen=True)
class TunerOptions:
    """The tuner's documented levels. Durations in seconds; each that says "doubles" does so to keep it from flapping.

    Attributes:
        gain: a coarser level must promise, and then show, this much more effective experience.
        tolerance: a finer level may lose this much of it and is preferred; gain − tolerance is the hysteresis.
        dwell: shortest trial and shortest hold. The hold doubles with every change beyond one for each level.
        audit_interval: from a change to the first audit of the level in use; doubles after each up to its maximum.
        survey_interval: from a survey of the actors to the next; doubles after each up to its maximum.
        ban: a level that was rejected or left is left alone this long; doubles each time.
        patience: after it, a survey ends with what was reported.
        trial_patience: after it, a trial or audit is decided with the episodes there are.
        min_episodes: whole episodes of each side before returns are judged; three times as many to confirm a loss, a
            third for a ruinous one.
        min_samples: mismatch samples of a level before it may be accepted.
        loss_z: standard errors of a significant loss of return; one-sided 1 % for 2.33.
        ruin_z: the same for an early end, judged at every look.
        negligible: losses below this many standard deviations of the reference's returns are not acted upon.
        blind_quality: compression ESS × retention needed to be accepted when too few episodes end within the patience.
        confirmations: consecutive looks that must agree before a hold is left for a trial or for full precision.
        busy_env_share: from this share of their unblocked time on, the environment counts as the actors' bottleneck.
    """

    gain: float = 0.05
    tolerance: float = 0.02
    dwell: float = 2.0
    audit_interval: float = 10.0
    max_audit_interval: float = 600.0
    survey_interval: float = 60.0
    max_survey_interval: float = 1800.0
    ban: float = 20.0
    patience: float = 10.0
    trial_patience: float = 300.0
    min_episodes: int = 24
    min_samples: int = 2
    loss_z: float = 2.33
    ruin_z: float = 4.0
    negligible: float = 0.1
    blind_quality: float = 0.9
    confirmations: int = 3
    busy_env_share: float = 0.7

    def is_ruin(self, returns: ReturnComparison) -> bool:
        """A loss so plain that it is acted on before the comparison is over."""
        enough = returns.episodes >= max(self.min_episodes // 3, 4)
        return enough and returns.z <= -self.ruin_z and returns.effect <= -self.negligible

    def is_loss(self, returns: ReturnComparison) -> bool:
        """A significant loss of return that matters."""
        return returns.z <= -self.loss_z and returns.effect <= -self.negligible

    def is_gain(self, returns: ReturnComparison) -> bool:
        """A significant gain of return that matters."""
        return returns.z >= self.loss_z and returns.effect >= self.negligible

    def is_enough(self, returns: ReturnComparison) -> bool:
        """Whether returns can be judged; a loss that is no ruin has to show in three times as many episodes."""
        return returns.episodes >= self.min_episodes * (3 if self.is_loss(returns) else 1)


@dataclass(frozen=True)
class Verdict:
    """One decision of the tuner.

    Attributes:
        kind: ``survey``, ``trial``, ``accept``, ``reject``, ``audit``, ``passed``, ``fallback``, ``relax`` or
            ``hold``; what each means stands in ``monitor.tuner``.
        before, after: the level most actors act with, before and after.
        reason: one sentence.
        figures: the numbers it rests on.
    """

    kind: str
    before: str
    after: str
    reason: str
    figures: Mapping[str, Figure] = field(default_factory=dict)
