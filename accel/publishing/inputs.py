"""A few of the policy's real inputs of the recent past: for ranges, checks and students."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from accel.envs.spaces import EnvSpec
from accel.experience.batch import Batch

Array = npt.NDArray[np.generic]

REFILLS = 16
"""A full store is renewed in this many portions, spread over the renewal interval."""


class RecentInputs:
    """The last ``capacity`` inputs that were sampled from batches, by name: observations, then recurrent states.

    Args:
        capacity: rows kept.
        renewal_updates: updates over which a full store is renewed once; until it is full, every update adds rows.
        seed: of the choice of rows.
    """

    def __init__(self, capacity: int, renewal_updates: int, seed: int) -> None:
        self._capacity = capacity
        self._interval = max(renewal_updates // REFILLS, 1)
        self._portion = -(-capacity * self._interval // renewal_updates)
        self._generator = np.random.default_rng(np.random.SeedSequence([seed, capacity]))
        self._arrays: dict[str, Array] = {}
        self._next = 0
        self._end = 0
        self._updates = 0
        self.rows = 0

    @property
    def full(self) -> bool:
        """Whether ``capacity`` rows have been seen."""
        return self.rows == self._capacity

    def observe(self, batch: Batch) -> None:
        """Count one update and take rows from its batch when it is time: random ones, or, with a recurrent core, those
        of its first step, whose state is known."""
        self._updates += 1
        if self.full and self._updates % self._interval:
            return
        wanted = self._portion if self.full else self._capacity - self.rows
        if batch.states:
            keep = torch.logical_not(batch.first[0])
            rows = {"observations": batch.observations[0]}
            for i, state in enumerate(batch.states):
                rows[f"state_{i}"] = state * keep.view(-1, *[1] * (state.dim() - 1))
        else:
            rows = {"observations": batch.observations[:-1].flatten(0, 1)}
        count = len(rows["observations"])
        if wanted < count:
            chosen = torch.from_numpy(self._generator.integers(count, size=wanted)).to(batch.observations.device)
            rows = {name: values.index_select(0, chosen) for name, values in rows.items()}
        self._store({name: values.cpu().numpy() for name, values in rows.items()})

    def every(self) -> dict[str, Array]:
        """All rows kept, [rows, *shape] by name, as copies."""
        return {name: array[: self.rows].copy() for name, array in self._arrays.items()}

    def newest(self, rows: int) -> dict[str, Array]:
        """The last rows taken, at most so many, newest last."""
        count = min(rows, self.rows)
        places = np.arange(self._next - count, self._next) % max(self.rows, 1)
        return {name: array[places] for name, array in self._arrays.items()}

    def next_few(self, rows: int) -> dict[str, Array]:
        """At most so many rows as views, to be read at once: the last ones taken, then, from call to call, the ones
        before, until there are newer ones or all have had their turn."""
        start = max((self._end or self.rows) - rows, 0)
        self._end = start
        return {name: array[start : min(start + rows, self.rows)] for name, array in self._arrays.items()}

    def draw(self, rows: int, images: int) -> dict[str, torch.Tensor]:
        """Random rows, with repetition, as tensors on the CPU: so many of vectors, or of images [N, C, H, W]."""
        is_image = self._arrays["observations"].ndim == 4
        places = self._generator.integers(self.rows, size=images if is_image else rows)
        return {name: torch.from_numpy(array[places]) for name, array in self._arrays.items()}

    def _store(self, rows: dict[str, Array]) -> None:
        count = len(rows["observations"])
        places = np.arange(self._next, self._next + count) % self._capacity
        for name, values in rows.items():
            if name not in self._arrays:
                self._arrays[name] = np.zeros((self._capacity, *values.shape[1:]), values.dtype)
            self._arrays[name][places] = values
        self._next = self._end = (self._next + count) % self._capacity
        self.rows = min(self.rows + count, self._capacity)


def made_up_inputs(spec: EnvSpec, state_shapes: tuple[tuple[int, ...], ...], rows: int) -> dict[str, Array]:
    """Inputs of the right shapes before any real one was seen: random bytes or normal numbers, and zero states."""
    generator = np.random.default_rng(0)
    shape = (rows, *spec.observation_shape)
    observations: Array
    if spec.observation_dtype == "uint8":
        observations = generator.integers(0, 256, shape, dtype=np.uint8)
    else:
        observations = generator.standard_normal(shape, dtype=np.float32)
    states = {f"state_{i}": np.zeros((rows, *state), np.float32) for i, state in enumerate(state_shapes)}
    return {"observations": observations, **states}
