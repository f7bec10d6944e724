"""Steers compression by the monitor's tuner: gathers what it measures, and turns what it decides into assignments.

The tuner is asked every quarter of a second. Actors time every level on their own machines before any acts; with
``actors = 0``, where both sides take turns, their times add up. A candidate acts beside the reference, as whole actors
or on a slice of one actor's environments (``accel.acting.shared``). A level that is not ready in time, or is withheld,
is prepared out of use and timed in the next survey. Every decision is logged with its figures; a resumed run cuts off
those after its checkpoint and decides anew.

Metrics: ``level`` (in use), ``tuner_stage``, ``learner_rate`` (valid steps/s that the learner takes while it does not
wait or, in one process, act), ``unblocked_rate/<level>`` (valid steps/s of all actors, were they all on it and never
waiting).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter

import numpy as np

from accel.acting.shared import Assignment, assignment_text, join_payloads
from accel.config import TrainConfig
from accel.experience.unroll import ACTOR_PHASES, Unroll
from accel.json_object import Json
from accel.publishing.publisher import Publisher
from accel.transport.base import LearnerTransport
from accel.tuning.choice import CompressionChoice
from accel.tuning.mismatch_sampling import MismatchSampler, average
from accel.tuning.steering import AnnealedSteering, FixedSteering, Metrics, Steering
from monitor.decisions import DecisionLog
from monitor.mismatch import FactoredMismatch
from monitor.timers import PhaseTimes
from monitor.tuner.criteria import TunerOptions
from monitor.tuner.measurements import LevelMeasurement, Measurements
from monitor.tuner.rates import RateTable
from monitor.tuner.returns import ReturnLedger
from monitor.tuner.stages import Tuner, TunerDecision

LOOK_S = 0.25
_LEARNER_LOOKS = 20
_ALARM_SAMPLES = 4
_ENV, _OVERHEAD, _SEND = (ACTOR_PHASES.index(name) for name in ("env", "overhead", "send"))
_LEVEL = [ACTOR_PHASES.index(name) for name in ("policy", "pull", "deserialise", "load")]

logger = logging.getLogger("accel")


class TunedSteering:
    """One run under the tuner.

    Args:
        levels: the ladder, full precision first.
        envs: environments of each actor.
        publisher: compresses; all levels are bound here, so that one that does not suit the network fails at once.
        transport: assigns.
        sampler: measures mismatch.
        log: gets every decision.
        alone: learner and actor take turns in one thread, so that the time of both adds up.
        clock: seconds, monotonic.
    Raises:
        ConfigError: a level does not suit the network.
    """

    def __init__(
        self,
        levels: tuple[str, ...],
        envs: int,
        publisher: Publisher,
        transport: LearnerTransport,
        sampler: MismatchSampler,
        log: DecisionLog,
        *,
        alone: bool = False,
        options: TunerOptions | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.tuner = Tuner(levels, envs, options)
        self._publisher = publisher
        self._transport = transport
        self._sampler = sampler
        self._log = log
        self._alone = alone
        self._clock = clock
        self._schemes = publisher.schemes
        self._rates = RateTable()
        self._ledger = ReturnLedger()
        self._versions: dict[int, int] = {}
        self._looks: deque[tuple[float, int, float]] = deque(maxlen=_LEARNER_LOOKS)
        self._next_look_s = clock()
        self._window = -1
        self._assigned: dict[int, Assignment] = {}
        self._last: Measurements | None = None
        self._collecting_reports = False
        publisher.set_levels(levels)

    def admit(self, actor: int, unroll: Unroll) -> None:
        """Its times, and its episodes while returns are compared."""
        ids = unroll["scheme_id"][0]
        times = unroll["timings_s"]
        version = unroll.oldest_version
        first = int(ids[0])
        self._rates.add_unroll(
            actor,
            self._schemes[first] if bool((ids == first).all()) else None,
            len(unroll["rewards"]),
            unroll.valid_steps,
            outside_s=float(times[_ENV] + times[_OVERHEAD] + times[_SEND]),
            env_s=float(times[_ENV]),
            level_s=float(times[_LEVEL].sum()),
            loaded=version != self._versions.get(actor),
        )
        self._versions[actor] = version
        if self.tuner.compared is not None:
            rows, envs = np.nonzero(unroll["episode_length"])
            returns = unroll["episode_return"][rows, envs].astype(np.float64)
            self._ledger.observe(actor, version, ids, envs, returns)

    def hear(self, actor: int, message: Json) -> bool:
        """An actor's timing of levels."""
        timed = message.get("timed")
        if not isinstance(timed, dict):
            return False
        for level, (policy_us, load_us) in timed.items():
            self._rates.add_report(actor, str(level), float(policy_us), float(load_us))
        return True

    def lose(self, actor: int) -> None:
        """Forget a dead actor."""
        self._rates.forget(actor)
        self._ledger.forget(actor)
        self._assigned.pop(actor, None)

    def due(self) -> bool:
        """Every ``LOOK_S``."""
        return self._clock() >= self._next_look_s

    def step(self, env_steps: int, learner_times: PhaseTimes) -> None:
        """One look of the tuner's."""
        now = self._clock()
        self._next_look_s = now + LOOK_S
        self._looks.append((now, env_steps, learner_times.as_dict()["wait"]))
        measurements = self._last = self._measure(now, env_steps)
        decision = self.tuner.observe(measurements)
        if decision is not None:
            self._note(decision, env_steps)
        if self.tuner.window != self._window:
            self._begin_window()

    def policies(self, payloads: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Payloads by assignment; every living actor is assigned one of them. Empty when one is missing."""
        wanted = self.tuner.assignments(sorted(self._transport.alive()))
        if any(level not in payloads for split in wanted.values() for level, _ in split):
            # Somebody died since, and those that are left act otherwise: from the next publication on.
            self._use_levels()
            return {}
        published: dict[str, bytes] = {}
        late = self._publisher.replaced
        for actor, split in wanted.items():
            # An actor times levels when its assignment changes: one that fp32 still stands in for joins later.
            split = tuple((level, envs) for level, envs in split if envs > 0 or level not in late)
            text = assignment_text(split)
            if text not in published:
                published[text] = join_payloads(split, payloads)
            self._transport.assign(actor, text)
            self._assigned[actor] = split
        return published

    def metrics(self) -> Metrics:
        """See the module's docstring."""
        metrics: Metrics = {"level": self.tuner.incumbent, "tuner_stage": self.tuner.stage}
        if self._last is not None:
            metrics["learner_rate"] = self._last.learner_rate
            rates = {level: measured.rate for level, measured in self._last.levels.items()}
            metrics |= {f"unblocked_rate/{level}": rate for level, rate in rates.items() if rate is not None}
        return metrics

    def _measure(self, now: float, env_steps: int) -> Measurements:
        tuner, actors = self.tuner, tuple(sorted(self._transport.alive()))
        levels = [level for level in tuner.levels if self._publisher.offers(level)]
        learner_rate, wait_share = self._learner()
        assigned = tuner.assignments(actors)
        return Measurements(
            time_s=now,
            env_steps=env_steps,
            actors=actors,
            levels={level: self._measure_level(level, actors) for level in levels},
            learner_rate=learner_rate,
            alone=self._alone,
            learner_wait_share=wait_share,
            env_share=self._rates.env_share(actors),
            surveyed=all(
                self._rates.reported(actor, level)
                for actor, split in assigned.items()
                for level, _ in split
                if level in levels
            ),
            returns=self._ledger.compare() if tuner.compared is not None else None,
        )

    def _measure_level(self, level: str, actors: tuple[int, ...]) -> LevelMeasurement:
        rate = self._rates.rate(level, actors)
        samples = self._sampler.recent(level)
        if not samples:
            return LevelMeasurement(rate=rate)
        total = average([sample.total for sample in samples])
        return LevelMeasurement(
            rate=rate,
            ess=total.ess,
            retention=total.retention,
            compression_quality=average([sample.compression for sample in samples]).effective_share,
            alarms=_alarms(samples[-_ALARM_SAMPLES:]),
            samples=self._sampler.count(level),
        )

    def _learner(self) -> tuple[float | None, float]:
        """Steps per second of work, and the share of time that it waited, over the last looks."""
        first, last = self._looks[0], self._looks[-1]
        elapsed_s, steps, wait_s = (last[i] - first[i] for i in range(3))
        if elapsed_s <= 0.0 or steps <= 0:
            return None, 0.0
        return steps / max(elapsed_s - wait_s, 1e-3 * elapsed_s), wait_s / elapsed_s

    def _begin_window(self) -> None:
        tuner = self.tuner
        self._window = tuner.window
        self._sampler.forget(preferred=None if tuner.compared is None else tuner.compared[0])
        if tuner.stage == "survey":
            self._rates.forget_reports()
        if tuner.compared is not None:
            candidate, reference = (self._schemes.index(level) for level in tuner.compared)
            self._ledger.begin(candidate, reference)
        if tuner.stage != "wait":
            self._use_levels()

    def _use_levels(self) -> None:
        """Publish what is assigned, the incumbent first, and nothing else; get the others ready for the next survey."""
        splits = self.tuner.assignments(sorted(self._transport.alive())).values()
        used = dict.fromkeys(level for split in splits for level, _ in split)
        self._publisher.set_levels(dict.fromkeys((self.tuner.incumbent, *used)), prepare=self.tuner.levels)

    def _note(self, decision: TunerDecision, env_steps: int) -> None:
        """One line for each actor that is assigned otherwise, or one for all of them alike."""
        logger.info("compression: %s (%s)", decision.reason, decision.kind)
        after = self.tuner.assignments(sorted(self._transport.alive()))
        before = {actor: assignment_text(self._assigned.get(actor, ((self.tuner.full, 1),))) for actor in after}
        changes = {actor: (before[actor], assignment_text(split)) for actor, split in after.items()}
        alike = len(set(changes.values())) == 1
        changed = {actor: change for actor, change in changes.items() if change[0] != change[1]}
        if alike or not changed:
            old, new = next(iter(changes.values())) if alike else (decision.before, decision.after)
            self._log.write(env_steps, None, decision.kind, old, new, decision.reason, decision.figures)
            return
        for actor, (old, new) in changed.items():
            self._log.write(env_steps, actor, decision.kind, old, new, decision.reason, decision.figures)


def make_steering(
    choice: CompressionChoice,
    config: TrainConfig,
    publisher: Publisher,
    transport: LearnerTransport,
    sampler: MismatchSampler,
    run_path: Path,
    env_steps: int = 0,
    *,
    options: TunerOptions | None = None,
    clock: Callable[[], float] = perf_counter,
) -> Steering:
    """What steers a run whose compression is chosen so, from the steps on that it has learned from.

    ``options`` and ``clock`` (seconds, monotonic) are the tuner's.

    Raises: ConfigError: a level does not suit the network.
    """
    log = DecisionLog(run_path)
    if choice.schedule is not None:
        return AnnealedSteering(choice.schedule, publisher, log, env_steps)
    if choice.kind == "fixed":
        return FixedSteering()
    return TunedSteering(
        choice.levels,
        config.acting.envs_per_actor,
        publisher,
        transport,
        sampler,
        log,
        alone=config.acting.actors == 0,
        options=options,
        clock=clock,
    )


def _alarms(samples: tuple[FactoredMismatch, ...]) -> tuple[str, ...]:
    """Of compression alone, over the last few samples; one sample is too few."""
    if len(samples) < 2:
        return ()
    return tuple(str(alarm) for alarm in average([sample.compression for sample in samples]).alarms())
