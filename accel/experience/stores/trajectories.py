"""Prioritised replay of trajectories beside new ones: an unroll of one environment is a trajectory.

Each batch of new unrolls is learned from once, and kept; then ``replays`` batches of as many trajectories are drawn, by
the priorities (``PriorityTree``) that the algorithm's last updates on them gave.

Source: Liang et al. 2021, PTR-PPO, arXiv:2112.03798; its priorities are the algorithm's matter. Deviations: α and β are
options; new trajectories, and with them the draws from memory, keep a fixed share of updates: actors wait for these.

Memory (``nbytes``): capacity × a step's part of an unroll, final observations and recurrent states included; taken with
the first batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
import numpy.typing as npt
from torch import Tensor

from accel.config import TrainConfig
from accel.config.experience import TrajectoriesConfig
from accel.experience.batch import Batcher
from accel.experience.rewards import RewardTransform
from accel.experience.stores.base import Arrays, Experience, KeptStore, Ring, Sample, generator_in
from accel.experience.stores.fifo import Fifo
from accel.experience.sum_tree import PriorityTree
from accel.experience.transfer import Arrivals
from accel.experience.unroll import Unroll, UnrollLayout

Array = npt.NDArray[np.generic]
Indices = npt.NDArray[np.int64]
_LEFT_OUT = ("header", "timings_s", "policy_version", "scheme_id", "episode_return", "episode_length")


class Trajectories(Fifo, KeptStore):
    """Gives each new batch, then replayed ones. Args: as for ``Replay``."""

    def __init__(
        self,
        config: TrainConfig,
        layout: UnrollLayout,
        batcher: Batcher,
        rewards: RewardTransform,
        generator: np.random.Generator,
    ) -> None:
        options = cast(TrajectoriesConfig, config.store)
        super().__init__(options.batch_unrolls, batcher, rewards)
        self._options, self._layout, self._generator = options, layout, generator
        self._batch_size = options.batch_unrolls * layout.envs
        self._slots = max(options.replay_capacity // layout.unroll_length, self._batch_size)
        self._replays = 0
        self._written = 0
        self._arrays: dict[str, Array] = {}
        self.tree = PriorityTree(self._slots, options.priority_exponent, options.weight_exponent, greatest=0.0)
        self._arrivals: Arrivals[Indices] = Arrivals()

    def rings(self) -> dict[str, Ring]:
        """One, of trajectories. See ``KeptStore``."""
        return {"all": Ring(self._arrays, self._slots, self._written)} if self._written else {}

    def state(self) -> tuple[dict[str, object], Arrays]:
        """See ``KeptStore``; a batch that waits is not kept."""
        values = {"greatest": self.tree.greatest, "generator": self._generator.bit_generator.state}
        return values, {"weights": self.tree.weights}

    def restore(self, rings: Mapping[str, Ring], values: Mapping[str, object], arrays: Arrays) -> None:
        """See ``KeptStore``."""
        greatest = float(str(values["greatest"]))
        generator = generator_in(values["generator"])
        self.tree.restore(arrays["weights"], greatest)
        for ring in rings.values():
            self._arrays, self._written = dict(ring.arrays), ring.end
        self._generator = generator

    @property
    def nbytes(self) -> int:
        """What a full memory takes."""
        kept = sum(field.nbytes for field in self._layout.fields if field.name not in _LEFT_OUT)
        return self._slots * (kept // self._layout.envs + 9)

    @property
    def available(self) -> int:
        """Replays that are left of this turn, and the next new batch if it is whole."""
        return self._replays + super().available

    def sample(self) -> Sample | None:
        """The next replay of this turn, or else a new batch."""
        if self._replays:
            self._replays -= 1
            return self._replay()
        return super().sample()

    def feedback(self, sample: Sample, priorities: Tensor | None) -> None:
        """Keep a new batch's trajectories, or weigh replayed ones anew, by priorities [B] where there are some."""
        if isinstance(sample.key, np.ndarray):  # of replayed trajectories: their numbers, counted since the start
            numbers, taken = sample.key, []
        else:
            taken = cast(list[Experience], sample.key)
            numbers = np.arange(self._written, self._written + len(taken) * self._layout.envs)
        for experience in taken:
            self._keep(experience.unroll)
            experience.release()
        if priorities is not None:
            for known, found in self._arrivals.put(numbers, priorities.detach().double()):
                slots = known % self._slots  # of those that have steps, and whose place no other has taken meanwhile
                there = (known >= self._written - self._slots) & (self.tree.get(slots) > 0.0)
                self.tree.set(slots[there], self.tree.weigh(found[there]))
        if taken:
            self._replays = self._options.replays if self.tree.total > 0.0 else 0

    def _keep(self, unroll: Unroll) -> None:
        """Copy an unroll's trajectories into the places of the oldest, with the greatest priority so far."""
        envs = self._layout.envs
        places = np.arange(self._written, self._written + envs) % self._slots
        for field in self._layout.fields:
            if field.name in _LEFT_OUT:
                continue
            rows = unroll[field.name]
            if not field.name.startswith("state_"):
                rows = np.swapaxes(rows, 0, 1)
            array = self._arrays.get(field.name)
            if array is None:
                array = self._arrays[field.name] = np.zeros((self._slots, *rows.shape[1:]), rows.dtype)
            array[places] = rows
        steps = np.asarray(unroll["valid"][:-1], np.bool_).any(0)
        self.tree.set(places, np.where(steps, self.tree.weigh(np.full(envs, self.tree.greatest)), 0.0))
        self._written += envs

    def _replay(self) -> Sample:
        slots = self.tree.draw(self._batch_size, self._generator)
        weights = self.tree.importance(slots, min(self._written, self._slots))
        arrays = {
            name: array[slots] if name.startswith("state_") else np.ascontiguousarray(np.swapaxes(array[slots], 0, 1))
            for name, array in self._arrays.items()
        }
        unroll = Unroll(arrays)
        return Sample(
            valid_steps=int(np.count_nonzero(arrays["valid"][:-1])),
            batch=self._batcher.build([unroll]),
            rewards=self._batcher.tensor([self._rewards.transform(unroll)]),
            weights=self._batcher.tensor([weights], axis=0),
            key=self._written - 1 - (self._written - 1 - slots) % self._slots,
        )
