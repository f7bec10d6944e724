"""The learner's loop: receive → batch → update → publish → record, until a limit, a threshold or a signal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np
import numpy.typing as npt
import torch

from accel.algorithms.learner import Learner, UpdateStatistics
from accel.config import TrainConfig
from accel.errors import DivergenceError, TransportError
from accel.experience.batch import Batch, Batcher
from accel.experience.rewards import RewardTransform
from accel.experience.unroll import ACTOR_PHASES, Unroll, UnrollLayout
from accel.learning.counters import Counters, LagStatistics, record_interval_s
from accel.publishing.publisher import Publisher
from accel.transport.base import Arrival, LearnerTransport
from accel.tuning.mismatch_sampling import MismatchSampler
from accel.tuning.steering import Steering
from monitor.timers import PhaseTimer, PhaseTimes

LEARNER_PHASES = ("wait", "batch", "forward", "correct", "backward", "compress", "publish", "record")
IDLE_RECEIVE_S = 0.05

Metrics = dict[str, float | int | str | None]

logger = logging.getLogger("accel")


class Trainer:
    """Runs one learner on one transport.

    Args:
        config: the run's configuration.
        learner, publisher, transport, layout: the parts, already agreed with the actors.
        sampler: measures mismatch on what is learned from.
        steering: decides which policies are published and who gets them.
        record: called about every ``log_interval_s`` with the environment steps and a flat dictionary of metrics.
        checkpoint: called about every ``checkpoint_interval_s`` between two updates.
        collect: with a single process, produces one more unroll on the transport; None when actors are elsewhere.
        stop_requested: polled between updates; a reason ends the run in good order.
    Attributes:
        lag: over this process's part of the run. unrolls: taken in it. trained_env_steps: learned from in it.
        training_s: from the start of ``run`` to the end of its last update.
    """

    def __init__(
        self,
        config: TrainConfig,
        learner: Learner,
        publisher: Publisher,
        transport: LearnerTransport,
        layout: UnrollLayout,
        *,
        sampler: MismatchSampler,
        steering: Steering,
        record: Callable[[int, Metrics], None],
        checkpoint: Callable[[], None],
        save_batch: Callable[[dict[str, torch.Tensor]], str],
        collect: Callable[[], None] | None = None,
        stop_requested: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.config = config
        self.learner = learner
        self.publisher = publisher
        self.transport = transport
        self.counters = Counters(config.stop_window)
        self.rewards = RewardTransform(config)
        self.sampler = sampler
        self.steering = steering
        self._layout = layout
        self._batcher = Batcher(
            learner.spec, learner.device, pinned=config.pinned_transfers, channels_last=learner.network.channels_last
        )
        self._record = record
        self._checkpoint = checkpoint
        self._save_batch = save_batch
        self._collect = collect
        self._stop_requested = stop_requested
        self._timer = PhaseTimer(LEARNER_PHASES)
        self._actor_s = np.zeros(len(ACTOR_PHASES))
        self._recorded = (PhaseTimes.zero(LEARNER_PHASES), PhaseTimes.zero(ACTOR_PHASES))
        self._views: dict[int, Unroll] = {}
        self.published_bytes = 0
        self._published_version = -1
        self.lag, self._recent_lag = LagStatistics(), LagStatistics()
        self.unrolls = self.trained_env_steps = 0
        self.training_s, self._learner_times = 0.0, PhaseTimes.zero(LEARNER_PHASES)
        self._last_batch: Batch | None = None
        self._known_gone: frozenset[int] = frozenset()
        self._pending: list[tuple[Arrival, Unroll]] = []

    def run(self) -> str:
        """Train until a reason to stop; returns the reason.

        Raises:
            DivergenceError: the batch that caused it is saved and nothing broken was published.
            TransportError: every actor is gone.
        """
        config, learner = self.config, self.learner
        self._started = self._last_record = self._last_checkpoint = perf_counter()
        self._recorded_env_steps = first_env_steps = learner.env_steps
        self._timer.reset()  # without what was published before
        self._timer.restart()
        statistics: UpdateStatistics | None = None
        while (reason := self._reason_to_stop()) is None:
            arrivals, unrolls = self._receive_batch()
            if not arrivals:
                continue
            statistics = self._update(arrivals, unrolls)
            for arrival in arrivals:
                self.transport.release(arrival)
            if learner.version % config.publish_interval_updates == 0:
                self.publish()
            if self.steering.due():
                self._check_actors()
                self.steering.step(learner.env_steps, self._timer.snapshot())
            self._keep_records(statistics)
        self._timer.mark("record")
        now = perf_counter()
        self.training_s, self.trained_env_steps = now - self._started, learner.env_steps - first_env_steps
        self._learner_times = self._timer.snapshot()
        if learner.env_steps > self._recorded_env_steps or learner.version == 0:
            self._write_record(statistics, now)
        return reason

    def finished(self) -> str | None:
        """Why there is nothing left to train, whatever comes; None while there is."""
        config = self.config
        if self.learner.env_steps >= config.total_env_steps:
            return f"total_env_steps = {config.total_env_steps} reached"
        mean = self.counters.mean_return
        if config.stop_at_return is not None and mean is not None and mean >= config.stop_at_return:
            return f"mean return {mean:.1f} over {config.stop_window} episodes reached {config.stop_at_return:g}"
        return None

    def _reason_to_stop(self) -> str | None:
        if (reason := self.finished()) is not None:
            return reason
        if (limit_s := self.config.max_seconds) is not None and perf_counter() - self._started >= limit_s:
            return f"max_seconds = {limit_s:g} reached"
        return self._stop_requested()

    def _receive_batch(self) -> tuple[list[Arrival], list[Unroll]]:
        """Enough fresh unrolls for a batch; none when nothing came for a while, so that the caller can look around."""
        transport, pending = self.transport, self._pending
        while len(pending) < self.config.batch_unrolls:
            if self._collect is not None:
                self._collect()
            arrival = transport.receive(IDLE_RECEIVE_S)
            if arrival is None:
                self._check_actors()
                self._timer.mark("wait")
                return [], []
            unroll = self._view(arrival)
            self.steering.admit(arrival.actor, unroll)
            if self._admit(unroll):
                pending.append((arrival, unroll))
            else:
                transport.release(arrival)
        self._timer.mark("wait")
        arrivals, unrolls = [a for a, _ in pending], [u for _, u in pending]
        pending.clear()
        return arrivals, unrolls

    def _view(self, arrival: Arrival) -> Unroll:
        """The unroll in an arrival's buffer; buffers come from a pool, so views are made once."""
        unroll = self._views.get(id(arrival.buffer))
        if unroll is None:
            unroll = self._views[id(arrival.buffer)] = self._layout.view(arrival.buffer)
        return unroll

    def _check_actors(self) -> None:
        """Report what actors said and which died; raises TransportError when none is left."""
        for actor, message in self.transport.messages():
            if not self.steering.hear(actor, message):
                text = message.get("warning") or message.get("error") or message
                logger.warning("actor %d: %s", actor, f"{text}\n{message.get('traceback', '')}".rstrip())
        alive = self.transport.alive()
        gone = frozenset(range(self.transport.actors)) - alive - self._known_gone
        for actor in sorted(gone):
            how = "died" if actor in self.transport.dead() else "ended"
            logger.warning("actor %d %s; %d of %d go on", actor, how, len(alive), self.transport.actors)
            self.steering.lose(actor)
        self._known_gone |= gone
        if not alive:
            raise TransportError(
                f"all {self.transport.actors} actors are gone; look at their messages above and resume the run"
            )

    def _admit(self, unroll: Unroll) -> bool:
        """Count an unroll's episodes and lag; False when it is too old to learn from, or holds resets alone."""
        counters = self.counters
        counters.unrolls += 1
        self.unrolls += 1
        counters.add_episodes(unroll)
        self._actor_s += unroll["timings_s"].view(np.float64)
        lag = self.learner.version - unroll.oldest_version
        self.lag.add(lag)
        self._recent_lag.add(lag)
        if lag > self.config.max_policy_lag:
            counters.dropped_unrolls += 1
            counters.dropped_env_steps += unroll.valid_steps
            if self._published_version < self.learner.version:
                self.publish()  # Or every actor's next unroll would be too old again, for ever.
            return False
        return unroll.valid_steps > 0

    def _update(self, arrivals: Sequence[Arrival], unrolls: Sequence[Unroll]) -> UpdateStatistics:
        batch = self._last_batch = self._batcher.build(unrolls)
        rewards = [self.rewards.apply(arrival.actor, unroll) for arrival, unroll in zip(arrivals, unrolls, strict=True)]
        reward_tensor = self._batcher.tensor(rewards)
        valid_steps = sum(unroll.valid_steps for unroll in unrolls)
        self._timer.mark("batch")
        self.sampler.sample(unrolls, batch)
        self._timer.mark("record")
        try:
            statistics = self.learner.update(batch, reward_tensor, valid_steps, self._timer.mark)
        except DivergenceError as error:
            path = self._save_batch(batch.tensors() | {"transformed_rewards": reward_tensor})
            raise DivergenceError(
                f"{error}; the batch is saved in {path}. Lower learning_rate or check the rewards."
            ) from None
        self.publisher.observe(batch)
        self._timer.mark("compress")
        return statistics

    def publish(self) -> None:
        """Offer the current policy to the actors."""
        payloads = self.publisher.payloads()
        self._timer.mark("compress")
        policies = self.steering.policies(payloads) if payloads else {}
        if policies:
            self._published_version = self.learner.version
            self.transport.publish(self.learner.version, policies)
            self.published_bytes = len(next(iter(policies.values())))
        self._timer.mark("publish")
        if policies:
            self.sampler.published(self.learner.version)
            self._timer.mark("record")

    def _keep_records(self, statistics: UpdateStatistics) -> None:
        now = perf_counter()
        if now - self._last_record >= record_interval_s(now - self._started, self.config.log_interval_s):
            self._check_actors()
            self._write_record(statistics, now)
        if now - self._last_checkpoint >= self.config.checkpoint_interval_s:
            self._last_checkpoint = now
            self._checkpoint()
            self._timer.mark("record")

    def _write_record(self, statistics: UpdateStatistics | None, now: float) -> None:
        """One record: progress, learning, lag and where both sides' time went since the last record."""
        learner, counters = self.learner, self.counters
        elapsed = max(now - self._last_record, 1e-9)
        record: Metrics = {
            "elapsed_s": now - self._started,
            "updates": learner.version,
            "env_steps_per_s": (learner.env_steps - self._recorded_env_steps) / elapsed,
            "episodes": counters.episodes,
            "return_mean": float(np.mean(counters.returns)) if counters.returns else None,
            "length_mean": float(np.mean(counters.lengths)) if counters.lengths else None,
            "scheme": self.publisher.scheme,
            "policy_bytes": self.published_bytes,
            "dropped_unrolls": counters.dropped_unrolls,
            "actors_alive": len(self.transport.alive()),
        }
        lag, self._recent_lag = self._recent_lag.as_json(), LagStatistics()
        record |= lag | self.publisher.metrics() | self.sampler.metrics() | self.steering.metrics()
        if statistics is not None:
            record |= statistics.read()
        learner_times, actor_times = self._timer.snapshot(), PhaseTimes.from_seconds(ACTOR_PHASES, self._actor_s)
        for side, times, recorded in (
            ("learner", learner_times, self._recorded[0]),
            ("actor", actor_times, self._recorded[1]),
        ):
            record |= {f"{side}_{phase}_share": share for phase, share in (times - recorded).shares().items()}
        self._recorded = (learner_times, actor_times)
        self._last_record, self._recorded_env_steps = now, learner.env_steps
        self._record(learner.env_steps, record)
        self._timer.mark("record")

    def recent_inputs(self, rows: int = 512) -> dict[str, npt.NDArray[np.generic]]:
        """Real inputs of the policy, [N, *shape] each, from the last batch; empty before the first."""
        if (batch := self._last_batch) is None:
            return {}
        if batch.states:
            named = {"observations": batch.observations[0]} | {f"state_{i}": s for i, s in enumerate(batch.states)}
        else:
            named = {"observations": batch.observations[:-1][batch.valid]}
        return {name: tensor[:rows].cpu().numpy().copy() for name, tensor in named.items()}

    def time_totals(self) -> dict[str, dict[str, float]]:
        """Seconds by phase of ``training_s``, and of all actors together; zeros before ``run`` has returned."""
        actor = PhaseTimes.from_seconds(ACTOR_PHASES, self._actor_s)
        return {"learner_s": self._learner_times.as_dict(), "actor_s": actor.as_dict()}
