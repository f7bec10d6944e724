"""When the learner updates, accepts unrolls and publishes: decided by counts, never by clocks.

So a run in a single process is the same to the last bit, however fast the machine is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from accel.config import TrainConfig
from accel.config.experience import ReplayingConfig, SamplesPerInsertConfig


@dataclass(frozen=True)
class Counts:
    """The counts that schedules use.

    Attributes:
        env_steps: valid steps inserted over the whole run. updates: made over the whole run.
        available: samples that the store could give without another insertion.
    """

    env_steps: int
    updates: int
    available: int


class Schedule:
    """Asked at every turn of the learner's loop. This one, the identity, is the asynchronous schedule: an update for
    every sample that there is, and everything that arrives is taken in.

    The synchronous schedule is this one with a publication for every update: there the store, ``Rounds``, has a sample
    once every actor has sent its unroll, and actors wait for the policy.
    """

    def __init__(self, publish_interval_updates: int) -> None:
        self._interval = publish_interval_updates

    def due(self, counts: Counts) -> bool:
        """Whether an update is due, as soon as there is a sample."""
        return counts.available > 0

    def accepts(self, counts: Counts) -> bool:
        """Whether more unrolls may be taken in; otherwise actors wait."""
        return True

    def owed(self, counts: Counts) -> int:
        """Updates that a ratio still asks for, which are made before a finished run ends; zero without a ratio."""
        return 0

    def publishes(self, counts: Counts) -> bool:
        """Whether the policy is published after this update."""
        return counts.updates % self._interval == 0


class SamplesPerInsert(Schedule):
    """Keeps sampled items per inserted one at a ratio; whichever side is ahead waits.

    An update is due while  updates · batch_size < samples_per_insert · (env_steps − learning_starts), and unrolls are
    taken in until the learner is one environment step behind. Source: the rate limiter of Cassirer et al. 2021, Reverb,
    arXiv:2102.04736, section 3.3; deviation: one tolerance, of one step, on the side of inserts.

    Args:
        samples_per_insert: the ratio. batch_size: items of one update.
        learning_starts: inserts before the first update.
    """

    def __init__(
        self, publish_interval_updates: int, samples_per_insert: float, batch_size: int, learning_starts: int
    ) -> None:
        super().__init__(publish_interval_updates)
        self._ratio, self._batch_size, self._starts = samples_per_insert, batch_size, learning_starts

    def due(self, counts: Counts) -> bool:
        """While the learner is behind the ratio."""
        return counts.available > 0 and self.owed(counts) > 0

    def owed(self, counts: Counts) -> int:
        """What the learner is behind the ratio."""
        # Rounded twice, a product with ratio / batch size may lie above a whole number that it should be.
        asked = self._ratio * (counts.env_steps - self._starts) / self._batch_size
        return max(math.ceil(asked) - counts.updates, 0)

    def accepts(self, counts: Counts) -> bool:
        """Until actors are ahead by a step."""
        ahead = counts.env_steps - self._starts - counts.updates * self._batch_size / self._ratio
        return counts.available == 0 or ahead < 1


def make_schedule(config: TrainConfig) -> Schedule:
    """The schedule of a run."""
    options, store = config.schedule, config.store
    if not isinstance(options, SamplesPerInsertConfig):
        return Schedule(options.publish_interval_updates)
    batch_size = store.sampled_steps(config.acting.unroll_length) if isinstance(store, ReplayingConfig) else 1
    return SamplesPerInsert(
        options.publish_interval_updates, options.samples_per_insert, batch_size, options.learning_starts
    )
