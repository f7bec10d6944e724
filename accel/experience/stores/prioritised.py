"""Prioritised replay: transitions are drawn in proportion to p^α and weighted by (N P)^−β, the greatest weight being 1.

The priority of a transition is |δ| (``PriorityTree``). A new one has that which its actor computed, which arrives with
the rows that its return needs; without one, the greatest so far.

Source: Schaul et al. 2016, arXiv:1511.05952, section 3.3 and 3.4; Horgan et al. 2018, arXiv:1803.00933, algorithm 1 and
2. Deviation: the oldest transitions give way, whatever their priority.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np
import numpy.typing as npt
from torch import Tensor

from accel.config import TrainConfig
from accel.config.experience import PrioritisedConfig
from accel.experience.stores.base import Arrays, Experience, Ring, Sample
from accel.experience.stores.replay import Indices, Replay, Stream
from accel.experience.sum_tree import PriorityTree
from accel.experience.transfer import Arrivals

Floats = npt.NDArray[np.float64]


class PrioritisedReplay(Replay):
    """Args: as for ``Replay``."""

    def __init__(self, config: TrainConfig, *others: object) -> None:
        super().__init__(config, *others)  # type: ignore[arg-type]
        self._options = cast(PrioritisedConfig, config.store)
        self.tree = self._make_tree(0)  # until the first insertion
        self._arrivals: Arrivals[tuple[Indices, Indices]] = Arrivals()

    @property
    def nbytes(self) -> int:
        """With the tree's."""
        return super().nbytes + round(8.3 * self._capacity)

    def insert(self, experience: Experience) -> None:
        """Copy an unroll's rows, release it, and weigh the transitions that it completes."""
        unroll, before = experience.unroll, self._streams.get(experience.actor)
        rows, envs = unroll["rewards"].shape
        priorities = np.array(unroll["priority"], np.float64) if "priority" in unroll else None
        oldest, newest = (0, 0) if before is None else self._range(before)
        super().insert(experience)
        stream = self._streams[experience.actor]
        if before is None and len(self._streams) == 1:
            self.tree = self._make_tree(self._actors * stream.valid.size)
        least, most = self._range(stream)
        gone = np.arange(oldest, min(least, newest))
        self._set(experience.actor, stream, gone, np.zeros((len(gone), envs)))
        new = np.arange(max(newest, least), most)
        places = new - (stream.written - rows - self._n)
        if priorities is None:
            found = np.full((len(new), envs), self.tree.greatest)
        else:
            found = np.where(places[:, None] >= 0, priorities[np.maximum(places, 0)], 0.0)
        weights = np.where(stream.valid[new % stream.length], self.tree.weigh(found), 0.0)
        self._set(experience.actor, stream, new, weights)

    def state(self) -> tuple[dict[str, object], Arrays]:
        """With the priorities. See ``KeptStore``."""
        values, arrays = super().state()
        weights = {"weights": self.tree.weights} if self._streams else {}
        return values | {"greatest": self.tree.greatest}, {**arrays, **weights}

    def restore(self, rings: Mapping[str, Ring], values: Mapping[str, object], arrays: Arrays) -> None:
        """See ``KeptStore``."""
        greatest = float(str(values["greatest"]))
        tree = self._make_tree(sum(self._actors * ring.arrays["valid"].size for ring in list(rings.values())[:1]))
        tree.restore(arrays["weights"] if rings else tree.weights, greatest)
        super().restore(rings, values, arrays)
        self.tree = tree

    def sample(self) -> Sample | None:
        """``batch_size`` transitions by priority, with repetition."""
        if self.tree.total <= 0.0:
            return None
        leaves = self.tree.draw(self._batch_size, self._generator)  # In order, so that an actor's lie side by side.
        envs = next(iter(self._streams.values())).valid.shape[1]
        chosen, rows = [], np.empty(self._batch_size, np.int64)
        actors = leaves // self._leaves
        for actor in np.unique(actors):
            mine, stream = actors == actor, self._streams[int(actor)]
            place, env = np.divmod(leaves[mine] % self._leaves, envs)
            oldest, _ = self._range(stream)
            rows[mine] = oldest + (place - oldest) % stream.length
            chosen.append((stream, rows[mine], env))
        eligible = sum(stream.eligible for stream in self._streams.values())
        return replace(self._make_sample(chosen, self.tree.importance(leaves, eligible)), key=(leaves, rows))

    def feedback(self, sample: Sample, priorities: Tensor | None) -> None:
        """Weigh a sample's transitions anew; those whose place another has taken meanwhile are left alone."""
        if priorities is None:
            return
        key = cast(tuple[Indices, Indices], sample.key)
        for (leaves, rows), found in self._arrivals.put(key, priorities.detach().double()):
            oldest = np.zeros(self._actors, np.int64)
            for actor, stream in self._streams.items():
                oldest[actor] = self._range(stream)[0]
            there = rows >= oldest[leaves // self._leaves]
            self.tree.set(leaves[there], self.tree.weigh(found[there]))

    @property
    def _leaves(self) -> int:
        """Of one actor."""
        stream = next(iter(self._streams.values()))
        return stream.valid.size

    def _make_tree(self, size: int) -> PriorityTree:
        return PriorityTree(size, self._options.priority_exponent, self._options.weight_exponent)

    def _set(self, actor: int, stream: Stream, rows: Indices, weights: Floats) -> None:
        """Weights [R, B] of rows [R], counted since the start, of all environments."""
        if not len(rows):
            return
        envs = stream.valid.shape[1]
        leaves = actor * self._leaves + (rows % stream.length)[:, None] * envs + np.arange(envs)
        self.tree.set(leaves.reshape(-1), weights.reshape(-1))
