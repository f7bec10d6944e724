"""The tuner's stages, and when it moves from one to the next.

It maximises effective experience, min(actors' rate, learner's rate) × ESS × retention (``monitor.tuner.measurements``),
subject to: no significant loss of return against concurrent environments on the reference, and compression mismatch
within its alarm levels.

    wait     until a compressed level can be published (calibration needs observations)
    survey   every actor acts as before and times every level on its machine, without acting on it
    hold     every actor on the incumbent, until another level is predicted to give ``gain`` more effective experience.
             A finer one is preferred when it loses less than ``tolerance``, so nothing is compressed where the learner
             or the environment is the bottleneck
    trial    candidate and reference at the same time; accepted only if the gain is measured and returns show no loss
    audit    part of the environments on the reference (or full precision, where the incumbent is the reference), with
             exponential back-off

Decisions (``TunerDecision.kind``): survey, trial, accept, reject, audit, passed (an audit without loss), fallback (an
alarm or a loss), relax (back to full precision, which is as good), hold (a survey that found no candidate).

Why it cannot flap: a coarser level must gain ``gain``, a finer one may lose ``tolerance``, and in between nothing
changes; bans of rejected and replaced levels, and holds once every level has had its turn, back off exponentially.
Whatever the noise, n levels see at most n + 1 + log2(1 + D / dwell) changes in a duration D, apart from those forced by
an alarm or a loss of return.

The reference starts as full precision. Another level becomes it only after its returns were significantly *better*, so
that small losses cannot add up from level to level; it is replaced by full precision when it loses against that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from monitor.decisions import Figure
from monitor.errors import TunerError
from monitor.tuner import assignment
from monitor.tuner.assignment import Split
from monitor.tuner.backoff import ExponentialBackoff
from monitor.tuner.criteria import TunerOptions
from monitor.tuner.measurements import Measurements
from monitor.tuner.returns import ReturnComparison

Stage = Literal["wait", "survey", "hold", "trial", "audit"]


@dataclass(frozen=True)
class TunerDecision:
    """One decision of the tuner.

    Attributes:
        kind: ``survey``, ``trial``, ``accept``, ``reject``, ``audit``, ``passed``, ``fallback``, ``relax`` or
            ``hold``; see the module's docstring.
        before, after: the level most actors act with, before and after.
        reason: one sentence.
        figures: the numbers it rests on.
    """

    kind: str
    before: str
    after: str
    reason: str
    figures: Mapping[str, Figure] = field(default_factory=dict)


class Tuner:
    """The choice for one run.

    Args:
        levels: from finest to coarsest; the first is full precision.
        envs: environments of each actor.
        options: thresholds and durations.
    Attributes:
        incumbent: the level in use. reference: what its returns are compared with. candidate: on trial, or None.
        window: changes whenever the assignment does; measurements should then start afresh.
    Raises:
        TunerError: fewer than two levels, or one of them twice.
    """

    def __init__(self, levels: Sequence[str], envs: int, options: TunerOptions | None = None) -> None:
        if len(levels) < 2 or len(set(levels)) != len(levels):
            raise TunerError(f"a ladder needs at least two different levels, got {', '.join(levels) or 'none'}")
        self.levels = tuple(levels)
        self.full = self.levels[0]
        self.incumbent = self.reference = self.full
        self.candidate: str | None = None
        self.stage: Stage = "wait"
        self._options = options or TunerOptions()
        self._envs = envs
        self._compression_quality: dict[str, float] = {}
        self.window = self._agreeing = 0
        self._chosen: tuple[str | None, int] = (None, 0)
        self._stage_since: float | None = None
        self._available: tuple[str, ...] = (self.full,)
        o = self._options
        self._bans = {level: ExponentialBackoff(o.ban, factor=o.backoff_factor) for level in self.levels}
        self._banned: set[str] = set()
        self._hold_end = ExponentialBackoff(o.dwell, constant=len(self.levels), factor=o.backoff_factor)
        self._audits = ExponentialBackoff(o.audit_interval, o.max_audit_interval, factor=o.backoff_factor)
        self._surveys = ExponentialBackoff(o.survey_interval, o.max_survey_interval, factor=o.backoff_factor)
        self._steps: dict[Stage, Callable[[Measurements], TunerDecision | None]] = {
            "wait": self._wait,
            "survey": self._survey,
            "hold": self._hold,
            "trial": self._trial,
            "audit": self._audit,
        }

    @property
    def compared(self) -> tuple[str, str] | None:
        """The levels whose returns are compared, candidate or incumbent first; None outside trials and audits."""
        if self.stage == "trial" and self.candidate is not None:
            return self.candidate, self.reference
        return (self.incumbent, self._audited_against) if self.stage == "audit" else None

    @property
    def _audited_against(self) -> str:
        """Full precision where the incumbent is the reference: its gain may have been chance, or may be over."""
        return self.full if self.incumbent == self.reference else self.reference

    def assignments(self, actors: Sequence[int]) -> Mapping[int, Split]:
        """What each living actor should act with now."""
        if not actors:
            return {}
        if not assignment.can_compare(actors, self._envs):
            return {actor: assignment.whole(self.full, self._envs) for actor in actors}
        if self.stage == "survey":
            return assignment.survey(actors, self._envs, self.incumbent, self._available)
        if self.compared is None:
            return {actor: assignment.whole(self.incumbent, self._envs) for actor in actors}
        level, other = self.compared
        common = {"incumbent": self.incumbent, "reference": other}
        if self.stage == "trial":
            return assignment.trial(actors, self._envs, candidate=level, turn=self.window, **common)
        return assignment.audit(actors, self._envs, turn=self.window, **common)

    def observe(self, m: Measurements) -> TunerDecision | None:
        """Advance by one observation of the run; ``assignments`` may change."""
        if not assignment.can_compare(m.actors, self._envs):
            return None
        if self._stage_since is None:
            self._stage_since = m.time_s
        for level, measured in m.levels.items():
            if measured.compression_quality is not None:
                self._compression_quality[level] = measured.compression_quality
        return self._fall_back_on_alarm(m) or self._steps[self.stage](m)

    def _fall_back_on_alarm(self, m: Measurements) -> TunerDecision | None:
        for level in dict.fromkeys((self.candidate, self.incumbent, self.reference)):
            if level is None or level == self.full or level not in m.levels or not m.levels[level].alarms:
                continue
            reason = f"mismatch alarm of {level}: {'; '.join(m.levels[level].alarms)}"
            if self.reference == level:
                self.reference = self.full
            if level == self.candidate:
                return self._reject(m, reason)
            if level == self.incumbent:
                return self._change(m, "fallback", self.full, reason)
        return None

    def _wait(self, m: Measurements) -> TunerDecision | None:
        if len(m.levels) == len(self.levels) or (len(m.levels) > 1 and self._elapsed(m) >= self._options.patience):
            return self._start_survey(m)
        if len(m.levels) <= 1:
            self._stage_since = m.time_s
        return None

    def _start_survey(self, m: Measurements) -> TunerDecision:
        self._available = tuple(level for level in self.levels if level in m.levels)
        self._enter("survey", m)
        return self._decision("survey", m, f"actors time {', '.join(self._available)} on their own machines")

    def _survey(self, m: Measurements) -> TunerDecision | None:
        if not m.surveyed and self._elapsed(m) < self._options.patience:
            return None
        self._surveys.attempt(m.time_s)
        self._enter("hold", m)
        return self._choose(m, agreeing=1) or self._decision(
            "hold", m, f"{self.incumbent} stays: {m.explain(self.incumbent, self._options.busy_env_share)}"
        )

    def _hold(self, m: Measurements) -> TunerDecision | None:
        if not self._hold_end.ready(m.time_s):
            return None
        decision = self._relax(m) or self._choose(m, agreeing=self._options.confirmations)
        other = self._audited_against
        if decision is None and self.incumbent != other and self._audits.ready(m.time_s):
            self._enter("audit", m)
            return self._decision("audit", m, f"part of the environments act on {other}, to compare returns")
        if decision is None and self._surveys.ready(m.time_s):
            return self._start_survey(m)
        return decision

    def _relax(self, m: Measurements) -> TunerDecision | None:
        """Return to full precision when several consecutive observations find it as good."""
        mine, full = (self._effective(m, level) for level in (self.incumbent, self.full))
        agrees = (
            self.incumbent != self.full
            and mine is not None
            and full is not None
            and full >= (1.0 - self._options.tolerance) * mine
        )
        self._agreeing = self._agreeing + 1 if agrees else 0
        if self._agreeing < self._options.confirmations:
            return None
        lost = 0.0 if full is None or mine is None else full / mine - 1.0
        limit = m.explain(self.full, self._options.busy_env_share)
        return self._change(m, "relax", self.full, f"{self.full} gives {lost:+.1%} effective experience; {limit}")

    def _choose(self, m: Measurements, agreeing: int) -> TunerDecision | None:
        """Start a trial of the level with the greatest predicted gain, or of a finer one within the tolerance of it.

        Args:
            agreeing: consecutive observations that must choose the same level.
        """
        predictions = self._predicted_gains(m)
        floor = (1.0 - self._options.tolerance) * max(predictions.values(), default=0.0)
        choice = next((level for level in self.levels if level in predictions and predictions[level] >= floor), None)
        self._chosen = (choice, self._chosen[1] + 1 if choice == self._chosen[0] else 1)
        if choice is None or self._chosen[1] < agreeing:
            return None
        self.candidate = choice
        self._enter("trial", m)
        limit = m.explain(self.incumbent, self._options.busy_env_share)
        return self._decision(
            "trial", m, f"{choice} is predicted to give {predictions[choice] - 1.0:+.0%} effective experience; {limit}"
        )

    def _predicted_gains(self, m: Measurements) -> dict[str, float]:
        """Predicted effective experience over the incumbent's, of the levels for which it suffices for a trial."""
        mine = self._effective(m, self.incumbent)
        if mine is None:
            return {}
        predictions: dict[str, float] = {}
        for level in self.levels:
            if level in (self.incumbent, self.full) or level not in m.levels:
                continue
            if not self._bans[level].ready(m.time_s):
                continue
            if level in self._banned:
                # The policy has changed since the ban: the old quality no longer applies.
                self._banned.discard(level)
                self._compression_quality.pop(level, None)
            prediction = self._effective(m, level)
            if prediction is not None and prediction >= self._needed(level) * mine:
                predictions[level] = prediction / mine
        return predictions

    def _needed(self, level: str) -> float:
        """Least ratio of effective experience to the incumbent's at which a level may replace it."""
        coarser = self.levels.index(level) > self.levels.index(self.incumbent)
        return 1.0 + self._options.gain if coarser else 1.0 - self._options.tolerance

    def _trial(self, m: Measurements) -> TunerDecision | None:
        candidate = self.candidate
        if candidate is None or candidate not in m.levels:
            return self._reject(m, f"{candidate} cannot be published any more")
        if not self._options.trial_is_over(m, candidate, self._elapsed(m)):
            return None
        failure = self._options.trial_failure(m, candidate, self._compression_quality.get(candidate, 0.0))
        if failure:
            return self._reject(m, failure)
        return self._accept_if_better(m, candidate, m.returns or ReturnComparison())

    def _accept_if_better(self, m: Measurements, candidate: str, returns: ReturnComparison) -> TunerDecision:
        qualities = m.qualities((candidate, self.incumbent), self._compression_quality)
        mine = m.effective_rate(self.incumbent, qualities[self.incumbent])
        gained = m.effective_rate(candidate, qualities[candidate])
        if mine is None or gained is None or gained < self._needed(candidate) * mine:
            shown = "unknown" if mine is None or gained is None else f"{gained / mine - 1.0:+.1%}"
            return self._reject(m, f"{candidate} gains too little effective experience: {shown}")
        if self._options.is_gain(returns):
            self.reference = candidate
        gain = f"{gained / mine - 1.0:+.0%} effective experience"
        return self._change(m, "accept", candidate, f"{candidate} gives {gain}; {returns}")

    def _audit(self, m: Measurements) -> TunerDecision | None:
        options, returns = self._options, m.returns or ReturnComparison()
        late = self._elapsed(m) >= options.trial_patience
        if not (late or options.is_severe_loss(returns) or options.is_enough(returns)):
            return None
        if options.is_severe_loss(returns) or options.is_loss(returns):
            self.reference = self._audited_against
            return self._change(m, "fallback", self.reference, f"{self.incumbent} loses return: {returns}")
        if options.is_gain(returns):
            self.reference = self.incumbent
        self._audits.attempt(m.time_s)
        decision = self._decision("passed", m, f"{self.incumbent} shows no loss: {returns}")
        self._enter("hold", m)
        return decision

    def _reject(self, m: Measurements, reason: str) -> TunerDecision:
        decision = self._decision("reject", m, reason)
        if self.candidate is not None:
            self._ban(self.candidate, m)
        self._enter("hold", m)
        self._hold_end.postpone(m.time_s + self._options.dwell)
        return decision

    def _change(self, m: Measurements, kind: str, level: str, reason: str) -> TunerDecision:
        before, self.incumbent = self.incumbent, level
        if before != self.full:
            self._ban(before, m)
        decision = TunerDecision(kind, before, level, reason, self._figures(m))
        self._hold_end.attempt(m.time_s)
        self._audits.reset()
        self._audits.attempt(m.time_s)
        self._agreeing = 0
        self._enter("hold", m)
        return decision

    def _ban(self, level: str, m: Measurements) -> None:
        self._bans[level].attempt(m.time_s)
        self._banned.add(level)

    def _enter(self, stage: Stage, m: Measurements) -> None:
        self.stage = stage
        self._stage_since = m.time_s
        self._chosen = (None, 0)
        if stage != "trial":
            self.candidate = None
        self.window += 1

    def _elapsed(self, m: Measurements) -> float:
        return m.time_s - (m.time_s if self._stage_since is None else self._stage_since)

    def _effective(self, m: Measurements, level: str) -> float | None:
        return m.effective_rate(level, self._compression_quality.get(level, 1.0))

    def _figures(self, m: Measurements) -> Mapping[str, Figure]:
        return m.figures(self._compression_quality, self.incumbent, self._options.busy_env_share)

    def _decision(self, kind: str, m: Measurements, reason: str) -> TunerDecision:
        after = self.candidate if kind == "trial" and self.candidate is not None else self.incumbent
        return TunerDecision(kind, self.incumbent, after, reason, self._figures(m))
