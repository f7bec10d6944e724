"""Each unroll once, in the order of arrival: the identity of stores; and in rounds, for the synchronous schedule."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from torch import Tensor

from accel.experience.batch import Batcher
from accel.experience.rewards import RewardTransform
from accel.experience.stores.base import Experience, Sample, Store


class Fifo(Store):
    """Joins ``batch_unrolls`` unrolls into a batch, without a copy where it can; releases them after the update."""

    def __init__(self, batch_unrolls: int, batcher: Batcher, rewards: RewardTransform) -> None:
        self._batch_unrolls = batch_unrolls
        self._batcher = batcher
        self._rewards = rewards
        self._waiting: deque[Experience] = deque()

    def insert(self, experience: Experience) -> None:
        """See ``Store.insert``."""
        self._waiting.append(experience)

    @property
    def wanted(self) -> int:
        """Unrolls of the next batch."""
        return self._batch_unrolls

    @property
    def accepts(self) -> bool:
        """Until a batch is whole: what waits grows older, and holds the transport's buffers."""
        return len(self._waiting) < self.wanted

    @property
    def available(self) -> int:
        """Whole batches that wait."""
        return len(self._waiting) // self.wanted

    def sample(self) -> Sample | None:
        """The oldest batch."""
        if len(self._waiting) < self.wanted:
            return None
        taken = [self._waiting.popleft() for _ in range(self.wanted)]
        unrolls = [experience.unroll for experience in taken]
        return Sample(
            valid_steps=sum(unroll.valid_steps for unroll in unrolls),
            batch=self._batcher.build(unrolls),
            rewards=self._batcher.tensor([self._rewards.transform(unroll) for unroll in unrolls]),
            key=taken,
        )

    def feedback(self, sample: Sample, priorities: Tensor | None) -> None:
        """Give the buffers of the sample's unrolls back."""
        for experience in sample.key:  # type: ignore[attr-defined]
            experience.release()


class Rounds(Fifo):
    """One unroll of every actor a batch. An actor that is gone is waited for no more; what it sent last still counts.

    ``actors`` says how many there are now.
    """

    def __init__(self, actors: Callable[[], int], batcher: Batcher, rewards: RewardTransform) -> None:
        super().__init__(0, batcher, rewards)
        self._actors = actors

    @property
    def wanted(self) -> int:
        """One of every actor, and what else there is of those that are gone."""
        return max(self._actors(), len(self._waiting), 1)
