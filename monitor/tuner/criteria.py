"""The tuner's thresholds and durations, and when they say that a trial is over or has failed."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.tuner.measurements import Measurements
from monitor.tuner.returns import ReturnComparison


@dataclass(frozen=True)
class TunerOptions:
    """Thresholds and durations, in seconds. Durations marked "backs off" grow exponentially, which prevents flapping.

    Attributes:
        gain: a coarser level must be predicted, and then measured, to give this much more effective experience.
        tolerance: a finer level is preferred when it loses at most this much; gain − tolerance is the hysteresis.
        dwell: shortest trial, and shortest hold after a change, which backs off after one change for each level.
        audit_interval: from a change to the first audit of the level in use; backs off up to its maximum.
        survey_interval: from one survey of the actors to the next; backs off up to its maximum.
        ban: how long a level that was rejected or left is not tried again; backs off.
        backoff_factor: growth of the durations that back off.
        patience: a survey ends after this, with the measurements there are.
        trial_patience: a trial or audit is decided after this, with the episodes there are.
        min_episodes: whole episodes of each side before returns are judged; three times as many to confirm a loss, a
            third for a severe one.
        min_samples: mismatch samples of a level before it may be accepted.
        loss_z: standard errors of a significant loss of return; one-sided 1 % for 2.33.
        severe_loss_z: the same for a loss that ends a comparison early, tested at every observation.
        negligible: losses below this many standard deviations of the reference's returns are ignored.
        min_untested_quality: compression ESS × retention required to accept a level when fewer than ``min_episodes``
            episodes ended within the patience.
        confirmations: consecutive observations that must agree before a hold ends in a trial or in full precision.
        busy_env_share: the environment counts as the actors' bottleneck from this share of their busy time on.
    """

    gain: float = 0.05
    tolerance: float = 0.02
    dwell: float = 2.0
    audit_interval: float = 10.0
    max_audit_interval: float = 600.0
    survey_interval: float = 60.0
    max_survey_interval: float = 1800.0
    ban: float = 20.0
    backoff_factor: float = 2.0
    patience: float = 10.0
    trial_patience: float = 300.0
    min_episodes: int = 24
    min_samples: int = 2
    loss_z: float = 2.33
    severe_loss_z: float = 4.0
    negligible: float = 0.1
    min_untested_quality: float = 0.9
    confirmations: int = 3
    busy_env_share: float = 0.7

    def is_severe_loss(self, returns: ReturnComparison) -> bool:
        """A loss of return so large that the comparison ends early."""
        enough = returns.episodes >= max(self.min_episodes // 3, 4)
        return enough and returns.z <= -self.severe_loss_z and returns.effect <= -self.negligible

    def is_loss(self, returns: ReturnComparison) -> bool:
        """A significant loss of return that is not negligible."""
        return returns.z <= -self.loss_z and returns.effect <= -self.negligible

    def is_gain(self, returns: ReturnComparison) -> bool:
        """A significant gain of return that is not negligible."""
        return returns.z >= self.loss_z and returns.effect >= self.negligible

    def is_enough(self, returns: ReturnComparison) -> bool:
        """Whether there are enough episodes to judge returns; a loss needs three times as many."""
        return returns.episodes >= self.min_episodes * (3 if self.is_loss(returns) else 1)

    def trial_is_over(self, m: Measurements, candidate: str, elapsed_s: float) -> bool:
        """Whether a trial can be judged: at a severe loss, when enough is measured, or when patience has run out."""
        returns = m.returns or ReturnComparison()
        if self.is_severe_loss(returns):
            return True
        is_late = elapsed_s >= self.trial_patience
        return elapsed_s >= self.dwell and (is_late or (self._is_measured(m, candidate) and self.is_enough(returns)))

    def trial_failure(self, m: Measurements, candidate: str, quality: float) -> str:
        """Why a candidate is rejected whatever its speed, as a sentence; empty when nothing speaks against it.

        Args:
            quality: ESS × retention of its compression, as last measured.
        """
        returns = m.returns or ReturnComparison()
        if self.is_severe_loss(returns):
            return f"severe loss of return with {candidate}: {returns}"
        if not self._is_measured(m, candidate):
            return f"{candidate} could not be measured in {self.trial_patience:.0f} s"
        if self.is_loss(returns):
            return f"{candidate} loses return: {returns}"
        if returns.episodes < self.min_episodes and quality < self.min_untested_quality:
            few = f"only {returns.episodes} whole episodes of {candidate} in {self.trial_patience:.0f} s"
            return f"{few}, and its ESS × retention is {quality:.2f}, below {self.min_untested_quality:g}"
        return ""

    def _is_measured(self, m: Measurements, candidate: str) -> bool:
        measured = m.levels[candidate]
        return measured.samples >= self.min_samples and measured.rate is not None
