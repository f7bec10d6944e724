"""The options of stores and schedules: when experience is used, and when the learner updates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal, get_args

from pydantic import Field

from accel.config.base import Count, Options, by_name

_WEIGHTS = "β, on the importance weights of the samples; 1: values are means; below 1 large errors count for more"


class BatchesConfig(Options):
    """What every store of whole unrolls has that joins them into batches as they arrive."""

    batch_unrolls: Count = Field(
        1, description="unrolls per learner batch, joined along the environment axis; unless given, one per actor"
    )

    @property
    def held_unrolls(self) -> int:
        """Unrolls whose buffers the store keeps until a batch is whole, or learned from."""
        return self.batch_unrolls


class FifoConfig(BatchesConfig):
    """Each unroll is learned from once, in the order of arrival."""

    store: Literal["fifo"] = "fifo"


class CircularConfig(BatchesConfig):
    """A circular buffer of batches, each used several times."""

    store: Literal["circular"] = "circular"
    buffer_batches: Count = Field(4, description="N, batches kept; a new one takes the place of the oldest")
    batch_uses: Count = Field(2, description="K, updates that a batch serves at most")


class KeptConfig(Options):
    """What every store has that a resumed run can go on with."""

    save_replay: bool = Field(
        False,
        description="write the replay beside every checkpoint, as far as it is new, so that --resume goes on with it; "
        "takes as much of the disk as of the memory",
    )


class TrajectoriesConfig(BatchesConfig, KeptConfig):
    """New batches, each once, and between them old trajectories, drawn by priority."""

    store: Literal["trajectories"] = "trajectories"
    replay_capacity: Count = Field(32_768, description="environment steps kept; a new one takes the oldest one's place")
    replays: int = Field(1, ge=0, description="batches of old trajectories for each new batch")
    priority_exponent: float = Field(0.6, ge=0, le=1, description="α, on priorities; 0 samples uniformly")
    weight_exponent: float = Field(0.4, ge=0, le=1, description="β, on the importance weights of the samples")


class ReplayingConfig(KeptConfig):
    """What every replay has."""

    replay_capacity: int = Field(
        100_000, ge=1, description="environment steps kept; a new one takes the oldest one's place"
    )

    @property
    def held_unrolls(self) -> int:
        """Unrolls are copied at insertion."""
        return 1

    @abstractmethod
    def sampled_steps(self, unroll_length: int) -> int:
        """Environment steps that an update learns from."""


class TransitionsConfig(ReplayingConfig):
    """What every replay of transitions has."""

    batch_size: Count = Field(64, description="transitions per learner batch")

    def sampled_steps(self, unroll_length: int) -> int:
        """One each."""
        return self.batch_size


class ReplayConfig(TransitionsConfig):
    """Replay of transitions, sampled uniformly."""

    store: Literal["replay"] = "replay"


class PrioritisedConfig(TransitionsConfig):
    """Replay of transitions, sampled by priority."""

    store: Literal["prioritised"] = "prioritised"
    priority_exponent: float = Field(0.6, ge=0, le=1, description="α, on priorities; 0 samples uniformly")
    weight_exponent: float = Field(1.0, ge=0, le=1, description=_WEIGHTS)


class SequencesConfig(ReplayingConfig):
    """Replay of sequences with the recurrent state at their start, sampled by priority."""

    store: Literal["sequences"] = "sequences"
    batch_size: Count = Field(32, description="sequences per learner batch")
    sequence_unrolls: int = Field(
        2, ge=1, le=64, description="unrolls of one sequence; all but the last only warm up the recurrent state"
    )
    priority_exponent: float = Field(0.9, ge=0, le=1, description="α, on priorities; 0 samples uniformly")
    weight_exponent: float = Field(1.0, ge=0, le=1, description=_WEIGHTS)
    priority_mix: float = Field(0.9, ge=0, le=1, description="η, share of the greatest error in a priority; else mean")

    def sampled_steps(self, unroll_length: int) -> int:
        """Those of the last unroll."""
        return self.batch_size * unroll_length


class ScheduleConfig(Options):
    """What every schedule has.

    Attributes:
        waits_for_policy: whether an actor that sent an unroll waits for the policy that was learned from it.
    """

    waits_for_policy: ClassVar[bool] = False

    @property
    def least_env_steps(self) -> int:
        """Environment steps that a store must hold before the first update."""
        return 0


class AsynchronousConfig(ScheduleConfig):
    """The learner updates whenever the store has a batch; actors never wait for a policy."""

    schedule: Literal["asynchronous"] = "asynchronous"
    publish_interval_updates: Count = Field(1, description="learner updates between publications of the policy")
    max_policy_lag: Count = Field(64, description="drop unrolls whose oldest policy is more versions old than this")


class SynchronousConfig(ScheduleConfig):
    """An update for one unroll of every actor; each then waits for the policy that was learned from it."""

    waits_for_policy: ClassVar[bool] = True
    publish_interval_updates: ClassVar[int] = 1
    max_policy_lag: ClassVar[int] = 1

    schedule: Literal["synchronous"] = "synchronous"


class SamplesPerInsertConfig(ScheduleConfig):
    """The learner takes so many samples for each environment step, within a tolerance; whoever is ahead waits."""

    schedule: Literal["samples-per-insert"] = "samples-per-insert"
    publish_interval_updates: Count = Field(16, description="learner updates between publications of the policy")
    max_policy_lag: Count = Field(1_000_000, description="drop unrolls whose oldest policy is older than this")
    samples_per_insert: float = Field(16.0, gt=0, description="sampled transitions for each environment step")
    learning_starts: int = Field(1000, ge=0, description="environment steps before the first update")

    @property
    def least_env_steps(self) -> int:
        """As many as before the first update: a resumed run whose replay is not restored fills it anew first."""
        return self.learning_starts


AnyStore = FifoConfig | CircularConfig | TrajectoriesConfig | ReplayConfig | PrioritisedConfig | SequencesConfig
AnySchedule = AsynchronousConfig | SynchronousConfig | SamplesPerInsertConfig

STORES: Mapping[str, type[AnyStore]] = by_name("store", get_args(AnyStore))
SCHEDULES: Mapping[str, type[AnySchedule]] = by_name("schedule", get_args(AnySchedule))
