"""The learner's loop: receive → batch → update → publish → record, until a limit, a threshold or a signal."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import torch

from accel.batch import Batcher
from accel.config import TrainConfig
from accel.errors import DivergenceError, TransportError
from accel.learner import Learner, UpdateStatistics
from accel.publisher import Publisher
from accel.rewards import RewardTransform
from accel.trajectory import ACTOR_PHASES, Unroll, UnrollLayout
from accel.transport.base import Arrival, LearnerTransport
from monitor.timers import PhaseTimer, PhaseTimes

LEARNER_PHASES = ("wait", "batch", "forward", "correct", "backward", "compress", "publish", "record")
IDLE_RECEIVE_S = 0.05

logger = logging.getLogger("accel")


@dataclass
class Counters:
    """What a run counts over its whole life, across resumes.

    Attributes:
        dropped_unrolls: older than max_policy_lag. episodes: finished training episodes seen.
        lag_min, lag_max, lag_sum, lag_unrolls: policy lag in versions over the unrolls since the last record.
        returns: undiscounted raw returns of the last ``stop_window`` episodes, oldest first.
    """

    window: int
    dropped_unrolls: int = 0
    dropped_env_steps: int = 0
    episodes: int = 0
    unrolls: int = 0
    lag_min: int = 0
    lag_max: int = 0
    lag_sum: int = 0
    lag_unrolls: int = 0
    returns: deque[float] = field(default_factory=deque)
    lengths: deque[int] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.returns = deque(self.returns, maxlen=self.window)
        self.lengths = deque(self.lengths, maxlen=self.window)

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last window of episodes; None until it is full."""
        return float(np.mean(self.returns)) if len(self.returns) == self.window else None

    def add_lag(self, lag: int) -> None:
        """Count one unroll's policy lag."""
        self.lag_min = lag if self.lag_unrolls == 0 else min(self.lag_min, lag)
        self.lag_max = lag if self.lag_unrolls == 0 else max(self.lag_max, lag)
        self.lag_sum += lag
        self.lag_unrolls += 1

    def take_lags(self) -> dict[str, float | int | None]:
        """Minimum, mean and maximum lag since the last call."""
        if self.lag_unrolls == 0:
            return {"lag_min": None, "lag_mean": None, "lag_max": None}
        taken = {"lag_min": self.lag_min, "lag_mean": self.lag_sum / self.lag_unrolls, "lag_max": self.lag_max}
        self.lag_sum = self.lag_unrolls = 0
        return taken

    def add_episodes(self, unroll: Unroll) -> None:
        """Count the episodes that ended in an unroll."""
        lengths = unroll["episode_length"]
        ended = np.nonzero(lengths)
        if len(ended[0]):
            self.returns.extend(unroll["episode_return"][ended].tolist())
            self.lengths.extend(lengths[ended].tolist())
            self.episodes += len(ended[0])


class Trainer:
    """Runs one learner on one transport.

    Args:
        config: the run's configuration.
        learner, publisher, transport, layout: the parts, already agreed with the actors.
        record: called about every ``log_interval_s`` with a flat dictionary of metrics.
        checkpoint: called about every ``checkpoint_interval_s`` between two updates.
        collect: with a single process, produces one more unroll on the transport; None when actors are elsewhere.
        stop_requested: polled between updates; a reason ends the run in good order.
    """

    def __init__(
        self,
        config: TrainConfig,
        learner: Learner,
        publisher: Publisher,
        transport: LearnerTransport,
        layout: UnrollLayout,
        *,
        record: Callable[[dict[str, object]], None],
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
        self._layout = layout
        self._batcher = Batcher(learner.spec, learner.device)
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
        self._known_dead: frozenset[int] = frozenset()
        self._pending: list[tuple[Arrival, Unroll]] = []

    def run(self) -> str:
        """Train until a reason to stop; returns the reason.

        Raises:
            DivergenceError: the batch that caused it is saved and nothing broken was published.
            TransportError: every actor is gone.
        """
        config, learner = self.config, self.learner
        self._started = self._last_record = self._last_checkpoint = perf_counter()
        self._recorded_env_steps = learner.env_steps
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
            self._keep_records(statistics)
        self._write_record(statistics, perf_counter())
        return reason

    def _reason_to_stop(self) -> str | None:
        config = self.config
        if self.learner.env_steps >= config.total_env_steps:
            return f"total_env_steps = {config.total_env_steps} reached"
        mean = self.counters.mean_return
        if config.stop_at_return is not None and mean is not None and mean >= config.stop_at_return:
            return f"mean return {mean:.1f} over {config.stop_window} episodes reached {config.stop_at_return:g}"
        if config.max_seconds is not None and perf_counter() - self._started >= config.max_seconds:
            return f"max_seconds = {config.max_seconds:g} reached"
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
            logger.warning("actor %d: %s", actor, message.get("warning") or message.get("error") or message)
        dead = self.transport.dead() - self._known_dead
        alive = self.transport.alive()
        for actor in sorted(dead):
            logger.warning("actor %d died; %d of %d go on", actor, len(alive), self.transport.actors)
        self._known_dead |= dead
        if not alive:
            raise TransportError(f"all {self.transport.actors} actors are gone; look at their messages above and resume the run")

    def _admit(self, unroll: Unroll) -> bool:
        """Count an unroll's episodes and lag; False when it is too old to learn from."""
        counters = self.counters
        counters.unrolls += 1
        counters.add_episodes(unroll)
        self._actor_s += unroll["timings_s"]
        lag = self.learner.version - unroll.oldest_version
        counters.add_lag(lag)
        if lag > self.config.max_policy_lag:
            counters.dropped_unrolls += 1
            counters.dropped_env_steps += unroll.valid_steps
            return False
        return True

    def _update(self, arrivals: Sequence[Arrival], unrolls: Sequence[Unroll]) -> UpdateStatistics:
        batch = self._batcher.build(unrolls)
        rewards = [self.rewards.apply(arrival.actor, unroll) for arrival, unroll in zip(arrivals, unrolls, strict=True)]
        reward_tensor = self._batcher.tensor(rewards)
        valid_steps = sum(unroll.valid_steps for unroll in unrolls)
        self._timer.mark("batch")
        try:
            statistics = self.learner.update(batch, reward_tensor, valid_steps, self._timer.mark)
        except DivergenceError as error:
            path = self._save_batch(batch.tensors() | {"transformed_rewards": reward_tensor})
            raise DivergenceError(f"{error}; the batch is saved in {path}. Lower learning_rate or check the rewards.") from None
        self.publisher.observe(unrolls[0], batch.observations)
        self._timer.mark("compress")
        return statistics

    def publish(self) -> None:
        """Offer the current policy to the actors."""
        payload = self.publisher.payload(self.learner.version)
        self._timer.mark("compress")
        self.transport.publish(self.learner.version, {self.publisher.scheme: payload})
        self.published_bytes = len(payload)
        self._timer.mark("publish")

    def _keep_records(self, statistics: UpdateStatistics) -> None:
        now = perf_counter()
        if now - self._last_record >= self.config.log_interval_s:
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
        record: dict[str, object] = {
            "elapsed_s": now - self._started,
            "env_steps": learner.env_steps,
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
        record |= counters.take_lags()
        if statistics is not None:
            record |= statistics.read()
        learner_times, actor_times = self._timer.snapshot(), PhaseTimes.from_seconds(ACTOR_PHASES, self._actor_s)
        for side, times, recorded in (("learner", learner_times, self._recorded[0]), ("actor", actor_times, self._recorded[1])):
            record |= {f"{side}_{phase}_share": share for phase, share in (times - recorded).shares().items()}
        self._recorded = (learner_times, actor_times)
        self._last_record, self._recorded_env_steps = now, learner.env_steps
        self._record(record)
        self._timer.mark("record")

    def time_totals(self) -> dict[str, dict[str, float]]:
        """Seconds by phase over this process's part of the run: the learner's, and all actors' together."""
        actor = PhaseTimes.from_seconds(ACTOR_PHASES, self._actor_s)
        return {"learner_s": self._timer.snapshot().as_dict(), "actor_s": actor.as_dict()}
