"""Chooses the compression level while training runs: what the monitor measures in, assignments and decisions out.

Full precision acts first. The next level is prepared after the first second, as a run may be over by then, each other
one when those before it have been timed, and only where the policy takes a third of an actor's time at least: to prune
or distil takes seconds of the learner's cores. As soon as a level can be published, and has not been timed since, every
actor times all that can be on its own observations while it acts as before (``accel.acting.timing``); later again,
twice as rarely each time. The level that makes actors fastest is taken, if it does so by ``LEAST_GAIN``, acts as full
precision does, and actors are what the learner waits for. Where they cannot time, as with central inference, the first
level is taken untimed.

From then on pairs of blocks compare it with full precision (``accel.monitor.objective``): all actors act with one of
the two for a block, in an order drawn at random. A block lasts a tenth of the time since the level was taken, 2 to 20 s
or a few batches. Full precision costs at most ``COST`` of the steps that the level would have brought, and a quarter of
the time. From ``WATCH_AFTER_S`` on, learning is watched: half of the time is full precision's, until returns tell which
of the two learns faster, for ``WATCH_PAIRS`` pairs at most. A level that loses is left, for the rest of the run where
returns said so, else with exponential back-off, as it is after a mismatch alarm or a failed check.

Every decision is logged with its figures; a resumed run cuts off those after its checkpoint and decides anew.

Metrics: ``level`` (in use) and, once pairs have been compared, the figures of ``Comparison`` as ``tuning/NAME``.
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
from accel.monitor.decisions import DecisionLog, Figure
from accel.monitor.mismatch import ESS_ALARM, KL_ALARM
from accel.monitor.objective import (
    ActorTiming,
    Block,
    BlockRecorder,
    Comparison,
    Environment,
    LevelTiming,
    Prediction,
    policy_clause,
    predict,
)
from accel.monitor.timers import PhaseTimes
from accel.publishing.publisher import Publisher
from accel.transport.base import LearnerTransport
from accel.tuning.choice import CompressionChoice
from accel.tuning.mismatch_sampling import MismatchSampler, average
from accel.tuning.steering import FixedSteering, Metrics, Steering

LOOK_S = 0.25
PREPARE_S = 1.0
FIRST_TIMING_S, LONGEST_TIMING_S = 30.0, 1800.0
"""From one timing of the levels to the next, at first and at most; a level that becomes ready is timed at once."""
TIMING_PATIENCE_S, TIMING_ROUNDS = 10.0, 3.0
"""How long actors are waited for: at least, and in rounds of a publication and the longest unroll, between which they
take what is published."""
LEAST_GAIN, TOLERANCE = 1.05, 0.98
"""A level must promise so many times the effective steps of the one in use, at the lower bound; a finer level is
preferred with so many of the best one's."""
LEAST_CALL_SHARE = 1.0 / 3.0
WAITING_S = 5.0
"""The learner's waiting is that of so long."""
BLOCK_SHARE, SHORTEST_BLOCK_S, LONGEST_BLOCK_S, BLOCK_BATCHES = 0.1, 2.0, 20.0, 4
COST, CONTROL_SHARE = 0.04, 0.25
WATCH_AFTER_S, WATCH_PAIRS, KEEP_PAIRS = 120.0, 24, 3
BAN_S, LONGEST_BAN_S = 60.0, 3600.0
_RECENT_UNROLLS, _SETTLED_UNROLLS, _RECENT_ROUNDS = 32, 2, 8
_ALARM_SAMPLES = 4
"""An alarm has activation ranges checked, as new kinds of states leave them; one more is final, until so many samples
have raised none."""
_WAIT, _ENV, _TIMING = (ACTOR_PHASES.index(name) for name in ("wait", "env", "timing"))

logger = logging.getLogger("accel")


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


class _ActorTimes:
    """What one actor's unrolls on the level that acts show, and what it timed."""

    def __init__(self) -> None:
        self.level = ""
        self.timings: Mapping[str, LevelTiming] = {}
        self._version = -1
        self._rounds_s: deque[float] = deque(maxlen=_RECENT_ROUNDS)
        self._arrived_s = math.inf
        self._unrolls: deque[tuple[float, float, float, bool]] = deque(maxlen=_RECENT_UNROLLS)
        self._length = 1

    @property
    def round_s(self) -> float:
        """The longest that one of its last unrolls took, until it was here."""
        return max(self._rounds_s, default=0.0)

    def add(self, unroll: Unroll, level: str, now: float) -> None:
        """An unroll; the first ones on a level have cold sessions."""
        times, self._length = unroll["timings_s"], len(unroll["rewards"])
        self._rounds_s.append(max(now - self._arrived_s, float(times.sum())))
        self._arrived_s = now
        if level != self.level:
            self.level = level
            self._unrolls.clear()
        busy_s = float(times.sum() - times[_WAIT] - times[_TIMING])
        loaded, self._version = unroll.oldest_version != self._version, unroll.oldest_version
        self._unrolls.append((busy_s, float(times[_ENV]), float(unroll.valid_steps), loaded))

    def timing(self, level: str) -> ActorTiming | None:
        """Once its own times on this level are known and it has timed it."""
        if self.level != level or level not in self.timings or len(self._unrolls) < _SETTLED_UNROLLS:
            return None
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
        shared: learner and actors share their cores or take turns, so that an actor's time counts even where the
            learner does not wait.
        clock: seconds, monotonic.
    Attributes:
        level: in use.
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
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.levels, self.shared = tuple(levels), shared
        self.level = self._full = self._acting = self.levels[0]
        self._publisher, self._transport, self._sampler, self._log = publisher, transport, sampler, log
        self._clock, self._schemes = clock, publisher.schemes
        batch = config.acting.unroll_length * publisher.rows_per_actor * config.store.held_unrolls
        self._block_steps = BLOCK_BATCHES * batch * config.learner.learners
        self._times_levels = config.acting.inference == "local"
        self._random = np.random.default_rng(config.run.seed)
        self._actors: dict[int, _ActorTimes] = {}
        self._known: set[Environment] = set()
        self._waits: deque[tuple[float, float]] = deque()
        self._next_look_s = clock()
        self._env_steps, self._trained_s = 0, 0.0
        self._prepared = 1
        self._timing: tuple[str, ...] = ()
        self._timed: frozenset[str] = frozenset()
        self._timing_began_s, self._requests = 0.0, 0
        self._timings = DoublingDelay(FIRST_TIMING_S, LONGEST_TIMING_S)
        self._publications_s: deque[float] = deque(maxlen=_RECENT_ROUNDS)
        self._news = False
        self._comparisons = {level: Comparison(level, self._full) for level in self.levels[1:]}
        self._bans = {level: DoublingDelay(BAN_S, LONGEST_BAN_S) for level in self.levels}
        self._expected_speed, self._taken_s, self._taken_steps, self._control_s = 1.0, 0.0, 0, 0.0
        self._recorder: BlockRecorder | None = None
        self._order: list[str] = []
        self._pair: dict[str, Block] = {}
        self._switched_s, self._block_s = 0.0, SHORTEST_BLOCK_S
        self._told: set[str] = set()
        self._last_kind = ""
        self._ranges_checked = False
        self._use_levels()

    def admit(self, actor: int, unroll: Unroll) -> None:
        """Its times, and its episodes for the block."""
        ids, now = unroll["scheme_id"], self._clock()
        # Workers may be ahead of each other: rows of two policies are of no level.
        level = self._schemes[int(ids[0, 0])] if (ids == ids[0, 0]).all() else ""
        self._actors.setdefault(actor, _ActorTimes()).add(unroll, level, now)
        rows, envs = np.nonzero(unroll["episode_length"])
        ends = list(zip(envs.tolist(), unroll["episode_return"][rows, envs].tolist(), strict=True))
        self._known.update((actor, environment) for environment, _ in ends)
        if self._recorder is not None:
            self._recorder.add(actor, level, ends, now)

    def hear(self, actor: int, message: Json) -> bool:
        """An actor's timing of levels."""
        timed = message.get("timed")
        if not isinstance(timed, dict):
            return False
        timings = {str(level): LevelTiming(**numbers) for level, numbers in timed.items()}
        self._actors.setdefault(actor, _ActorTimes()).timings = timings
        self._news = True
        return True

    def lose(self, actor: int) -> None:
        """Forget a dead actor."""
        self._actors.pop(actor, None)
        if self._recorder is not None:
            self._recorder.lose(actor)

    def due(self) -> bool:
        """Every ``LOOK_S``."""
        return self._clock() >= self._next_look_s

    def step(self, env_steps: int, learner_times: PhaseTimes) -> None:
        """One look of the tuner's."""
        now, phases_s = self._clock(), learner_times.as_dict()
        self._next_look_s, self._env_steps = now + LOOK_S, env_steps
        self._trained_s = sum(phases_s.values())
        self._waits.append((now, phases_s["wait"]))
        while len(self._waits) > 2 and self._waits[1][0] <= now - WAITING_S:
            self._waits.popleft()
        if self._timing:
            self._end_timing(now)
        if self.level != self._full and (fault := self._fault()):
            self._leave(now, fault)
        elif self._recorder is not None:
            self._continue_pair(self._recorder, now)
        elif not self._timing:
            if self._news or not self._times_levels:
                self._choose(now)
            if self.level != self._full and self._pair_is_due(now):
                self._begin_pair(now)
            else:
                self._prepare_next()
                self._begin_timing(now)

    def policies(self, payloads: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Payloads by assignment, which is the same for every actor. Empty when one is missing."""
        late = self._publisher.replaced
        self._publications_s.append(self._clock())
        levels = tuple(dict.fromkeys((self._acting, *(name for name in self._timing if name not in late))))
        if any(name not in payloads for name in levels):
            return {}
        text = assignment(levels, self._requests)
        for actor in self._transport.alive():
            self._transport.assign(actor, text)
        return {text: join_levels(levels, payloads)}

    def metrics(self) -> Metrics:
        """See the module's docstring."""
        comparison = self._comparisons.get(self.level)
        figures = comparison.figures() if comparison is not None and comparison.pairs else {}
        return {"level": self.level} | {f"tuning/{name}": figure for name, figure in figures.items()}

    def _waiting(self) -> float:
        """Share of its time that the learner waits, in [0, 1]; 1 where an actor's time counts in any case."""
        (then, before_s), (now, after_s) = self._waits[0], self._waits[-1]
        return 1.0 if self.shared or now <= then else min(max((after_s - before_s) / (now - then), 0.0), 1.0)

    def _actor_timings(self) -> list[ActorTiming]:
        """Of all actors, or none while one is missing."""
        known = [self._actors[actor] for actor in sorted(self._transport.alive()) if actor in self._actors]
        found = [timing for actor in known if (timing := actor.timing(self._acting)) is not None]
        return found if len(found) == len(self._transport.alive()) else []

    def _choose(self, now: float) -> None:
        """Take a level that promises more than the one in use, or say why not."""
        allowed = [level for level in self.levels[1:] if self._publisher.offers(level) and self._allows(level, now)]
        if not self._times_levels:
            if self.level == self._full and allowed:
                found = {allowed[0]: Prediction(1.0, 1.0, math.nan, 1.0)}
                self._take(now, allowed[0], found, "not timed, as inference is central")
            return
        actors = self._actor_timings()
        if not actors:
            return
        self._news = False
        shared = [level for level in actors[0].levels if all(level in actor.levels for actor in actors)]
        if not {self._full, self.level} <= set(shared):
            return
        found = {level: predict(actors, level, self._acting, self._full) for level in shared}
        most = found[self.level].speed / max(1.0 - self._waiting(), 1e-9)
        worth = {level: min(p.speed, most) * p.ess for level, p in found.items()}
        needed = LEAST_GAIN * worth[self.level]
        able = [
            level
            for level in shared
            if level in allowed and level != self.level
            if min(found[level].low, most) * found[level].ess >= needed
            if found[level].kl <= KL_ALARM and found[level].ess >= ESS_ALARM
        ]
        if able:
            level = next(name for name in able if worth[name] >= TOLERANCE * max(worth[name] for name in able))
            clause = self._speed_clause(found[level]) + policy_clause(found[level].kl)
            self._take(now, level, found, clause)
        elif others := [level for level in shared if level not in (self._full, self.level)]:
            best = max(others, key=worth.__getitem__)
            self._write("hold", self.level, f"{best}: {self._against(found[best], most)}: {self.level} kept", found)

    def _against(self, prediction: Prediction, most: float) -> str:
        """Why a level that was timed is not taken."""
        if not prediction.kl <= KL_ALARM or not prediction.ess >= ESS_ALARM:
            return f"another policy than {self._full} (KL {prediction.kl:.2g}, ESS {prediction.ess:.2g})"
        if most < LEAST_GAIN <= prediction.low:
            return f"the learner waits for actors in {self._waiting():.1%} of its time only"
        return self._speed_clause(prediction)

    def _speed_clause(self, prediction: Prediction) -> str:
        return f"actors {prediction.speed:.2f} times as fast as with {self._full}"

    def _take(self, now: float, level: str, found: Mapping[str, Prediction], clause: str) -> None:
        self._expected_speed, self._comparisons[level].kl = found[level].speed, found[level].kl
        self._change(now, "take", level, f"{level}: {clause}: taken", found)

    def _leave(self, now: float, clause: str, *, final: bool = False) -> None:
        """Full precision again."""
        level = self.level
        if not final:
            self._bans[level].attempt(now)
            self._comparisons[level].try_again()
        self._change(now, "leave", self._full, f"{level}: {clause}: left")

    def _allows(self, level: str, now: float) -> bool:
        """Whether a level may be timed and taken."""
        return level == self._full or (not self._comparisons[level].is_final and self._bans[level].ready(now))

    def _pair_is_due(self, now: float) -> bool:
        """Whether another pair is affordable, or learning is watched."""
        comparison, used_s = self._comparisons[self.level], now - self._taken_s
        speed = comparison.speed if comparison.pairs else self._expected_speed
        batches_s = speed * used_s * self._block_steps / max(self._env_steps - self._taken_steps, 1)
        self._block_s = max(min(BLOCK_SHARE * used_s, LONGEST_BLOCK_S), SHORTEST_BLOCK_S)
        lasts_s = max(self._block_s, batches_s)
        if BLOCK_SHARE * used_s < lasts_s:
            return False
        if used_s >= WATCH_AFTER_S and comparison.pairs < WATCH_PAIRS and comparison.gain.verdict == "open":
            return True
        control_s, lost = self._control_s + lasts_s, max(1.0 - 1.0 / max(speed, 1e-9), 0.0)
        return control_s <= CONTROL_SHARE * used_s and lost * control_s <= COST * used_s

    def _begin_pair(self, now: float) -> None:
        order = [self.level, self._full]
        self._order = order if self._random.random() < 0.5 else order[::-1]
        self._pair = {}
        self._begin_block(now)

    def _begin_block(self, now: float) -> None:
        self._acting, *self._order = self._order
        self._switched_s, self._recorder = now, BlockRecorder(self._acting)
        self._use_levels()

    def _continue_pair(self, recorder: BlockRecorder, now: float) -> None:
        """End a block, begin the other, or compare both."""
        alive = set(self._transport.alive()) & self._actors.keys()
        if not recorder.over(now, self._env_steps, alive, self._block_s, self._block_steps, self._known):
            return
        level = recorder.level
        samples = self._sampler.recent(level)
        share = average([sample.total for sample in samples]).effective_share if samples else math.nan
        self._pair[level] = recorder.end(now, self._env_steps, share, self._known)
        self._control_s += (now - self._switched_s) * (level == self._full)
        if self._order:
            self._begin_block(now)
            return
        self._recorder, self._acting = None, self.level
        self._use_levels()
        comparison = self._comparisons[self.level]
        if acted := self._sampler.recent(self.level):
            comparison.kl = average([sample.compression for sample in acted]).kl
        comparison.add(self._pair[self.level], self._pair[self._full])
        if comparison.verdict == "worse":
            self._leave(now, str(comparison), final=comparison.is_final)
        elif comparison.pairs == KEEP_PAIRS or (comparison.verdict == "better" and self.level not in self._told):
            self._told |= {self.level} if comparison.verdict == "better" else set()
            self._write("keep", self.level, f"{self.level}: {comparison}: kept")

    def _fault(self) -> str:
        """Why the level in use may not act, as a clause; empty where it may. An alarm has its ranges checked first."""
        samples = self._sampler.recent(self.level)[-_ALARM_SAMPLES:]
        alarms = average([sample.compression for sample in samples]).alarms() if len(samples) > 1 else ()
        clause = f"mismatch alarm, {'; '.join(map(str, alarms))}"
        if not self._publisher.offers(self.level):
            return "withheld, as it failed the check before publication"
        if alarms and not self._ranges_checked:
            self._ranges_checked = True
            logger.info("compression: %s: %s; its ranges are checked", self.level, clause)
            self._publisher.check_ranges(self.level)
            self._sampler.forget()
        elif alarms:
            return clause
        elif len(samples) == _ALARM_SAMPLES:
            self._ranges_checked = False
        return ""

    def _prepare_next(self) -> None:
        """Prepare the next coarser level where a faster policy could still pay."""
        if self._prepared == len(self.levels) or self._trained_s < PREPARE_S:
            return
        calls = [median(a.levels[self._acting].call_us) / max(a.step_us, 1e-9) for a in self._actor_timings()]
        timed = self._timed.issuperset(self.levels[: self._prepared]) and bool(calls)
        pays = timed and sum(calls) / len(calls) >= LEAST_CALL_SHARE and self._waiting() >= 1.0 - 1.0 / LEAST_GAIN
        level = self.levels[self._prepared - 1]
        left = not self._times_levels and level in self._comparisons and self._comparisons[level].is_final
        if self._prepared == 1 or pays or left:
            self._prepared += 1
            self._use_levels()

    def _begin_timing(self, now: float) -> None:
        """Have the actors time every level that can be published, once one is new or the interval is over."""
        ready = [level for level in self.levels if self._publisher.offers(level) and self._allows(level, now)]
        if not self._times_levels or not set(ready) - {self._full, self.level}:
            return
        if not self._actors.keys() >= set(self._transport.alive()):
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
        times_s = list(self._publications_s)
        update_s = max((after - before for before, after in pairwise(times_s)), default=0.0)
        unroll_s = max((actor.round_s for actor in actors), default=0.0)
        patience_s = max(TIMING_PATIENCE_S, TIMING_ROUNDS * (update_s + unroll_s))
        done = all(actor.timings.keys() >= set(self._timing) for actor in actors)
        if not done and now < self._timing_began_s + patience_s:
            return
        self._timed, self._timing = frozenset(self._timing), ()
        self._use_levels()
        if silent := sum(not actor.timings for actor in actors):
            reason = f"{silent} of {len(actors)} actors have not timed the levels within {patience_s:.0f} s"
            self._write("hold", self.level, f"{reason}; they are asked again later")

    def _use_levels(self) -> None:
        """Publish what acts or is timed, what acts first, and nothing else; prepare the others."""
        used = dict.fromkeys((self._acting, *self._timing))
        self._publisher.set_levels(used, prepare=dict.fromkeys((*self.levels[: self._prepared], self.level)))

    def _change(
        self, now: float, kind: str, level: str, reason: str, found: Mapping[str, Prediction] | None = None
    ) -> None:
        self._write(kind, level, reason, found)
        self.level = self._acting = level
        self._recorder, self._order, self._timing = None, [], ()
        self._ranges_checked, self._control_s = False, 0.0
        self._taken_s, self._taken_steps = now, self._env_steps
        self._sampler.forget()
        self._use_levels()

    def _write(self, kind: str, after: str, reason: str, found: Mapping[str, Prediction] | None = None) -> None:
        """Log a decision with its predictions, and the figures of the level in use."""
        comparison = self._comparisons.get(self.level)
        figures: dict[str, Figure] = comparison.figures() if comparison is not None and comparison.pairs else {}
        for level, p in (found or {}).items():
            figures |= {f"speed/{level}": p.speed, f"speed_low/{level}": p.low}
            figures |= {f"kl/{level}": p.kl, f"ess/{level}": p.ess}
        if found:
            figures["learner_wait_share"] = self._waiting()
        logger.log(logging.DEBUG if kind == self._last_kind == "hold" else logging.INFO, "compression: %s", reason)
        self._last_kind = kind
        self._log.write(self._env_steps, None, kind, self.level, after, reason, figures)


def make_steering(
    choice: CompressionChoice,
    config: TrainConfig,
    publisher: Publisher,
    transport: LearnerTransport,
    sampler: MismatchSampler,
    run_path: Path,
    *,
    cores: float | None = None,
    clock: Callable[[], float] = perf_counter,
) -> Steering:
    """What steers a run whose compression is chosen so.

    Of several levels, those that do not suit the network are dropped, with a warning.

    ``clock`` (seconds, monotonic) is the tuner's. ``cores`` are those that learner and actors on this host may use;
    None: all of the machine.

    Raises: ConfigError: full precision does not suit the network.
    """
    levels = publisher.suitable(choice.levels) if len(choice.levels) > 1 else choice.levels
    if len(levels) == 1:
        return FixedSteering()
    acting = config.acting
    one_host = acting.hosts is None and acting.hostfile is None
    crowded = acting.actors == 0 or (one_host and acting.actors >= (cores or os.cpu_count() or 1))
    log, shared = DecisionLog(run_path), crowded or config.schedule.waits_for_policy
    return TunedSteering(levels, config, publisher, transport, sampler, log, shared=shared, clock=clock)
