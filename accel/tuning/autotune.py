"""Steers compression by the monitor's tuner: gathers what it measures, and turns what it decides into assignments.

Full precision acts at once. The next level is prepared after the first second, as a run may be over by then, each other
one when those before it have been timed, and only while a policy that took no time would bring ``HEADROOM`` times as
much experience: to prune or distil takes seconds of the learner's cores. As soon as a level can be published, and has
not been timed since, every actor times all levels that can be, on its own observations, while it acts as before
(``accel.acting.timing``); later again, twice as rarely each time. Four times a second the tuner compares them with what
learner and actors did meanwhile. A level that it takes is every actor's with the next publication. Every decision is
logged with its figures; a resumed run cuts off those after its checkpoint and decides anew.

Metrics: ``level`` (in use), ``learner_rate`` (valid steps/s that the learner takes while it does not wait or, in one
process, act), ``unblocked_rate/<level>`` (valid steps/s of all actors, were they all on it and never waiting).
"""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from accel.acting.timing import assignment, join_levels
from accel.config import TrainConfig
from accel.experience.unroll import ACTOR_PHASES, Unroll
from accel.json_object import Json
from accel.monitor.decisions import DecisionLog
from accel.monitor.mismatch import effective_horizon
from accel.monitor.return_guard import ReturnGuard, Verdict
from accel.monitor.timers import PhaseTimes
from accel.monitor.tuner import (
    ActorTiming,
    DoublingDelay,
    LevelTiming,
    Measurements,
    Tuner,
    TunerDecision,
    TunerOptions,
)
from accel.publishing.publisher import Publisher
from accel.transport.base import LearnerTransport
from accel.tuning.choice import CompressionChoice
from accel.tuning.mismatch_sampling import MismatchSampler, average
from accel.tuning.steering import AnnealedSteering, FixedSteering, Metrics, Steering

LOOK_S = 0.25
PREPARE_S = 1.0
FIRST_TIMING_S, LONGEST_TIMING_S = 30.0, 1800.0
"""From one timing of the levels to the next, at first and at most; a level that becomes ready is timed at once."""
TIMING_PATIENCE_S, TIMING_ROUNDS = 10.0, 3.0
"""How long actors are waited for: at least, and in rounds of a publication and the longest unroll, between which they
take what is published."""
HEADROOM = 1.5
LEARNER_S = 5.0
"""The learner's rate is that of so long, or of the last updates where they are rarer; at first, of what there is."""
_LOOKS = 400
_RECENT_UNROLLS = 32
_SETTLED_UNROLLS = 2
_RECENT_ROUNDS = 8
_ALARM_SAMPLES = 4
"""An alarm has activation ranges checked, as new kinds of states leave them; one more is final, until so many samples
have raised none."""
_WAIT, _ENV, _TIMING = (ACTOR_PHASES.index(name) for name in ("wait", "env", "timing"))

logger = logging.getLogger("accel")


class _ActorTimes:
    """What one actor's unrolls on the level in use show, and what it timed."""

    def __init__(self) -> None:
        self.level = ""
        self.version = -1
        self.timings: Mapping[str, LevelTiming] = {}
        self._rounds_s: deque[float] = deque(maxlen=_RECENT_ROUNDS)
        self._arrived_s = math.inf
        self._unrolls: deque[tuple[float, float, float, bool]] = deque(maxlen=_RECENT_UNROLLS)
        self._length = 1

    def arrive(self, unroll: Unroll, now: float) -> None:
        """An unroll on any level."""
        self._rounds_s.append(max(now - self._arrived_s, float(unroll["timings_s"].sum())))
        self._arrived_s = now

    @property
    def round_s(self) -> float:
        """The longest that one of its last unrolls took, until it was here."""
        return max(self._rounds_s, default=0.0)

    def add(self, unroll: Unroll, level: str) -> None:
        """An unroll; the first ones on a level have cold sessions."""
        if level != self.level:
            self.level = level
            self._unrolls.clear()
        times, self._length = unroll["timings_s"], len(unroll["rewards"])
        busy_s = float(times.sum() - times[_WAIT] - times[_TIMING])
        loaded = unroll.oldest_version != self.version
        self.version = unroll.oldest_version
        self._unrolls.append((busy_s, float(times[_ENV]), float(unroll.valid_steps), loaded))

    @property
    def settled(self) -> bool:
        """Whether its own times are known."""
        return len(self._unrolls) >= _SETTLED_UNROLLS

    def timing(self) -> ActorTiming:
        """For the tuner."""
        busy_s, env_s, steps, loaded = zip(*self._unrolls, strict=True)
        per_us = 1e6 / self._length
        loads = sum(loaded) / len(loaded) / self._length
        step_us, env_us = median(busy_s) * per_us, median(env_s) * per_us
        return ActorTiming(step_us, env_us, max(sum(steps) / len(steps) / self._length, 1e-9), loads, self.timings)


class TunedSteering:
    """One run under the tuner.

    Args:
        levels: full precision first, all of which suit the network.
        config: the run's. publisher: compresses. transport: assigns. sampler: measures mismatch.
        log: gets every decision.
        shared: learner and actors share their cores, so that the time of all adds up.
        turns: they take turns, as on the synchronous schedule, so that the actors' time adds to the learner's.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        levels: Sequence[str],
        config: TrainConfig,
        publisher: Publisher,
        transport: LearnerTransport,
        sampler: MismatchSampler,
        log: DecisionLog,
        *,
        shared: bool = False,
        turns: bool = False,
        options: TunerOptions | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.tuner = Tuner(levels, options)
        self._envs = publisher.rows_per_actor
        trace, length = config.algorithm.trace, config.acting.unroll_length
        horizon = effective_horizon(config.algorithm.discount, trace.lambda_, length)
        self._traces = [min(horizon, length - t) for t in range(length)]
        self._publisher, self._transport, self._sampler, self._log = publisher, transport, sampler, log
        self.shared, self._turns, self._clock = shared, turns, clock
        self._schemes = publisher.schemes
        self._actors: dict[int, _ActorTimes] = {}
        self._looks: deque[tuple[float, int, float]] = deque(maxlen=_LOOKS)
        self._learner_rates: dict[str, float] = {}
        self._next_look_s = clock()
        self._timing: tuple[str, ...] = ()
        self._timing_began_s, self._requests = 0.0, 0
        self._publications_s: deque[float] = deque(maxlen=_RECENT_ROUNDS)
        self._timed: frozenset[str] = frozenset()
        self._timings = DoublingDelay(FIRST_TIMING_S, LONGEST_TIMING_S)
        self._told = True
        self._guard: ReturnGuard | None = None
        self._verdict: Verdict | None = None
        self._last: Measurements | None = None
        self._prepared = 1
        self._trained_s = 0.0
        self._ranges_checked = False
        self._use_levels()

    def admit(self, actor: int, unroll: Unroll) -> None:
        """Its times, and its episodes for the guard."""
        ids = unroll["scheme_id"]
        # Workers may be ahead of each other: rows of two policies are of no level.
        level = self._schemes[int(ids[0, 0])] if (ids == ids[0, 0]).all() else ""
        known = self._actors.setdefault(actor, _ActorTimes())
        known.arrive(unroll, self._clock())
        if level and (self._guard is None or not self._guard.control(actor)):
            known.add(unroll, level)
        if self._guard is not None:
            rows, envs = np.nonzero(unroll["episode_length"])
            returns = unroll["episode_return"][rows, envs]
            ends = zip(envs.tolist(), returns.tolist(), strict=True)
            spell = self._guard.spell
            self._verdict = self._guard.observe(actor, level, ends, self._clock()) or self._verdict
            if self._guard.spell != spell:
                self._use_levels()

    def hear(self, actor: int, message: Json) -> bool:
        """An actor's timing of levels."""
        timed = message.get("timed")
        if not isinstance(timed, dict):
            return False
        timings = {str(level): LevelTiming(**numbers) for level, numbers in timed.items()}
        self._actors.setdefault(actor, _ActorTimes()).timings = timings
        return True

    def lose(self, actor: int) -> None:
        """Forget a dead actor."""
        self._actors.pop(actor, None)
        if self._guard is not None:
            self._guard.lose(actor, self._clock())

    def due(self) -> bool:
        """Every ``LOOK_S``."""
        return self._clock() >= self._next_look_s

    def step(self, env_steps: int, learner_times: PhaseTimes) -> None:
        """One look of the tuner's."""
        now = self._clock()
        self._next_look_s = now + LOOK_S
        phases_s = learner_times.as_dict()
        self._trained_s = sum(phases_s.values())
        if env_steps and self._trained_s >= PREPARE_S:  # the first update is slower, as nothing is warm
            self._looks.append((now, env_steps, phases_s["wait"]))
        self._last = m = self._measure(now)
        if self._timing:
            self._end_timing(now)
        decision = self._leave(m) or (None if self._timing else self.tuner.look(m))
        if decision is not None:
            self._note(decision, m, env_steps)
        elif not self._timing:
            if not self._told and m.actors:
                self._told, level = True, self.tuner.incumbent
                self._write(env_steps, "hold", level, level, self.tuner.stays(m), self.tuner.figures(m))
            self._prepare_next(m)
            self._begin_timing(now)

    def policies(self, payloads: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Payloads by assignment; every living actor is assigned one of them. Empty when one is missing."""
        tuner, guard, late = self.tuner, self._guard, self._publisher.replaced
        published: dict[str, bytes] = {}
        self._publications_s.append(self._clock())
        for actor in sorted(self._transport.alive()):
            level = tuner.full if guard is not None and guard.control(actor) else tuner.incumbent
            levels = tuple(dict.fromkeys((level, *(name for name in self._timing if name not in late))))
            if any(name not in payloads for name in levels):
                return {}
            text = assignment(levels, self._requests)
            if text not in published:
                published[text] = join_levels(levels, payloads)
            self._transport.assign(actor, text)
        return published

    def metrics(self) -> Metrics:
        """See the module's docstring."""
        metrics: Metrics = {"level": self.tuner.incumbent}
        if (m := self._last) is not None and m.actors:
            metrics["learner_rate"] = m.learner_rates.get(self.tuner.incumbent)
            for level in self.tuner.gains(m):
                metrics[f"unblocked_rate/{level}"] = float(np.median(m.actors_rate(level, self.tuner.incumbent)))
        return metrics

    def _measure(self, now: float) -> Measurements:
        if (rate := self._learner_rate()) is not None:
            self._learner_rates[self.tuner.incumbent] = rate
        known = [self._actors.get(actor) for actor in sorted(self._transport.alive())]
        ready = [a.timing() for a in known if a and a.settled and a.level == self.tuner.incumbent and a.timings]
        quality = {}
        if samples := self._sampler.recent(self.tuner.incumbent):
            quality[self.tuner.incumbent] = average([sample.compression for sample in samples]).effective_share
        return Measurements(
            time_s=now,
            actors=ready if len(ready) == len(known) else (),
            learner_rates=dict(self._learner_rates),
            shared=self.shared,
            turns=self._turns,
            traces=self._traces,
            quality={} if self.tuner.incumbent == self.tuner.full else quality,
        )

    def _learner_rate(self) -> float | None:
        """On the level in use, which it takes some time to show after another."""
        if not self._looks:
            return None
        first = self._learner_rates.keys() <= {self.tuner.incumbent}
        now, steps, wait_s = self._looks[-1]
        for then, steps_then, wait_then in reversed(self._looks):
            elapsed_s = now - then
            enough = elapsed_s >= LEARNER_S or (first and then == self._looks[0][0])
            if steps > steps_then and enough:
                return (steps - steps_then) / max(elapsed_s - (wait_s - wait_then), 1e-3 * elapsed_s)
        return None

    def _leave(self, m: Measurements) -> TunerDecision | None:
        """Full precision again where the level in use fails a check, an alarm or the guard."""
        tuner, level, verdict = self.tuner, self.tuner.incumbent, self._verdict
        if level == tuner.full:
            return None
        samples = self._sampler.recent(level)[-_ALARM_SAMPLES:]
        alarms = average([sample.compression for sample in samples]).alarms() if len(samples) > 1 else ()
        if not self._publisher.offers(level):
            return tuner.fall_back(m, f"{level} is withheld: it failed the check before publication")
        if alarms and not self._ranges_checked:
            self._ranges_checked = True
            logger.info(
                "compression: mismatch alarm of %s: %s; its ranges are checked", level, "; ".join(map(str, alarms))
            )
            self._publisher.check_ranges(level)
            self._sampler.forget()
        elif alarms:
            return tuner.fall_back(m, f"mismatch alarm of {level}: {'; '.join(map(str, alarms))}")
        elif len(samples) == _ALARM_SAMPLES:
            self._ranges_checked = False
        self._verdict = None
        if verdict is not None and verdict.kind in {"loss", "unshown"}:
            what = "loses return" if verdict.kind == "loss" else "is not shown to keep its return"
            return tuner.fall_back(m, f"{level} {what}: {verdict}")
        if verdict is not None:
            what = "keeps its return" if verdict.kind == "passed" else "shows no loss of return yet"
            figures = tuner.figures(m) | verdict.figures()
            self._write(self._looks[-1][1], verdict.kind, level, level, f"{level} {what}: {verdict}", figures)
        return None

    def _prepare_next(self, m: Measurements) -> None:
        """Prepare the next coarser level where a faster policy could still pay."""
        levels, level = self.tuner.levels, self.tuner.incumbent
        if self._prepared == len(levels):
            return
        first = self._prepared == 1 and self._trained_s >= PREPARE_S
        timed = self._timed.issuperset(levels[: self._prepared]) and bool(m.actors) and level in m.levels
        if first or (timed and m.headroom(level) >= HEADROOM):
            self._prepared += 1
            self._use_levels()

    def _begin_timing(self, now: float) -> None:
        """Have the actors time every level that can be published, once one is new or the interval is over."""
        tuner = self.tuner
        ready = [level for level in tuner.levels if self._publisher.offers(level) and tuner.allows(level, now)]
        if len(ready) < 2 or not self._actors.keys() >= set(self._transport.alive()):
            return
        if self._timed.issuperset(ready) and not self._timings.ready(now):
            return
        self._timings.attempt(now)
        self._requests += 1
        self._timing, self._timing_began_s = tuple(ready), now
        for actor in self._actors.values():
            actor.timings = {}
        self._use_levels()

    def _end_timing(self, now: float) -> None:
        """Once every actor has timed every level, or with what there is after a while: fp32 may stand in for one."""
        actors = [self._actors[actor] for actor in self._transport.alive() if actor in self._actors]
        patience_s = self._timing_patience_s(actors)
        patient = now < self._timing_began_s + patience_s
        if patient and not all(actor.timings.keys() >= set(self._timing) for actor in actors):
            return
        self._timed, self._timing, self._told = frozenset(self._timing), (), False
        self._use_levels()
        if silent := sum(not actor.timings for actor in actors):
            level = self.tuner.incumbent
            reason = f"{silent} of {len(actors)} actors have not timed the levels within {patience_s:.0f} s"
            self._told = True
            self._write(self._looks[-1][1], "hold", level, level, f"{reason}; they are asked again later", {})

    def _timing_patience_s(self, actors: Sequence[_ActorTimes]) -> float:
        """For an update, whose publication asks, and an unroll, after which an actor answers; several times as long."""
        times_s = list(self._publications_s)
        update_s = max((after - before for before, after in pairwise(times_s)), default=0.0)
        unroll_s = max((actor.round_s for actor in actors), default=0.0)
        return max(TIMING_PATIENCE_S, TIMING_ROUNDS * (update_s + unroll_s))

    def _use_levels(self) -> None:
        """Publish what acts or is timed, the incumbent first, and nothing else; prepare the others."""
        guarded = self._guard is not None and self._guard.spell == 1
        used = dict.fromkeys((self.tuner.incumbent, *self._timing, *((self.tuner.full,) if guarded else ())))
        self._publisher.set_levels(used, prepare=self.tuner.levels[: self._prepared])

    def _note(self, decision: TunerDecision, m: Measurements, env_steps: int) -> None:
        """Act on a decision: guard what was taken."""
        level, now = decision.after, m.time_s
        self._guard, self._verdict, self._timing, self._told = None, None, (), True
        self._ranges_checked = False
        if level != self.tuner.full:
            gains = [float(decision.figures.get(f"rate/{name}") or 1.0) for name in (level, self.tuner.full)]
            self._guard = ReturnGuard(level, self.tuner.full, self._envs, gains[0] / gains[1], now)
        self._sampler.forget()
        self._looks.clear()
        self._use_levels()
        self._write(env_steps, decision.kind, decision.before, level, decision.reason, decision.figures)

    def _write(
        self,
        env_steps: int,
        kind: str,
        before: str,
        after: str,
        reason: str,
        figures: Mapping[str, float | int | str | None],
    ) -> None:
        logger.info("compression: %s (%s)", reason, kind)
        self._log.write(env_steps, None, kind, before, after, reason, figures)


def make_steering(
    choice: CompressionChoice,
    config: TrainConfig,
    publisher: Publisher,
    transport: LearnerTransport,
    sampler: MismatchSampler,
    run_path: Path,
    env_steps: int = 0,
    *,
    cores: float | None = None,
    options: TunerOptions | None = None,
    clock: Callable[[], float] = perf_counter,
) -> Steering:
    """What steers a run whose compression is chosen so, from the steps on that it has learned from.

    Of ``auto``, levels that do not suit the network are dropped, with a warning.

    ``options`` and ``clock`` (seconds, monotonic) are the tuner's. ``cores`` are those that learner and actors on this
    host may use; None: all of the machine.

    Raises: ConfigError: a level does not suit the network.
    """
    log = DecisionLog(run_path)
    if choice.schedule is not None:
        return AnnealedSteering(choice.schedule, publisher, log, env_steps)
    levels = publisher.suitable(choice.levels) if choice.kind == "auto" else choice.levels[:1]
    if len(levels) == 1:
        return FixedSteering()
    acting = config.acting
    one_host = acting.hosts is None and acting.hostfile is None
    shared = acting.actors == 0 or (one_host and acting.actors >= (cores or os.cpu_count() or 1))
    parts = (publisher, transport, sampler, log)
    turns = config.schedule.waits_for_policy
    return TunedSteering(levels, config, *parts, shared=shared, turns=turns, options=options, clock=clock)
