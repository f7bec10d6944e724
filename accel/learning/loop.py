"""The learner's loop: receive, insert, update, publish, record, until a limit, a threshold or a signal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from time import perf_counter

import numpy as np
import numpy.typing as npt

from accel.algorithms.base import Update
from accel.errors import DivergenceError, EnvError, TransportError
from accel.experience.on_device import remove_faults_anywhere
from accel.experience.stores.base import Experience, Sample
from accel.experience.unroll import ACTOR_PHASES, Unroll
from accel.learning.actors import Actors, is_shown
from accel.learning.coordination import Iteration
from accel.learning.counters import ActorRates, LagStatistics, TaskReturns, record_interval_s
from accel.learning.device import update_phases
from accel.learning.learner import Learner
from accel.learning.schedule import Counts
from accel.monitor.timers import PhaseTimer, shares
from accel.publishing.publisher import NoPublisher, Publisher
from accel.transport.base import LearnerTransport, Stopped
from accel.tuning.mismatch_sampling import MismatchSampler, NoSampler
from accel.tuning.steering import Steering

LEARNER_PHASES = ("wait", "batch", "forward", "correct", "backward", "compress", "publish", "record")
OWED_S = 60.0
"""How long a run that is finished makes updates that its schedule owes."""
PREPARING_S = 1e-3
"""How long the learner waits for an unroll while a policy is being prepared, which actors want at once."""
LOOK_S = 0.25
"""How often the learner looks after its actors."""
MANY_OWED = 1000
"""So many owed updates are worth a line in the log."""
MAX_FAULTS = 100
"""Parts of unrolls that may be left out for numbers that are not finite, or unrolls one after another for environments
that raise, before the run ends."""

Metrics = dict[str, float | int | str | None]

logger = logging.getLogger("accel")


class Callback:
    """What a run does beside learning, asked for by its loop. This one does nothing."""

    def record(self, env_steps: int, metrics: Metrics) -> None:
        """A record of metrics, about every ``log_interval_s``."""

    def checkpoint(self) -> None:
        """About every ``checkpoint_interval_s``, between two updates."""

    def published(self, env_steps: int, version: int, policy: bytes) -> None:
        """A policy was published."""

    def stopping(self) -> None:
        """The run was told to stop: what it has learned is safe when this returns, even if it is killed now."""

    def save_sample(self, sample: Sample) -> str:
        """Write the tensors of a sample that made the loss diverge; returns where."""
        return "no file: learner 0 keeps its own"


class Loop:
    """Runs one learner on one transport.

    Args:
        learner: algorithm, store, schedule, counters, already agreed with the actors.
        sampler: measures mismatch on what arrives. steering: decides at which level policies are published.
        collect: with a single process, produces one more unroll, on the transport unless it returns it, or raises
            Stopped as soon as what it is given says that the run is over; None when actors are elsewhere.
        stop_requested: polled between updates and between minibatches; a reason ends the run in good order, and has to
            stay once it is there.
    Attributes:
        counters: of the whole run, across resumes.
        lag: over this process's part of the run. unrolls: taken in it. trained_env_steps: inserted in it.
        training_s: from the start of ``run`` to the end of its last update.
    """

    def __init__(
        self,
        learner: Learner,
        transport: LearnerTransport,
        actors: Actors,
        publisher: Publisher | NoPublisher,
        sampler: MismatchSampler | NoSampler,
        steering: Steering,
        callback: Callback,
        collect: Callable[[Callable[[], object]], Experience | None] | None = None,
        stop_requested: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.config, self.algorithm, self.store = learner.config, learner.algorithm, learner.store
        self.schedule, self.rewards, self.layout = learner.schedule, learner.rewards, learner.layout
        self.counters, self._learner = learner.counters, learner
        self.transport, self.actors = transport, actors
        self.publisher, self.sampler, self.steering = publisher, sampler, steering
        self._callback, self._collect, self._stop_requested = callback, collect, stop_requested
        self._task_returns = TaskReturns(self.config.environment.tasks, self.config.run.stop_window)
        self.lag, self._recent_lag = LagStatistics(), LagStatistics()
        self.unrolls = self.trained_env_steps = 0
        self.actors_alive = self._actors_here = self.transport.actors
        self.training_s, self._learner_times = 0.0, dict.fromkeys(LEARNER_PHASES, 0.0)
        self._timer = PhaseTimer(LEARNER_PHASES)
        self._phases = update_phases(learner.device, self._timer)
        self._actor_s = np.zeros(len(ACTOR_PHASES))
        self._recorded = {"learner": self._timer.snapshot(), "actor": self._actor_times()}
        self._views: dict[int, Unroll] = {}
        self._published_version = -1
        self._policy = b""
        self._update: Update | None = None
        self._learned_from: Sample | None = None
        self._wants_policy = False
        self._owing_since: float | None = None

    def run(self) -> str:
        """Train until a reason to stop; returns the reason.

        Raises:
            DivergenceError: the sample that caused it is saved and nothing broken was published.
            EnvError: environments keep giving numbers that are not finite.
            TransportError: every actor is gone.
        """
        self._begin()
        while True:
            if (reason := self._reason_to_stop()) is None and self._owing_since is None:
                for experience in self._receive(wait=not self.schedule.due(self._counts())):
                    self._observe(experience)
                    self.store.insert(experience)
            self._offer_prepared()
            iteration = self._agree(reason)
            if iteration.reason is not None:
                break
            sample = None
            if iteration.learns:
                sample = self.store.sample()
                self._timer.mark("batch")
            if sample is not None:
                self._update = self._learn(sample)
                self.store.feedback(sample, self._update.priorities)
                self.counters.updates += 1
                if self._learner.coordination.alone and self._stop_requested() is not None:
                    continue  # Nobody acts with its policy any longer.
                self.publisher.after_update()
                self._timer.mark("compress")
            self._steer()
            if iteration.publishes or (sample is not None and self._publishes()):
                self.publish()
            self._keep_records()
        if self._stop_requested() is not None:
            self._callback.stopping()
        self._end()
        return iteration.reason

    @property
    def updates_owed(self) -> int:
        """What the schedule's ratio asked for and is not made."""
        return self.schedule.owed(self._counts())

    def finished(self) -> str | None:
        """Why there is nothing left to train, whatever comes; None while there is."""
        config = self.config.run
        if self.counters.env_steps >= config.total_env_steps:
            return f"total_env_steps = {config.total_env_steps} reached"
        if config.stop_at_env_steps is not None and self.counters.env_steps >= config.stop_at_env_steps:
            return f"stop_at_env_steps = {config.stop_at_env_steps} reached"
        mean = self.counters.mean_return
        if config.stop_at_return is not None and mean is not None and mean >= config.stop_at_return:
            return f"mean return {mean:.1f} over {config.stop_window} episodes reached {config.stop_at_return:g}"
        return None

    def publish(self) -> None:
        """Begin to publish the current policy, or do it later where an older one is still being prepared.

        Actors that wait for it, and other learners, get it before this returns, as does the first of a run."""
        version = self.counters.updates
        if not self.publisher.beside:
            self._phases.finish()  # its weights are read
        if self.publisher.begin(version):
            self.sampler.published(version)
        else:
            self._wants_policy = True
        self._timer.mark("compress")
        alone = self._learner.coordination.alone
        self._offer_prepared(wait=self.config.schedule.waits_for_policy or not alone or self._published_version < 0)

    def _offer_prepared(self, *, wait: bool = False) -> None:
        """Offer the policy that is prepared, if one is, to the actors."""
        prepared = self.publisher.prepared(wait=wait)
        if prepared is None:
            return
        self._timer.mark("compress")
        version, policy = self._learner.coordination.share_policy(*prepared)
        if policy is not None:
            self._published_version, self._policy = version, policy
            self.transport.publish(version, policy)
        elif self.config.schedule.waits_for_policy:
            self.transport.publish(version, self._policy)  # Withheld: the last one acts on, as of this version.
        self._timer.mark("publish")
        if policy is not None:
            self._callback.published(self.counters.env_steps, version, policy)
            self._timer.mark("record")

    def time_totals(self) -> dict[str, dict[str, float]]:
        """Seconds by phase of ``training_s``, and of all actors together; zeros before ``run`` has returned."""
        return {"learner_s": self._learner_times, "actor_s": self._actor_times()}

    def _actor_times(self) -> dict[str, float]:
        return dict(zip(ACTOR_PHASES, self._actor_s.tolist(), strict=True))

    def _agree(self, reason: str | None) -> Iteration:
        """What all learners do in this iteration."""
        due, wants, before = self.schedule.due(self._counts()), self._wants_policy, self.counters.updates
        iteration = self._learner.coordination.agree(reason, due=due, publishes=wants, actors_alive=self._actors_here)
        self._wants_policy, self.actors_alive = False, iteration.actors_alive
        if not self._learner.coordination.alone:
            self._timer.mark("wait")
            for _ in range(self.counters.updates - before):  # Others' gradients, each of which was applied.
                self.publisher.after_update()
            self._timer.mark("compress")
        return iteration

    def _publishes(self) -> bool:
        """Whether the schedule wants the policy published, and there is somebody to read it."""
        is_read = not self._learner.on_device or self.config.run.evaluate_every is not None
        return is_read and self.schedule.publishes(self._counts())

    def _counts(self) -> Counts:
        return Counts(self.counters.env_steps, self.counters.updates, self.store.available)

    def _begin(self) -> None:
        self._started = self._last_look = self._last_record = self._last_checkpoint = perf_counter()
        self._recorded_env_steps = self._first_env_steps = self.counters.env_steps
        self._recorded_updates = self.counters.updates
        self._empty_unrolls = 0
        self._faults_before = self.counters.faulty_environments  # A resumed run has all its patience again.
        self._rates = ActorRates(self.transport.actors, self._started)
        self._timer.restart()  # without what was published before

    def _end(self) -> None:
        with suppress(TransportError):  # None is left: the run has ended anyway.
            self._check_actors()  # What they said in a run that was shorter than the time between two looks.
        self._timer.mark("record")
        self._phases.settle(wait=True)
        now = perf_counter()
        self.training_s = now - self._started
        self.trained_env_steps = self.counters.env_steps - self._first_env_steps
        self._learner_times = self._timer.snapshot()
        recorded = self._recorded_env_steps, self._recorded_updates
        if (self.counters.env_steps, self.counters.updates) != recorded or self.counters.updates == 0:
            self._write_record(now)

    def _reason_to_stop(self) -> str | None:
        if self._learner.coordination.leads:
            if (reason := self.finished()) is not None and (reason := self._paid_off(reason)) is not None:
                return reason
            limit_s = self.config.run.max_seconds
            if limit_s is not None and perf_counter() - self._started >= limit_s:
                return f"max_seconds = {limit_s:g} reached"
        return self._stop_requested()

    def _paid_off(self, reason: str) -> str | None:
        """The reason that a run is finished for, once it owes no update, or has made owed ones for ``OWED_S``."""
        owed = self.updates_owed
        if owed == 0:
            return reason
        now = perf_counter()
        if self._owing_since is None:
            self._owing_since = now
            if owed >= MANY_OWED:
                logger.info("making the %d updates that are owed, for %g s at most", owed, OWED_S)
        if self.store.available and now - self._owing_since < OWED_S:
            return None
        return reason

    def _receive(self, *, wait: bool) -> Iterator[Experience]:
        """What has arrived and may be learned from, at most one unroll of each actor; waits for the first if asked to.

        Store and schedule say whether more is taken in. Gives up after a while without any, so that the caller can look
        around.
        """
        self.transport.pump()
        for _ in range(self.transport.actors):
            if not (self.store.accepts and self.schedule.accepts(self._counts())):
                return
            try:
                experience = self._next(wait=wait)
            except Stopped:
                experience = None
            self._timer.mark("wait")
            if experience is None:
                if wait and not self.publisher.preparing:
                    self._check_actors()
                return
            self.steering.admit(experience.actor, experience.unroll)
            if self._admit(experience.actor, experience.unroll):
                yield experience
                wait = False
            else:
                experience.release()

    def _next(self, *, wait: bool) -> Experience | None:
        """The next unroll, collected here or received. Raises Stopped: the run ended meanwhile."""
        collected = self._collect(self._reason_to_stop) if wait and self._collect is not None else None
        if collected is not None:
            return collected
        idle_s = PREPARING_S if self.publisher.preparing else self._learner.coordination.idle_s
        arrival = self.transport.receive(idle_s if wait else 0.0)
        if arrival is None:
            return None
        return Experience(arrival.actor, self._view(arrival.buffer), partial(self.transport.release, arrival))

    def _view(self, buffer: npt.NDArray[np.uint8]) -> Unroll:
        """The unroll in an arrival's buffer; buffers come from a pool, so views are made once."""
        unroll = self._views.get(id(buffer))
        if unroll is None:
            unroll = self._views[id(buffer)] = self.layout.view(buffer)
        return unroll

    def _admit(self, actor: int, unroll: Unroll) -> bool:
        """Count an unroll's episodes and lag; False when it is too old to learn from, or has no valid step."""
        counters = self.counters
        counters.unrolls += 1
        self.unrolls += 1
        counters.add_episodes(unroll)
        self._task_returns.add(actor, unroll)
        self._actor_s += unroll["timings_s"].view(np.float64)
        lag = counters.updates - unroll.oldest_version
        self.lag.add(lag)
        self._recent_lag.add(lag)
        if lag > self.config.schedule.max_policy_lag:
            counters.dropped_unrolls += 1
            counters.dropped_env_steps += unroll.valid_steps
            # Or every actor's next unroll would be too old again, for ever.
            self._wants_policy |= self._published_version < counters.updates
            return False
        for fault in remove_faults_anywhere(unroll, self.layout.spec.float_bytes):
            counters.faulty_environments += 1
            count = counters.faulty_environments - self._faults_before
            if is_shown(count):
                logger.warning("%s", fault.text(actor))
            if count > MAX_FAULTS:
                raise EnvError(
                    f"{fault.text(actor)}; after {MAX_FAULTS} others: mend the environment, or wrap it so that its "
                    "numbers are finite"
                )
        self._empty_unrolls = 0 if unroll.valid_steps else self._empty_unrolls + 1
        if self._empty_unrolls > MAX_FAULTS:
            raise EnvError(
                f"the last {self._empty_unrolls} unrolls have no step to learn from, as environments raised in all: "
                "see the messages above, and mend the environment"
            )
        # One without steps counts in a round too: its actor waits for the policy.
        return unroll.valid_steps > 0 or self.config.schedule.waits_for_policy

    def _observe(self, experience: Experience) -> None:
        """Everything that happens once to each new step."""
        unroll = experience.unroll
        self.counters.env_steps += unroll.valid_steps
        self._rates.add(experience.actor, unroll.valid_steps)
        self.rewards.observe(experience.actor, unroll)
        self.algorithm.observe(unroll)
        self._timer.mark("batch")
        self.sampler.observe(unroll)
        self._timer.mark("record")
        self.publisher.observe(unroll, self.layout)
        self._timer.mark("compress")

    def _learn(self, sample: Sample) -> Update:
        before, self._learned_from = self._learned_from, sample
        self._phases.settle()
        self._phases.begin()
        try:
            progress = min(self.counters.env_steps / self.config.run.total_env_steps, 1.0)
            update = self.algorithm.update(sample, progress, self._mark)
        except DivergenceError as error:
            path = self._callback.save_sample(before if error.updates_ago and before is not None else sample)
            raise DivergenceError(
                f"{error} at update {self.counters.updates - error.updates_ago}; the batch is saved in {path}. Lower "
                "learning_rate or check the rewards."
            ) from None
        self._phases.end()
        return update

    def _mark(self, phase: str) -> bool:
        """The end of a phase of an update; whether to stop. One of many optimiser steps takes longer than actors may be
        silent."""
        self._phases.mark(phase)
        self._offer_prepared()
        if perf_counter() - self._last_look >= LOOK_S:
            with suppress(TransportError):  # None is left: the look after this update says so again.
                self._check_actors()
        return self._stop_requested() is not None

    def _steer(self) -> None:
        if self.steering.due():
            self._check_actors()
            self.steering.step(self.counters.env_steps, self._timer.snapshot())
            self._timer.mark("compress")

    def _check_actors(self) -> None:
        """Report what actors said and which died; raises TransportError when none is left."""
        self._last_look = perf_counter()
        counters, before = self.counters, (self.actors.restarts, self.actors.environment_restarts)
        for actor, message in self.transport.messages():
            if not self.actors.hear(actor, message):
                text = message.get("warning") or message.get("error") or message
                logger.warning("actor %d: %s", actor, f"{text}\n{message.get('traceback', '')}".rstrip())
        for actor in self.actors.look():
            self.steering.lose(actor)
        self._actors_here = len(self.actors.alive)
        counters.actor_restarts += self.actors.restarts - before[0]
        counters.environment_restarts += self.actors.environment_restarts - before[1]

    def _keep_records(self) -> None:
        now = perf_counter()
        if now - self._last_look >= LOOK_S:
            self._check_actors()
        if now - self._last_record >= record_interval_s(now - self._started, self.config.run.log_interval_s):
            self._write_record(now)
        if now - self._last_checkpoint >= self.config.run.checkpoint_interval_s:
            self._last_checkpoint = now
            self._callback.checkpoint()
            self._timer.mark("record")

    def _write_record(self, now: float) -> None:
        """One record: progress, learning, lag and where both sides' time went since the last record."""
        counters = self.counters
        elapsed = max(now - self._last_record, 1e-9)
        record: Metrics = {
            "elapsed_s": now - self._started,
            "updates": counters.updates,
            "updates_owed": self.updates_owed,
            "env_steps_per_s": (counters.env_steps - self._recorded_env_steps) / elapsed,
            "episodes": counters.episodes,
            "return_mean": float(np.mean(counters.returns)) if counters.returns else None,
            "length_mean": float(np.mean(counters.lengths)) if counters.lengths else None,
            "scheme": self.publisher.scheme,
            "policy_bytes": len(self._policy),
            "dropped_unrolls": counters.dropped_unrolls,
            "actors_alive": self.actors_alive,
            "actor_restarts": counters.actor_restarts,
            "environment_restarts": counters.environment_restarts,
        }
        lag, self._recent_lag = self._recent_lag.as_json(), LagStatistics()
        record |= {**self._task_returns.read(), **lag, **self._rates.read(now), **self.publisher.metrics()}
        record |= {**self.sampler.metrics(), **self.steering.metrics(), **self._learner.coordination.metrics()}
        if self._update is not None:
            record |= self._update.read()
        times = {"learner": self._timer.snapshot(), "actor": self._actor_times()}
        for side, seconds in times.items():
            spent = shares(seconds, self._recorded[side])
            record |= {f"{side}_{phase}_share": share for phase, share in spent.items()}
        self._recorded = times
        self._last_record, self._recorded_env_steps = now, counters.env_steps
        self._recorded_updates = counters.updates
        self._callback.record(counters.env_steps, record)
        self._timer.mark("record")
