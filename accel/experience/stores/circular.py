"""A circular buffer of N batches, each used at most K times.

Source: Luo et al. 2020, IMPACT, arXiv:1912.00167, section 3.2. Deviations: batches are taken in turns, the least used
one first and the oldest of these, instead of at random; so K uses of N batches need no random numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor

from accel.experience.batch import Batch, Batcher
from accel.experience.rewards import RewardTransform
from accel.experience.stores.base import Experience, Sample
from accel.experience.stores.fifo import Fifo


@dataclass(eq=False)
class _Slot:
    sample: Sample
    uses: int = 0


class Circular(Fifo):
    """Copies each batch out of the transport's buffers as soon as it is whole.

    Args:
        batch_unrolls, batcher, rewards: as for ``Fifo``. buffer_batches: N, where a new batch takes the oldest one's
            place. batch_uses: K, after which a batch is dropped.
    """

    accepts = True

    def __init__(
        self, batch_unrolls: int, buffer_batches: int, batch_uses: int, batcher: Batcher, rewards: RewardTransform
    ) -> None:
        super().__init__(batch_unrolls, batcher, rewards)
        self._capacity, self._uses = buffer_batches, batch_uses
        self._slots: list[_Slot] = []

    def insert(self, experience: Experience) -> None:
        """See ``Store.insert``; the last unroll of a batch makes it available."""
        super().insert(experience)
        if (shared := super().sample()) is not None:
            batch, rewards = cast(Batch, shared.batch), cast(Tensor, shared.rewards)
            copied = replace(shared, batch=_copy(batch), rewards=rewards.clone(), key=None)
            self._slots = [*self._slots, _Slot(copied)][-self._capacity :]
            super().feedback(shared, None)

    @property
    def available(self) -> int:
        """Uses that are left of all batches."""
        return sum(self._uses - slot.uses for slot in self._slots)

    def sample(self) -> Sample | None:
        """The oldest of the least used batches."""
        if not self._slots:
            return None
        slot = min(self._slots, key=lambda slot: slot.uses)
        return replace(slot.sample, key=slot)

    def feedback(self, sample: Sample, priorities: Tensor | None) -> None:
        """Count the use; a batch that was used K times goes."""
        cast(_Slot, sample.key).uses += 1
        self._slots = [kept for kept in self._slots if kept.uses < self._uses]


def _copy(batch: Batch) -> Batch:
    """The same batch in memory of its own."""
    tensors = {name: value.clone() for name, value in vars(batch).items() if isinstance(value, Tensor)}
    states = tuple(state.clone() for state in batch.states)
    return replace(batch, **tensors, states=states)  # type: ignore[arg-type]
