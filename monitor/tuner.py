"""Chooses the compression level while training runs: measurements in, decisions out. No clock, no I/O.

It maximises effective experience, min(actors' rate, learner's rate) × ESS × retention, with the rate of both in turns
where they share a process (``monitor.tuner_value``), subject to: no significant loss of return against concurrent
environments on the best level so far, and compression mismatch within its bounds.

    wait     until levels besides full precision can be published (they need calibration)
    survey   everybody acts as before and times every level on its own machine, without acting on it
    hold     everybody on the incumbent; left for the level that promises ``gain`` more effective experience. A finer
             one is preferred when it loses less than ``tolerance``, so that where the learner or the environment is
             the bottleneck nothing is compressed
    trial    candidate beside reference, accepted only when the measured gain is there and returns show no loss
    audit    a small reference, or full precision where that is the incumbent, beside the incumbent, ever more rarely

Decisions (``Verdict.kind``): survey, trial, accept, reject, audit, passed, fallback (alarm or loss), relax (back to
full precision because less compression is as good), hold (a survey that found nothing worth a trial).

Why it cannot flap: a coarser level must gain ``gain``, a finer one may lose ``tolerance``, and between them nothing
moves; a level that is rejected or left is banned, twice as long each time, and judged anew after it; and once every
level has had its turn, each further change doubles the time until the next. Whatever the noise, n levels see at most
n + 1 + log2(1 + D / dwell) changes that no alarm or loss of return forced, in a duration D.

The reference starts as full precision. Another level becomes it only after its returns were significantly *better*, so
that small losses cannot add up from level to level; and it stops being it when it loses against full precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from monitor import tuner_lanes as lanes
from monitor.errors import TunerError
from monitor.tuner_bans import Bans
from monitor.tuner_measurements import Measurements, Split, TunerOptions, Verdict
from monitor.tuner_occasions import Occasions
from monitor.tuner_returns import ReturnComparison
from monitor.tuner_trial import is_over, objection
from monitor.tuner_value import concurrent_qualities, effective, explain, figures

Stage = Literal["wait", "survey", "hold", "trial", "audit"]


class Tuner:
    """The choice for one run.

    Args:
        levels: from finest to coarsest; the first is full precision.
        envs: environments of each actor.
        options: thresholds and durations.
    Attributes:
        incumbent: the level in use. reference: what returns are held against. candidate: on trial, or None.
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
        self._own_quality: dict[str, float] = {}
        self._bans = Bans(self._options.ban)
        self.window = self._changes = self._agreeing = 0
        self._chosen: tuple[str | None, int] = (None, 0)
        self._stage_since: float | None = None
        self._available: tuple[str, ...] = (self.full,)
        self._hold_until = 0.0
        self._audits = Occasions(self._options.audit_interval, self._options.max_audit_interval)
        self._surveys = Occasions(self._options.survey_interval, self._options.max_survey_interval)
        self._steps: dict[Stage, Callable[[Measurements], Verdict | None]] = {
            "wait": self._wait,
            "survey": self._survey,
            "hold": self._hold,
            "trial": self._trial,
            "audit": self._audit,
        }

    @property
    def compared(self) -> tuple[str, str] | None:
        """(candidate or incumbent, what it is held against), by returns; None outside trials and audits."""
        if self.stage == "trial" and self.candidate is not None:
            return self.candidate, self.reference
        return (self.incumbent, self._audited_against) if self.stage == "audit" else None

    @property
    def _audited_against(self) -> str:
        """A gain that made the incumbent the reference may have been chance, or past, and has to show again."""
        return self.full if self.incumbent == self.reference else self.reference

    def assignments(self, actors: Sequence[int]) -> Mapping[int, Split]:
        """What each living actor should act with now."""
        if not actors:
            return {}
        if not lanes.can_compare(actors, self._envs):
            return {actor: lanes.whole(self.full, self._envs) for actor in actors}
        if self.stage == "survey":
            return lanes.survey(actors, self._envs, self.incumbent, self._available)
        if self.compared is None:
            return {actor: lanes.whole(self.incumbent, self._envs) for actor in actors}
        level, other = self.compared
        common = {"incumbent": self.incumbent, "reference": other}
        if self.stage == "trial":
            return lanes.trial(actors, self._envs, candidate=level, turn=self.window, **common)
        return lanes.audit(actors, self._envs, turn=self.window, **common)

    def observe(self, m: Measurements) -> Verdict | None:
        """Take in one look at the run; afterwards ``assignments`` may have changed."""
        if not lanes.can_compare(m.actors, self._envs):
            return None
        if self._stage_since is None:
            self._stage_since = m.time_s
        for level, measured in m.levels.items():
            if measured.compression_quality is not None:
                self._own_quality[level] = measured.compression_quality
        return self._heed_alarms(m) or self._steps[self.stage](m)

    def _heed_alarms(self, m: Measurements) -> Verdict | None:
        for level in dict.fromkeys((self.candidate, self.incumbent, self.reference)):
            if level is None or level == self.full or level not in m.levels or not m.levels[level].alarms:
                continue
            reason = f"{level} is out of bounds: {'; '.join(m.levels[level].alarms)}"
            if self.reference == level:
                self.reference = self.full
            if level == self.candidate:
                return self._reject(m, reason)
            if level == self.incumbent:
                return self._change(m, "fallback", self.full, reason)
        return None

    def _wait(self, m: Measurements) -> Verdict | None:
        if len(m.levels) == len(self.levels) or (len(m.levels) > 1 and self._elapsed(m) >= self._options.patience):
            return self._start_survey(m)
        if len(m.levels) <= 1:
            self._stage_since = m.time_s
        return None

    def _start_survey(self, m: Measurements) -> Verdict:
        self._available = tuple(level for level in self.levels if level in m.levels)
        self._enter("survey", m)
        return self._verdict("survey", m, f"actors time {', '.join(self._available)} on their own machines")

    def _survey(self, m: Measurements) -> Verdict | None:
        if not m.surveyed and self._elapsed(m) < self._options.patience:
            return None
        self._surveys.passed(m.time_s)
        self._enter("hold", m)
        return self._choose(m, looks=1) or self._verdict(
            "hold", m, f"{self.incumbent} stays: {explain(m, self.incumbent, self._options.busy_env_share)}"
        )

    def _hold(self, m: Measurements) -> Verdict | None:
        if m.time_s < self._hold_until:
            return None
        verdict = self._relax(m) or self._choose(m, looks=self._options.confirmations)
        other = self._audited_against
        if verdict is None and self.incumbent != other and self._audits.due(m.time_s):
            self._enter("audit", m)
            return self._verdict("audit", m, f"some environments act on {other} to compare {self.incumbent} with")
        if verdict is None and self._surveys.due(m.time_s):
            return self._start_survey(m)
        return verdict

    def _relax(self, m: Measurements) -> Verdict | None:
        """Back to full precision when that is as good, seen several times in a row."""
        mine, full = (effective(m, level, self._own_quality.get(level, 1.0)) for level in (self.incumbent, self.full))
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
        limit = explain(m, self.full, self._options.busy_env_share)
        return self._change(m, "relax", self.full, f"{self.full} gives {lost:+.1%} effective experience; {limit}")

    def _choose(self, m: Measurements, looks: int) -> Verdict | None:
        """Start a trial of the most promising level, or of the finest that promises about the same, after ``looks``."""
        promises = self._promises(m)
        floor = (1.0 - self._options.tolerance) * max(promises.values(), default=0.0)
        choice = next((level for level in self.levels if level in promises and promises[level] >= floor), None)
        self._chosen = (choice, self._chosen[1] + 1 if choice == self._chosen[0] else 1)
        if choice is None or self._chosen[1] < looks:
            return None
        self.candidate = choice
        self._enter("trial", m)
        limit = explain(m, self.incumbent, self._options.busy_env_share)
        return self._verdict(
            "trial", m, f"{choice} promises {promises[choice] - 1.0:+.0%} effective experience; {limit}"
        )

    def _promises(self, m: Measurements) -> dict[str, float]:
        """Relative gain, plus 1, in effective experience over the incumbent's, of the levels worth a trial."""
        mine = effective(m, self.incumbent, self._own_quality.get(self.incumbent, 1.0))
        if mine is None:
            return {}
        promises: dict[str, float] = {}
        for level in self.levels:
            if level in (self.incumbent, self.full) or level not in m.levels:
                continue
            if self._bans.holds(level, m.time_s):
                continue
            if self._bans.lift(level, m.time_s):
                # The policy has changed since: judge the level anew.
                self._own_quality.pop(level, None)
            promise = effective(m, level, self._own_quality.get(level, 1.0))
            if promise is not None and promise >= self._needed(level) * mine:
                promises[level] = promise / mine
        return promises

    def _needed(self, level: str) -> float:
        """Effective experience over the incumbent's that a level must have."""
        coarser = self.levels.index(level) > self.levels.index(self.incumbent)
        return 1.0 + self._options.gain if coarser else 1.0 - self._options.tolerance

    def _trial(self, m: Measurements) -> Verdict | None:
        candidate = self.candidate
        if candidate is None or candidate not in m.levels:
            return self._reject(m, f"{candidate} cannot be published any more")
        if not is_over(m, candidate, self._elapsed(m), self._options):
            return None
        objected = objection(m, candidate, self._own_quality.get(candidate, 0.0), self._options)
        return self._reject(m, objected) if objected else self._weigh(m, candidate, m.returns or ReturnComparison())

    def _weigh(self, m: Measurements, candidate: str, returns: ReturnComparison) -> Verdict:
        qualities = concurrent_qualities(m, (candidate, self.incumbent), self._own_quality)
        mine = effective(m, self.incumbent, qualities[self.incumbent])
        promised = effective(m, candidate, qualities[candidate])
        if mine is None or promised is None or promised < self._needed(candidate) * mine:
            shown = "unknown" if mine is None or promised is None else f"{promised / mine - 1.0:+.1%}"
            return self._reject(m, f"{candidate} gains too little effective experience: {shown}")
        if self._options.is_gain(returns):
            self.reference = candidate
        gain = f"{promised / mine - 1.0:+.0%} effective experience"
        return self._change(m, "accept", candidate, f"{candidate} gives {gain}; {returns}")

    def _audit(self, m: Measurements) -> Verdict | None:
        options, returns = self._options, m.returns or ReturnComparison()
        late = self._elapsed(m) >= options.trial_patience
        if not (late or options.is_ruin(returns) or options.is_enough(returns)):
            return None
        if options.is_ruin(returns) or options.is_loss(returns):
            self.reference = self._audited_against
            return self._change(m, "fallback", self.reference, f"{self.incumbent} loses return: {returns}")
        if options.is_gain(returns):
            self.reference = self.incumbent
        self._audits.passed(m.time_s)
        verdict = self._verdict("passed", m, f"{self.incumbent} shows no loss: {returns}")
        self._enter("hold", m)
        return verdict

    def _reject(self, m: Measurements, reason: str) -> Verdict:
        verdict = self._verdict("reject", m, reason)
        if self.candidate is not None:
            self._bans.add(self.candidate, m.time_s)
        self._enter("hold", m)
        self._hold_until = max(self._hold_until, m.time_s + self._options.dwell)
        return verdict

    def _change(self, m: Measurements, kind: str, level: str, reason: str) -> Verdict:
        before, self.incumbent = self.incumbent, level
        # One that acts no more would else be judged for ever by the quality that it had last.
        if before != self.full:
            self._bans.add(before, m.time_s)
        verdict = Verdict(kind, before, level, reason, self._figures(m))
        self._changes += 1
        self._hold_until = m.time_s + self._options.dwell * 2.0 ** max(0, self._changes - len(self.levels))
        self._audits.restart(m.time_s)
        self._agreeing = 0
        self._enter("hold", m)
        return verdict

    def _enter(self, stage: Stage, m: Measurements) -> None:
        self.stage = stage
        self._stage_since = m.time_s
        self._chosen = (None, 0)
        if stage != "trial":
            self.candidate = None
        self.window += 1

    def _elapsed(self, m: Measurements) -> float:
        return m.time_s - (m.time_s if self._stage_since is None else self._stage_since)

    def _figures(self, m: Measurements) -> Mapping[str, float | int | str | None]:
        return figures(m, self._own_quality, self.incumbent, self._options.busy_env_share)

    def _verdict(self, kind: str, m: Measurements, reason: str) -> Verdict:
        after = self.candidate if kind == "trial" and self.candidate is not None else self.incumbent
        return Verdict(kind, self.incumbent, after, reason, self._figures(m))
