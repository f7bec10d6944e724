"""Chooses the compression level while training runs: what the monitor measures in, assignments and decisions out.

Full precision acts first. The next level is prepared after the first second, as a run may be over by then, each other
one when those before it have been tried, and only where the policy takes a third of an actor's time at least: to prune
or distil takes seconds of the learner's cores. As soon as a level can be published it is tried, and again later, twice
as rarely each time: in a pair of blocks (``accel.monitor.objective``) all actors act with the level and with full
precision, in an order drawn at random, for ``SHORTEST_BLOCK_S`` or a few batches each. A level is taken that brings
``LEAST_GAIN`` times the effective steps per second of the one in use. Where the first pair shows little difference,
``TRIAL_PAIRS`` pairs decide.

From then on pairs go on. A block lasts a tenth of the time since the level was taken, 2 to 20 s or a few batches. Full
precision costs at most ``COST`` of the steps that the level would have brought, and a quarter of the time. From
``WATCH_AFTER_S`` on, learning is watched: half of the time is full precision's, in blocks of 20 s, until returns tell
which of the two learns faster, for ``WATCH_PAIRS`` pairs at most, or ``BLIND_PAIRS`` that had too few episodes. A level
that loses is left, for the rest of the run where returns said so, else with exponential back-off, as it is after a
mismatch alarm or a failed check.

Every decision is logged with its figures; a resumed run cuts off those after its checkpoint and decides anew.

Metrics: ``level`` (in use) and, once pairs have been compared, the figures of ``Comparison`` as ``tuning/NAME``.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

import numpy as np

from accel.config import TrainConfig
from accel.experience.unroll import ACTOR_PHASES, Unroll
from accel.monitor.decisions import DecisionLog
from accel.monitor.objective import Block, BlockRecorder, Comparison, Environment
from accel.monitor.timers import Times
from accel.publishing.publisher import Publisher
from accel.transport.base import LearnerTransport
from accel.tuning.choice import CompressionChoice
from accel.tuning.mismatch_sampling import MismatchSampler, average
from accel.tuning.steering import Metrics, Steering

LOOK_S = 0.25
PREPARE_S = 1.0
LEAST_GAIN = 1.05
TRIAL_PAIRS, CLOSE = 3, (0.9, 1.2)
"""Pairs of a trial, and the gains between which one pair does not decide."""
LEAST_POLICY_SHARE = 1.0 / 3.0
BLOCK_SHARE, SHORTEST_BLOCK_S, LONGEST_BLOCK_S, BLOCK_BATCHES = 0.1, 2.0, 20.0, 4
COST, CONTROL_SHARE = 0.04, 0.25
WATCH_AFTER_S, WATCH_SHARE, WATCH_PAIRS, BLIND_PAIRS, KEEP_PAIRS = 120.0, 1.0 / 6.0, 24, 3, 3
AGAIN_S, DOUBLINGS = 30.0, 7
"""Until a level that was not taken is tried again: at first, and how often that doubles."""
_RECENT_UNROLLS, _ALARM_SAMPLES = 32, 4
"""An alarm has activation ranges checked, as new kinds of states leave them; one more is final, until so many samples
have raised none."""
_POLICY = ACTOR_PHASES.index("policy")

logger = logging.getLogger("accel")


class TunedSteering(Steering):
    """One run under the tuner.

    Args:
        levels: full precision first, all of which suit the network.
        config: the run's. publisher: compresses. transport: knows who acts. sampler: measures mismatch.
        log: gets every decision.
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
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.levels = tuple(levels)
        self.level = self._full = self._acting = self._compared = self.levels[0]
        self._publisher, self._transport, self._sampler, self._log = publisher, transport, sampler, log
        self._clock, self._schemes = clock, publisher.schemes
        batch = config.acting.unroll_length * publisher.rows_per_actor * config.store.held_unrolls
        self._block_steps = BLOCK_BATCHES * batch * config.learner.learners
        self._random = np.random.default_rng(config.run.seed)
        self._actors: set[int] = set()
        self._policy_s: deque[tuple[float, float]] = deque(maxlen=_RECENT_UNROLLS)
        self._known: set[Environment] = set()
        self._next_look_s = clock()
        self._env_steps, self._trained_s = 0, 0.0
        self._prepared = 1
        self._comparisons = {level: Comparison(level, self._full) for level in self.levels}
        self._again_s = dict.fromkeys(self.levels, -math.inf)
        self._rejections = dict.fromkeys(self.levels, 0)
        self._taken_s, self._taken_steps, self._control_s, self._kept_pairs = 0.0, 0, 0.0, 0
        self._recorder: BlockRecorder | None = None
        self._order: list[str] = []
        self._pair: dict[str, Block] = {}
        self._switched_s, self._block_s = 0.0, SHORTEST_BLOCK_S
        self._told: set[str] = set()
        self._last_kind = ""
        self._ranges_checked = False
        self._act(self._full)

    def admit(self, actor: int, unroll: Unroll) -> None:
        """Its time for the policy, and its episodes for the block."""
        ids, times = unroll["scheme_id"], unroll["timings_s"]
        # Workers may be ahead of each other: rows of two policies are of no level.
        level = self._schemes[int(ids[0, 0])] if (ids == ids[0, 0]).all() else ""
        self._actors.add(actor)
        self._policy_s.append((float(times[_POLICY]), float(times.sum())))
        rows, envs = np.nonzero(unroll["episode_length"])
        ends = list(zip(envs.tolist(), unroll["episode_return"][rows, envs].tolist(), strict=True))
        self._known.update((actor, environment) for environment, _ in ends)
        if self._recorder is not None:
            self._recorder.add(actor, level, ends, self._clock())

    def lose(self, actor: int) -> None:
        """Forget a dead actor."""
        self._actors.discard(actor)
        if self._recorder is not None:
            self._recorder.lose(actor)

    def due(self) -> bool:
        """Every ``LOOK_S``."""
        return self._clock() >= self._next_look_s

    def step(self, env_steps: int, learner_times: Times) -> None:
        """One look of the tuner's."""
        now = self._clock()
        self._next_look_s, self._env_steps = now + LOOK_S, env_steps
        self._trained_s = sum(learner_times.values())
        if self._acting != self._full and (fault := self._fault()):
            self._reject(now, self._acting, fault)
        elif self._recorder is not None:
            self._continue_pair(self._recorder, now)
        elif candidate := self._candidate(now):
            self._comparisons[candidate].recent.clear()
            self._begin_pair(candidate, now)
        elif self.level != self._full and self._pair_is_due(now):
            self._begin_pair(self.level, now)
        else:
            self._prepare_next()

    def metrics(self) -> Metrics:
        """See the module's docstring."""
        figures = self._comparisons[self.level].figures()
        return {"level": self.level} | {f"tuning/{name}": figure for name, figure in figures.items()}

    def _candidate(self, now: float) -> str | None:
        """The finest level that is to be tried."""
        if not self._actors >= set(self._transport.alive()):
            return None
        return next(
            (
                level
                for level, comparison in self._comparisons.items()
                if level not in (self._full, self.level) and not comparison.is_final
                if self._publisher.offers(level) and now >= self._again_s[level]
            ),
            None,
        )

    def _end_trial(self, now: float, level: str) -> None:
        """Take a level that is worth more than the one in use, compare it once more, or say why not."""
        comparison, used = self._comparisons[level], self._comparisons[self.level]
        gain = comparison.worth / used.worth
        if comparison.is_final:
            self._reject(now, level, str(comparison))
        elif len(comparison.recent) < TRIAL_PAIRS and CLOSE[0] < gain < CLOSE[1]:
            self._begin_pair(level, now)
        elif gain >= LEAST_GAIN:
            self._change(now, "take", level, level, f"{level}: {comparison}: taken")
        else:
            beside = "" if self.level == self._full else f", {self.level} {used.speed:.2f} times"
            self._reject(now, level, f"{comparison}{beside}")

    def _reject(self, now: float, level: str, clause: str) -> None:
        """Leave the level in use, or end another one's trial; either may be tried again later."""
        self._again_s[level] = now + AGAIN_S * 2.0 ** min(self._rejections[level], DOUBLINGS)
        self._rejections[level] += 1
        if level == self.level:
            self._change(now, "leave", level, self._full, f"{level}: {clause}: left")
        else:
            self._write("hold", level, self.level, f"{level}: {clause}: {self.level} kept")
            self._act(self.level)

    def _pair_is_due(self, now: float) -> bool:
        """Whether another pair is affordable, or learning is watched."""
        comparison, used_s = self._comparisons[self.level], now - self._taken_s
        speed, undecided = comparison.speed, comparison.gain.verdict == "open" and comparison.blind < BLIND_PAIRS
        watched = undecided and comparison.pairs < WATCH_PAIRS and used_s >= WATCH_AFTER_S
        batches_s = speed * used_s * self._block_steps / max(self._env_steps - self._taken_steps, 1)
        share, least_s = (WATCH_SHARE, LONGEST_BLOCK_S) if watched else (BLOCK_SHARE, SHORTEST_BLOCK_S)
        self._block_s = max(min(share * used_s, LONGEST_BLOCK_S), least_s)
        lasts_s = max(self._block_s, batches_s)
        if share * used_s < lasts_s:
            return False
        if watched:
            return True
        control_s, lost = self._control_s + lasts_s, max(1.0 - 1.0 / max(speed, 1e-9), 0.0)
        return control_s <= CONTROL_SHARE * used_s and lost * control_s <= COST * used_s

    def _begin_pair(self, level: str, now: float) -> None:
        if level != self.level:
            self._block_s = SHORTEST_BLOCK_S
        order = [level, self._full]
        self._compared, self._pair = level, {}
        self._order = order if self._random.random() < 0.5 else order[::-1]
        self._begin_block(now)

    def _begin_block(self, now: float) -> None:
        level, *order = self._order
        self._act(level)
        self._order, self._switched_s, self._recorder = order, now, BlockRecorder(level)

    def _continue_pair(self, recorder: BlockRecorder, now: float) -> None:
        """End a block, begin the other, or compare both. A trial waits for no episodes."""
        alive, known = set(self._transport.alive()), self._known if self._compared == self.level else set()
        if not recorder.over(now, self._env_steps, alive & self._actors, self._block_s, self._block_steps, known):
            return
        samples = self._sampler.recent(recorder.level)
        share = average([sample.total for sample in samples]).effective_share if samples else math.nan
        self._pair[recorder.level] = recorder.end(now, self._env_steps, share, self._known)
        self._control_s += (now - self._switched_s) * (recorder.level == self._full)
        if self._order:
            self._begin_block(now)
            return
        level = self._compared
        self._act(self.level)
        comparison = self._comparisons[level]
        if acted := self._sampler.recent(level):
            comparison.kl = average([sample.compression for sample in acted]).kl
        comparison.add(self._pair[level], self._pair[self._full])
        if level != self.level:
            self._end_trial(now, level)
            return
        self._kept_pairs += 1
        if comparison.verdict == "worse":
            self._reject(now, level, str(comparison))
        elif self._kept_pairs == KEEP_PAIRS or (comparison.verdict == "better" and level not in self._told):
            self._told |= {level} if comparison.verdict == "better" else set()
            self._write("keep", level, level, f"{level}: {comparison}: kept")

    def _fault(self) -> str:
        """Why the level that acts may not, as a clause; empty where it may. An alarm has its ranges checked first."""
        level = self._acting
        samples = self._sampler.recent(level)[-_ALARM_SAMPLES:]
        alarms = average([sample.compression for sample in samples]).alarms() if len(samples) > 1 else {}
        clause = f"mismatch alarm, {'; '.join(alarms.values())}"
        if not self._publisher.offers(level):
            return "withheld, as it failed the check before publication"
        if alarms and not self._ranges_checked:
            self._ranges_checked = True
            logger.info("compression: %s: %s; its ranges are checked", level, clause)
            self._publisher.check_ranges(level)
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
        tried = all(self._comparisons[level].pairs for level in self.levels[1 : self._prepared])
        policy_s, spent_s = map(sum, zip(*self._policy_s, strict=True)) if self._policy_s else (0.0, 0.0)
        if self._prepared == 1 or (tried and policy_s >= LEAST_POLICY_SHARE * spent_s):
            self._prepared += 1
            self._act(self._acting)

    def _act(self, level: str) -> None:
        """Publish a level and nothing else, and prepare the others."""
        self._acting, self._recorder, self._order = level, None, []
        self._publisher.use(level, prepare=(*self.levels[: self._prepared], self.level))

    def _change(self, now: float, kind: str, of: str, after: str, reason: str) -> None:
        self._write(kind, of, after, reason)
        self.level, self._ranges_checked = after, False
        self._taken_s, self._taken_steps, self._control_s, self._kept_pairs = now, self._env_steps, 0.0, 0
        self._sampler.forget()
        self._act(after)

    def _write(self, kind: str, of: str, after: str, reason: str) -> None:
        """Log a decision with the figures of the level that it is about."""
        logger.log(logging.DEBUG if kind == self._last_kind == "hold" else logging.INFO, "compression: %s", reason)
        self._last_kind = kind
        self._log.write(self._env_steps, kind, self.level, after, reason, self._comparisons[of].figures())


def make_steering(
    choice: CompressionChoice,
    config: TrainConfig,
    publisher: Publisher,
    transport: LearnerTransport,
    sampler: MismatchSampler,
    run_path: Path,
    *,
    clock: Callable[[], float] = perf_counter,
) -> Steering:
    """What steers a run whose compression is chosen so; ``clock`` (seconds, monotonic) is the tuner's.

    Of several levels, those that do not suit the network are dropped, with a warning.

    Raises: ConfigError: full precision does not suit the network.
    """
    levels = publisher.suitable(choice.levels) if len(choice.levels) > 1 else choice.levels
    if len(levels) == 1:
        return Steering()
    return TunedSteering(levels, config, publisher, transport, sampler, DecisionLog(run_path), clock=clock)
