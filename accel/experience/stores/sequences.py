"""Prioritised replay of sequences: consecutive unrolls with the recurrent state that actors had at their start.

A sequence is ``sequence_unrolls`` consecutive unrolls of one environment. One begins with every unroll, so that
sequences overlap; unrolls are kept once. A sequence's priority mixes those of its last unroll's steps,

    η max_t |δ_t| + (1 − η) mean_t |δ_t|

Source: Kapturowski et al. 2019, R2D2, section 2.3; η = 0.9, α = 0.9. Deviations: β is 1, not 0.6, unless asked for; the
parts of a sequence are unrolls, whose length is an option; sequences run through the ends of episodes, where the state
is zeroed.

Memory (``nbytes``): capacity × (one frame + action + outputs + reward + flags), and the state of every unroll; taken at
the first insertion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import numpy.typing as npt
from torch import Tensor

from accel.config import TrainConfig
from accel.config.experience import SequencesConfig
from accel.experience.batch import Batcher
from accel.experience.rewards import RewardTransform
from accel.experience.stores.base import Arrays, Experience, KeptStore, Ring, Sample, generator_in
from accel.experience.sum_tree import PriorityTree
from accel.experience.transfer import Arrivals
from accel.experience.unroll import Unroll, UnrollLayout, restack_frames

Array = npt.NDArray[np.generic]
Indices = npt.NDArray[np.int64]
_KEPT = (
    "observations", "frames", "first", "valid", "actions", "rewards", "terminated", "truncated", "behaviour_log_prob",
    "behaviour_params", "exploration",
)  # fmt: skip


@dataclass
class _Ring:
    """The newest unrolls of one actor. ``sequences``: the number of each, −1 where there is none yet."""

    arrays: dict[str, Array]
    sequences: Indices
    written: int = 0
    stamps: Indices = field(default_factory=lambda: np.zeros(0, np.int64))


class Sequences(KeptStore):
    """Keeps the newest unrolls of all actors together; samples never run out.

    Args: as for ``Replay``; environments reset in a step of their own.
    """

    def __init__(
        self,
        config: TrainConfig,
        layout: UnrollLayout,
        batcher: Batcher,
        rewards: RewardTransform,
        generator: np.random.Generator,
    ) -> None:
        self._options = options = cast(SequencesConfig, config.store)
        self._n, self._layout = config.algorithm.bootstrap_steps, layout  # Priorities of actors are n rows late.
        self._parts = options.sequence_unrolls
        self._actors = max(config.acting.actors, 1)
        steps = layout.unroll_length * layout.envs
        self._slots = max(options.replay_capacity // (self._actors * steps), self._parts + 1)
        self._batcher, self._rewards, self._generator = batcher, rewards, generator
        self._least_rows = min(config.schedule.least_env_steps, options.replay_capacity)
        self._rows = self._available = 0
        self._rings: dict[int, _Ring] = {}
        leaves = self._actors * self._slots * layout.envs
        self.tree = PriorityTree(leaves, options.priority_exponent, options.weight_exponent)
        self._arrivals: Arrivals[tuple[Indices, Indices]] = Arrivals()

    def rings(self) -> dict[str, Ring]:
        """One of unrolls for each actor. See ``KeptStore``."""
        return {
            str(actor): Ring(
                {**ring.arrays, "sequences": ring.sequences, "stamps": ring.stamps}, self._slots, ring.written
            )
            for actor, ring in self._rings.items()
        }

    def state(self) -> tuple[dict[str, object], Arrays]:
        """See ``KeptStore``."""
        values = {"rows": self._rows, "greatest": self.tree.greatest, "generator": self._generator.bit_generator.state}
        return values, {"weights": self.tree.weights}

    def restore(self, rings: Mapping[str, Ring], values: Mapping[str, object], arrays: Arrays) -> None:
        """See ``KeptStore``."""
        found = {}
        for actor, ring in rings.items():
            kept = dict(ring.arrays)
            sequences, stamps = (cast(Indices, kept.pop(name)) for name in ("sequences", "stamps"))
            # What comes next counts its unrolls from zero.
            sequences -= sequences.max() + self._parts + 1
            found[int(actor)] = _Ring(kept, sequences, ring.end, stamps)
        rows, greatest = int(str(values["rows"])), float(str(values["greatest"]))
        generator = generator_in(values["generator"])
        self.tree.restore(arrays["weights"], greatest)
        self._rows, self._rings, self._generator = rows, found, generator
        self._available = int(self.tree.total > 0.0)

    @property
    def nbytes(self) -> int:
        """What a full replay takes."""
        kept = [f for f in self._layout.fields if f.name in _KEPT or f.name.startswith("state_")]
        return self._actors * self._slots * (sum(f.nbytes for f in kept) + round(8.3 * self._layout.envs))

    def insert(self, experience: Experience) -> None:
        """Copy an unroll, release it, and weigh the sequences that end with it."""
        unroll, actor = experience.unroll, experience.actor
        ring = self._rings.get(actor)
        if ring is None:
            ring = self._rings[actor] = self._make_ring(unroll)
        slot = ring.written % self._slots
        for name, array in ring.arrays.items():
            array[slot] = unroll[name]
        ring.sequences[slot] = unroll.sequence
        ring.stamps[slot] = ring.written
        ring.written += 1
        self._rows += unroll.valid_steps
        # What began with the unroll whose place this is, and went on, is no sequence any more.
        spoiled = (slot + np.arange(1, self._parts)) % self._slots
        self._set(actor, spoiled, np.zeros((len(spoiled), self._layout.envs)))
        parts = (slot - np.arange(self._parts)) % self._slots
        follows = bool((ring.sequences[parts] == unroll.sequence - np.arange(self._parts)).all())
        weights = self._first_weights(unroll) if follows else np.zeros(self._layout.envs)
        self._set(actor, np.array([slot]), weights[None])
        self._available = int(self.tree.total > 0.0)
        experience.release()

    @property
    def available(self) -> int:
        """One, as soon as there is a sequence, and enough rows."""
        return int(self._rows >= self._least_rows and self._available)

    def sample(self) -> Sample | None:
        """``batch_size`` sequences by priority, with repetition, as a batch of unrolls of their whole length."""
        if self.tree.total <= 0.0:
            return None
        leaves = self.tree.draw(self._options.batch_size, self._generator)
        actors, rest = np.divmod(leaves, self._slots * self._layout.envs)
        slots, envs = np.divmod(rest, self._layout.envs)
        parts = [self._gather(self._rings[int(a)], slots[actors == a], envs[actors == a]) for a in np.unique(actors)]
        arrays = {
            name: np.ascontiguousarray(
                np.concatenate([part[name] for part in parts], 0 if name.startswith("state_") else 1)
            )
            for name in parts[0]
        }
        arrays["rewards"] = np.where(arrays["valid"][:-1], arrays["rewards"], np.float32(0))  # of resets: anything
        unroll = Unroll(arrays)
        stamps = np.array([self._rings[int(a)].stamps[s] for a, s in zip(actors, slots, strict=True)])
        sequences = sum(ring.written for ring in self._rings.values()) * self._layout.envs
        weights = self.tree.importance(leaves, sequences)
        return Sample(
            valid_steps=int(np.count_nonzero(arrays["valid"][-self._layout.unroll_length - 1 : -1])),
            batch=self._batcher.build([unroll]),
            rewards=self._batcher.tensor([self._rewards.transform(unroll)]),
            weights=self._batcher.tensor([weights], axis=0),
            key=(leaves, stamps),
        )

    def feedback(self, sample: Sample, priorities: Tensor | None) -> None:
        """Weigh a sample's sequences anew; those whose place another has taken meanwhile are left alone."""
        if priorities is None:
            return
        key = cast(tuple[Indices, Indices], sample.key)
        for (leaves, stamps), found in self._arrivals.put(key, priorities.detach().double()):
            actors, rest = np.divmod(leaves, self._slots * self._layout.envs)
            slots = rest // self._layout.envs
            now = np.array([self._rings[int(a)].stamps[s] for a, s in zip(actors, slots, strict=True)])
            there = (now == stamps) & (self.tree.get(leaves) > 0.0)
            self.tree.set(leaves[there], self.tree.weigh(found[there]))

    def _make_ring(self, unroll: Unroll) -> _Ring:
        names = [name for name in unroll.arrays if name in _KEPT or name.startswith("state_")]
        arrays = {name: np.zeros((self._slots, *unroll[name].shape), unroll[name].dtype) for name in names}
        return _Ring(arrays, np.full(self._slots, -self._slots, np.int64), 0, np.full(self._slots, -1, np.int64))

    def _first_weights(self, unroll: Unroll) -> npt.NDArray[np.float64]:
        """[B] of the sequences that end with an unroll, from its actor's priorities of the steps that are in it."""
        envs = self._layout.envs
        valid = np.asarray(unroll["valid"][: -1 - self._n], np.bool_)
        if "priority" not in unroll or len(valid) == 0:
            found = np.full(envs, self.tree.greatest)
        else:
            errors = np.where(valid, np.asarray(unroll["priority"][self._n :], np.float64), 0.0)
            mean = errors.sum(0) / np.maximum(valid.sum(0), 1)
            mix = self._options.priority_mix
            found = mix * errors.max(0) + (1.0 - mix) * mean
        steps = np.asarray(unroll["valid"][:-1], np.bool_).any(0)
        return np.where(steps, self.tree.weigh(found), 0.0)

    def _set(self, actor: int, slots: Indices, weights: npt.NDArray[np.float64]) -> None:
        envs = self._layout.envs
        leaves = (actor * self._slots + slots)[:, None] * envs + np.arange(envs)
        self.tree.set(leaves.reshape(-1), weights.reshape(-1))

    def _gather(self, ring: _Ring, slots: Indices, envs: Indices) -> dict[str, Array]:
        """Sequences that end at some slots, [L, N, ...] or [L+1, N, ...]; states [N, *shape]."""
        places = [(slots - k) % self._slots for k in reversed(range(self._parts))]
        found: dict[str, Array] = {}

        def rows(name: str) -> list[Array]:
            return [np.moveaxis(ring.arrays[name][place, :, envs], 0, 1) for place in places]

        for name, array in ring.arrays.items():
            if name.startswith("state_"):
                found[name] = array[places[0], envs]
                continue
            portions, key = rows(name), name
            if name == "frames":
                key, firsts = "observations", rows("first")
                portions = [restack_frames(*both, self._layout.spec) for both in zip(portions, firsts, strict=True)]
            if len(portions[0]) == self._layout.unroll_length + 1:  # Row T is the next unroll's row 0.
                portions = [*(portion[:-1] for portion in portions[:-1]), portions[-1]]
            found[key] = np.concatenate(portions)
        return found
