"""Chooses the compression level while training runs: measurements in, decisions out; no clock, no I/O.

    effective(level) = delivered(level) × ESS × retention,  retention = mean over an unroll's rows of overlap^trace
    delivered        = min(actors' rate, learner's rate); 1 / (1 / actors' rate + 1 / learner's rate) where actors and
                       learner take turns; 1 / (n / actors' rate + 1 / learner's rate) where the learner and n actors
                       share cores, so that the time of all adds up
    actors' rate     = Σ over actors of steps / (step_s + call_s(level) − call_s(acting) + load_s of both likewise)

The learner's rate is that under the level: on one machine, actors of a large policy take caches and memory bandwidth
from the learner, and a smaller policy makes both faster. A level that was not in use yet is therefore compared with
the level in use by their actors' rates alone, and left again where the learner turns out to be as slow beside it. Where
they take turns or share cores, the rate under the level in use counts for all.

``step_s`` is an actor's own time for a vector step, waiting left out, as its unrolls tell it; the calls are its own
timings, in rounds that take the levels in turns (``accel.acting.timing``). A level's effective experience over that of
the level in use is taken round by round; its median over rounds gets the lower bound of the sign test, which a few
rounds that other work on the machine disturbed do not move: of 15 rounds, the fourth least.

A level is taken at once where that bound exceeds ``gain`` and its mismatch is within the alarms. The finest level
within ``tolerance`` of the best is preferred, so that nothing is compressed where it does not pay. Where the learner is
the bottleneck on all levels, they deliver the same and full precision comes back: it has no mismatch, and the time that
a faster policy saved its actor would spend waiting. Where they take turns or share cores, that time is the learner's
and counts.

Returns guard a level afterwards (``return_guard.py``). A level that is left for a loss, an alarm, a failed check
or the mismatch that it has as it acts is banned, and each change of level delays the next to a coarser one, both with
exponential back-off.

Source of the bound: Thompson 1936, by order statistics. Deviations: none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from accel.monitor.decisions import Figure
from accel.monitor.errors import TunerError
from accel.monitor.mismatch import ESS_ALARM, KL_ALARM

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TunerOptions:
    """Thresholds and durations.

    Attributes:
        gain: a coarser level must give this much more effective experience, at the lower bound.
        tolerance: a finer level is preferred when it loses at most this much; gain + tolerance is the hysteresis.
        confidence: of the one-sided lower bound.
        agreeing: consecutive looks that must agree on a finer level.
        dwell_s, ban_s: the first delay from a change to a coarser level, and the first ban; each one after is twice as
            long.
        longest_s: of either.
        busy_env_share: the environment is the bottleneck from this share of the actors' step on.
    """

    gain: float = 0.05
    tolerance: float = 0.02
    confidence: float = 0.98
    agreeing: int = 4
    dwell_s: float = 2.0
    ban_s: float = 60.0
    longest_s: float = 3600.0
    busy_env_share: float = 0.7


@dataclass(frozen=True)
class LevelTiming:
    """What one actor measured of a level: microseconds of a call by round and of loading, and mismatch; see
    ``accel.acting.timing``."""

    call_us: Sequence[float]
    load_us: float
    kl: float = 0.0
    ess: float = 1.0
    overlap: float = 1.0


@dataclass(frozen=True)
class ActorTiming:
    """One actor.

    Attributes:
        step_us: a vector step on the level in use, waiting left out; env_us: of it, the environment.
        steps: valid environment steps of a vector step. loads: policies loaded in a vector step.
        levels: its timings, the level in use among them.
    """

    step_us: float
    env_us: float
    steps: float
    loads: float
    levels: Mapping[str, LevelTiming]

    def rate(self, level: str, acting: str) -> Floats:
        """Valid steps per second on a level, by round."""
        ours, theirs = self.levels[level], self.levels[acting]
        calls = np.asarray(ours.call_us, np.float64) - np.asarray(theirs.call_us, np.float64)
        step_us = self.step_us + calls + self.loads * (ours.load_us - theirs.load_us)
        return np.asarray(1e6 * self.steps / np.maximum(step_us, max(self.env_us, 0.02 * self.step_us)))


@dataclass(frozen=True)
class Measurements:
    """One look at the run.

    Attributes:
        time_s: any clock that does not go back, seconds.
        actors: those that have timed their levels.
        learner_rates: valid steps per second that the learner takes while it does not wait, on the levels that it is
            known of.
        shared: whether learner and actors share their cores. turns: whether the learner waits for the actors of each
            round, and they for it.
        traces: steps that the traces of an unroll's rows reach: min(horizon, T − t).
        quality: ESS × retention of compression as it acts, of levels that do, where it was sampled.
    """

    time_s: float
    actors: Sequence[ActorTiming]
    learner_rates: Mapping[str, float]
    shared: bool = False
    turns: bool = False
    traces: Sequence[int] = (1,)
    quality: Mapping[str, float] = field(default_factory=dict)

    @property
    def levels(self) -> tuple[str, ...]:
        """What every actor has timed."""
        first, *rest = self.actors
        return tuple(level for level in first.levels if all(level in actor.levels for actor in rest))

    @property
    def env_share(self) -> float:
        """The environments' share of the actors' steps on the level in use, in [0, 1]."""
        return sum(a.env_us for a in self.actors) / sum(a.step_us for a in self.actors)

    def actors_rate(self, level: str, acting: str) -> Floats:
        """Valid steps per second of all actors, were they all on a level and never waiting, by round."""
        return np.asarray(np.sum([actor.rate(level, acting) for actor in self.actors], axis=0))

    def worth(self, level: str) -> float:
        """ESS × retention of compression, in [0, 1]."""
        if level in self.quality:
            return self.quality[level]
        timed = [actor.levels[level] for actor in self.actors]
        overlap = np.mean([t.overlap for t in timed])
        return float(np.mean([t.ess for t in timed]) * np.mean(overlap ** np.asarray(self.traces)))

    def gain(self, level: str, acting: str) -> Floats:
        """Effective experience on a level over that on the level in use, by round."""
        rate, mine = self.actors_rate(level, acting), self.actors_rate(acting, acting)
        learner_rate = self.learner_rates.get(acting if self.shared or self.turns else level)
        if learner_rate is not None and acting in self.learner_rates:
            rate, mine = self._delivered(rate, learner_rate), self._delivered(mine, self.learner_rates[acting])
        return np.asarray(rate * self.worth(level) / np.maximum(mine * self.worth(acting), 1e-300))

    def _delivered(self, rate: Floats, learner_rate: float) -> Floats:
        """Steps per second that are learned from where all actors together can send so many."""
        if self.shared or self.turns:
            actors = len(self.actors) if self.shared else 1
            return np.asarray(1.0 / (actors / rate + 1.0 / learner_rate))
        return np.minimum(rate, learner_rate)

    def headroom(self, acting: str) -> float:
        """Effective experience of a policy that took no time at all, over that of the level in use."""
        free = sum(
            1e6 * actor.steps / max(actor.step_us - float(np.median(actor.levels[acting].call_us)), actor.env_us, 1e-3)
            for actor in self.actors
        )
        mine, learner_rate = self.actors_rate(acting, acting), self.learner_rates.get(acting)
        most = np.full_like(mine, free)
        if learner_rate is not None:
            most, mine = self._delivered(most, learner_rate), self._delivered(mine, learner_rate)
        return float(np.median(most / np.maximum(mine, 1e-300)))

    def alarm(self, level: str) -> str:
        """Why a level's mismatch does not allow it to act, as a clause; empty where it does."""
        kl = float(np.mean([actor.levels[level].kl for actor in self.actors]))
        ess = float(np.mean([actor.levels[level].ess for actor in self.actors]))
        if not kl <= KL_ALARM:
            return f"its KL from full precision is {kl:.3g} nats, above {KL_ALARM:g}"
        return "" if ess >= ESS_ALARM else f"its ESS is {ess:.3g}, below {ESS_ALARM:g}"

    def bottleneck(self, acting: str, busy_env_share: float) -> str:
        """What limits the run on the level in use, as a clause with its numbers."""
        rate, learner_rate = float(np.median(self.actors_rate(acting, acting))), self.learner_rates.get(acting)
        if learner_rate is not None and rate >= learner_rate and not self.shared:
            return (
                f"the learner is the bottleneck: the actors can send {rate:,.0f} steps/s with {acting}, and it takes "
                f"{learner_rate:,.0f}"
            )
        which = "environment" if self.env_share >= busy_env_share else "policy"
        return f"the {which} is the bottleneck: the environment takes {self.env_share:.0%} of an actor's step"


@dataclass(frozen=True)
class Gain:
    """A level's effective experience over that of the level in use: median over rounds, and its lower bound."""

    median: float
    low: float


@dataclass(frozen=True)
class TunerDecision:
    """``kind``: ``accept``, ``relax`` (back to a finer level, which is as good) or ``fallback``; ``before`` and
    ``after`` are levels, ``reason`` one sentence, ``figures`` the numbers it rests on."""

    kind: str
    before: str
    after: str
    reason: str
    figures: Mapping[str, Figure] = field(default_factory=dict)


class DoublingDelay:
    """Exponential back-off: each attempt doubles the delay before the next, ``first_s`` to ``longest_s``.

    The first attempt is made at once.
    """

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._next_s, self._longest_s, self._ready_s = first_s, longest_s, -math.inf

    def ready(self, time_s: float) -> bool:
        """Whether the next attempt may be made now."""
        return time_s >= self._ready_s

    def attempt(self, time_s: float) -> None:
        """Record an attempt now: a delay begins."""
        self._ready_s = time_s + self._next_s
        self._next_s = min(2.0 * self._next_s, self._longest_s)


class Tuner:
    """The choice for one run.

    Args:
        levels: from finest to coarsest; the first is full precision.
        options: thresholds and durations.
    Attributes:
        incumbent: the level in use.
    Raises:
        TunerError: fewer than two levels, or one of them twice.
    """

    def __init__(self, levels: Sequence[str], options: TunerOptions | None = None) -> None:
        if len(levels) < 2 or len(set(levels)) != len(levels):
            raise TunerError(f"a ladder needs at least two different levels, got {', '.join(levels) or 'none'}")
        self.levels = tuple(levels)
        self.incumbent = self.full = self.levels[0]
        self.options = o = options or TunerOptions()
        self._bans = {level: DoublingDelay(o.ban_s, o.longest_s) for level in self.levels}
        self._changes = DoublingDelay(o.dwell_s, o.longest_s)
        self._agreed = 0

    def allows(self, level: str, time_s: float) -> bool:
        """Whether a level may be timed and taken: it is not banned."""
        return level == self.full or self._bans[level].ready(time_s)

    def gains(self, m: Measurements) -> dict[str, Gain]:
        """Of the levels that every actor has timed; empty before the level in use is among them."""
        if not m.actors or self.incumbent not in m.levels:
            return {}
        found: dict[str, Gain] = {}
        for level in m.levels:
            ratios = np.sort(m.gain(level, self.incumbent))
            rank = _rank_of_lower_bound(len(ratios), self.options.confidence)
            found[level] = Gain(float(np.median(ratios)), float(ratios[rank - 1]) if rank else 0.0)
        return found

    def look(self, m: Measurements) -> TunerDecision | None:
        """Take or leave a level by what was measured; to be asked every quarter of a second or so."""
        gains = self.gains(m)
        choice = self._choose(m, gains) if gains else None
        if choice is None:
            return None
        is_finer = self.levels.index(choice) < self.levels.index(self.incumbent)
        self._agreed = self._agreed + 1 if is_finer else 0
        ready = self._agreed >= self.options.agreeing if is_finer else self._changes.ready(m.time_s)
        if choice == self.incumbent or not ready:
            return None
        kind, gain = "relax" if is_finer else "accept", gains[choice]
        timed = replace(m, quality={})
        if is_finer and self._choose(timed, self.gains(timed)) == self.incumbent:
            self._bans[self.incumbent].attempt(m.time_s)  # by its timing alone it would be taken again
        shown = f"{choice} gives {gain.median - 1:+.0%} effective experience, {gain.low - 1:+.0%} at least"
        return self._change(m, kind, choice, f"{shown}; {m.bottleneck(self.incumbent, self.options.busy_env_share)}")

    def _choose(self, m: Measurements, gains: Mapping[str, Gain]) -> str | None:
        """The level that measurements speak for; None: not even for the one in use."""
        allowed = [level for level in self.levels if level in gains and self.allows(level, m.time_s)]
        # the mismatch of the level in use is watched as it acts, on many more states than a timing has
        allowed = [level for level in allowed if level in (self.full, self.incumbent) or not m.alarm(level)]
        needed = {level: 1.0 + self.options.gain if self._is_coarser(level) else 0.0 for level in allowed}
        able = [level for level in allowed if gains[level].low >= needed[level]]
        if not able:
            return None
        floor = (1.0 - self.options.tolerance) * max(gains[level].median for level in able)
        return next(level for level in able if gains[level].median >= floor)

    def fall_back(self, m: Measurements, reason: str) -> TunerDecision:
        """Leave the level in use for full precision, and ban it."""
        self._bans[self.incumbent].attempt(m.time_s)
        return self._change(m, "fallback", self.full, reason)

    def stays(self, m: Measurements) -> str:
        """Why the level in use is kept, as a sentence with the best other level's gain."""
        if self.incumbent not in m.levels:
            return f"{self.incumbent} stays: it could not be timed"
        gains = {level: gain for level, gain in self.gains(m).items() if level != self.incumbent}
        reason = f"{self.incumbent} stays: {m.bottleneck(self.incumbent, self.options.busy_env_share)}"
        if not gains:
            return reason
        best = max(gains, key=lambda level: gains[level].median)
        alarm = "" if best == self.full else m.alarm(best)
        agreed = f"; so {self._agreed} of {self.options.agreeing} looks say" if self._agreed else ""
        return (
            f"{reason}; {best} would give {gains[best].median - 1:+.0%} effective experience, "
            f"{gains[best].low - 1:+.0%} at least{', but ' if alarm else ''}{alarm}{agreed}"
        )

    def figures(self, m: Measurements) -> dict[str, Figure]:
        """The numbers that a decision rests on, by name."""
        found: dict[str, Figure] = {f"learner_rate/{level}": rate for level, rate in m.learner_rates.items()}
        found["env_share"] = m.env_share if m.actors else None
        for level, gain in self.gains(m).items():
            timed = [actor.levels[level] for actor in m.actors]
            found |= {
                f"rate/{level}": float(np.median(m.actors_rate(level, self.incumbent))),
                f"gain/{level}": gain.median,
                f"gain_low/{level}": gain.low,
                f"call_us/{level}": float(np.mean([np.median(t.call_us) for t in timed])),
                f"kl/{level}": float(np.mean([t.kl for t in timed])),
                f"quality/{level}": m.worth(level),
            }
        return found

    def _is_coarser(self, level: str) -> bool:
        return self.levels.index(level) > self.levels.index(self.incumbent)

    def _change(self, m: Measurements, kind: str, level: str, reason: str) -> TunerDecision:
        decision = TunerDecision(kind, self.incumbent, level, reason, self.figures(m))
        self._changes.attempt(m.time_s)
        self.incumbent, self._agreed = level, 0
        return decision


def _rank_of_lower_bound(count: int, confidence: float) -> int:
    """k: the k-th least of so many values is below their median with this confidence; 0: not even the least is."""
    below, rank = 0.5**count, 0
    while below <= 1.0 - confidence:
        rank += 1
        below += math.comb(count, rank) * 0.5**count
    return rank
