"""Prioritised replay: transitions are drawn in proportion to p^α and weighted by (N P)^−β, the greatest weight being 1.

    p = |δ| + 0.001,   P(i) = p_i^α / Σ p^α,   w_i = (N P(i))^−β / max_j w_j  over the batch

A new transition has the priority that its actor computed, which arrives with the rows that its return needs; without
one, the greatest so far. Draws are stratified.

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

from accel.config.experience import PrioritisedConfig
from accel.experience.stores.base import Arrays, Experience, Ring, Sample
from accel.experience.stores.replay import Indices, Replay, Stream
from accel.experience.sum_tree import SumTree
from accel.experience.transfer import Arrivals

_LEAST_PRIORITY = 1e-3

Floats = npt.NDArray[np.float64]


class PrioritisedReplay(Replay):
    """Args: options: the exponents; the others as for ``Replay``."""

    def __init__(self, options: PrioritisedConfig, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._exponent = options.priority_exponent
        self._weight_exponent = options.weight_exponent
        self._greatest = 1.0
        self.tree: SumTree | None = None
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
        if self.tree is None:
            self.tree = SumTree(self._actors * stream.length * envs)
        least, most = self._range(stream)
        gone = np.arange(oldest, min(least, newest))
        self._set(experience.actor, stream, gone, np.zeros((len(gone), envs)))
        new = np.arange(max(newest, least), most)
        places = new - (stream.written - rows - self._n)
        if priorities is None:
            found = np.full((len(new), envs), self._greatest)
        else:
            found = np.where(places[:, None] >= 0, priorities[np.maximum(places, 0)], 0.0)
        self._set(experience.actor, stream, new, np.where(stream.valid[new % stream.length], self._weigh(found), 0.0))

    def state(self) -> tuple[dict[str, object], Arrays]:
        """With the priorities. See ``KeptStore``."""
        values, arrays = super().state()
        weights = {} if self.tree is None else {"weights": self.tree.weights}
        return values | {"greatest": self._greatest}, {**arrays, **weights}

    def restore(self, rings: Mapping[str, Ring], values: Mapping[str, object], arrays: Arrays) -> None:
        """See ``KeptStore``."""
        greatest = float(str(values["greatest"]))
        tree = None
        if rings:
            envs = next(iter(rings.values())).arrays["valid"].shape[1]
            tree = SumTree(self._actors * next(iter(rings.values())).length * envs)
            tree.set(np.arange(len(tree.weights)), cast(Floats, arrays["weights"]))
        super().restore(rings, values, arrays)
        self._greatest, self.tree = greatest, tree

    def sample(self) -> Sample | None:
        """``batch_size`` transitions by priority, with repetition."""
        tree = self.tree
        total = 0.0 if tree is None else tree.total
        if tree is None or total <= 0.0:
            return None
        count = self._batch_size
        strata = (np.arange(count) + self._generator.random(count)) * (total / count)
        leaves = tree.find(strata)  # In order, so that an actor's lie side by side.
        envs = next(iter(self._streams.values())).valid.shape[1]
        chosen, rows = [], np.empty(count, np.int64)
        actors = leaves // self._leaves
        for actor in np.unique(actors):
            mine, stream = actors == actor, self._streams[int(actor)]
            place, env = np.divmod(leaves[mine] % self._leaves, envs)
            oldest, _ = self._range(stream)
            rows[mine] = oldest + (place - oldest) % stream.length
            chosen.append((stream, rows[mine], env))
        eligible = sum(stream.eligible for stream in self._streams.values())
        weights = (tree.get(leaves) * (eligible / total)) ** -self._weight_exponent
        weights /= weights.max()
        return replace(self._make_sample(chosen, weights.astype(np.float32)), key=(leaves, rows))

    def feedback(self, sample: Sample, priorities: Tensor | None) -> None:
        """Weigh a sample's transitions anew; those whose place another has taken meanwhile are left alone."""
        if priorities is None or self.tree is None:
            return
        key = cast(tuple[Indices, Indices], sample.key)
        for (leaves, rows), found in self._arrivals.put(key, priorities.detach().double()):
            oldest = np.zeros(self._actors, np.int64)
            for actor, stream in self._streams.items():
                oldest[actor] = self._range(stream)[0]
            there = rows >= oldest[leaves // self._leaves]
            self.tree.set(leaves[there], self._weigh(cast(Floats, found)[there]))

    @property
    def _leaves(self) -> int:
        """Of one actor."""
        stream = next(iter(self._streams.values()))
        return stream.valid.size

    def _weigh(self, priorities: Floats) -> Floats:
        """p^α; the greatest priority is kept for transitions that come without one."""
        finite = np.nan_to_num(np.abs(priorities), nan=0.0, posinf=self._greatest)
        if finite.size:
            self._greatest = max(self._greatest, float(finite.max()))
        weights: Floats = (finite + _LEAST_PRIORITY) ** self._exponent
        return weights

    def _set(self, actor: int, stream: Stream, rows: Indices, weights: Floats) -> None:
        """Weights [R, B] of rows [R], counted since the start, of all environments."""
        if self.tree is None or not len(rows):
            return
        envs = stream.valid.shape[1]
        leaves = actor * self._leaves + (rows % stream.length)[:, None] * envs + np.arange(envs)
        self.tree.set(leaves.reshape(-1), weights.reshape(-1))
