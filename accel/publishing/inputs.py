"""A sample of the policy's recent real inputs, taken from unrolls, for ranges, checks and students."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch

from accel.envs.spaces import ACTION_MASK, EnvSpec
from accel.experience.unroll import Unroll, UnrollLayout, restack_frames
from accel.networks.policy import PolicyModule

Array = npt.NDArray[np.generic]
Indices = npt.NDArray[np.int64]

REFILLS = 16
"""A full store is renewed in this many parts, spread over the renewal interval."""


MOST_BYTES = 256 << 20
"""Of observations that are kept, or that a policy is run on at once."""


def rows_within(rows: int, spec: EnvSpec) -> int:
    """So many rows, or as many as ``MOST_BYTES`` hold; at least two."""
    row_bytes = int(np.prod(spec.observation_shape)) * np.dtype(spec.observation_dtype).itemsize
    return max(min(rows, MOST_BYTES // max(row_bytes, 1)), 2)


class RecentInputs:
    """The last ``capacity`` inputs sampled from those observed, by name.

    Until it is full it takes every input; later a part of its capacity each time enough updates have passed.

    Args:
        renewal_updates: learner updates over which a full store is renewed once.
    Attributes:
        rows: kept now. updates: of the learner, counted by ``tick``.
    """

    def __init__(self, capacity: int, renewal_updates: int, seed: int) -> None:
        self._capacity = capacity
        self._interval = max(renewal_updates // REFILLS, 1)
        self._portion = -(-capacity * self._interval // renewal_updates)
        self._generator = np.random.default_rng(np.random.SeedSequence([seed, capacity]))
        self._arrays: dict[str, Array] = {}
        self._next = 0
        self._end = 0
        self._due = 0
        self.rows = self.updates = 0

    @property
    def full(self) -> bool:
        """Whether ``capacity`` rows have been seen."""
        return self.rows == self._capacity

    @property
    def wanted(self) -> int:
        """How many more rows it takes now."""
        return self._due if self.full else self._capacity - self.rows

    def tick(self) -> None:
        """Count one learner update, before its inputs are observed."""
        self.updates += 1
        self._due = 0 if self.updates % self._interval else self._portion

    def choose(self, rows: int) -> npt.NDArray[np.int64]:
        """Which of ``rows`` rows to observe: at random, as many as are wanted, at most all."""
        wanted = self.wanted
        return self._generator.integers(rows, size=wanted) if wanted < rows else np.arange(rows)

    def observe(self, rows: Mapping[str, Array]) -> None:
        """Take the rows that ``choose`` gave, [N, *shape] by name, as copies."""
        count = len(next(iter(rows.values())))
        self._due = max(self._due - count, 0)
        places = np.arange(self._next, self._next + count) % self._capacity
        for name, values in rows.items():
            if name not in self._arrays:
                self._arrays[name] = np.zeros((self._capacity, *values.shape[1:]), values.dtype)
            self._arrays[name][places] = values
        self._next = self._end = (self._next + count) % self._capacity
        self.rows = min(self.rows + count, self._capacity)

    @property
    def has_images(self) -> bool:
        """Whether an input is an image, [N, C, H, W]."""
        return any(array.ndim == 4 for array in self._arrays.values())

    def every(self) -> dict[str, Array]:
        """All rows kept, [rows, *shape] by name, as copies."""
        return {name: array[: self.rows].copy() for name, array in self._arrays.items()}

    def newest(self, rows: int) -> dict[str, Array]:
        """The last rows taken, at most ``rows``, newest last."""
        count = min(rows, self.rows)
        places = np.arange(self._next - count, self._next) % max(self.rows, 1)
        return {name: array[places] for name, array in self._arrays.items()}

    def next_few(self, rows: int) -> dict[str, Array]:
        """At most ``rows`` rows as views, valid until the next ``observe``.

        The first call after an ``observe`` gives the newest rows, later calls older ones, in turns."""
        start = max((self._end or self.rows) - rows, 0)
        self._end = start
        return {name: array[start : min(start + rows, self.rows)] for name, array in self._arrays.items()}

    def draw(self, rows: int, images: int) -> dict[str, Array]:
        """Random rows with replacement: ``rows`` of vectors, or ``images`` of images."""
        places = self._generator.integers(self.rows, size=images if self.has_images else rows)
        return {name: array[places] for name, array in self._arrays.items()}


def policy_inputs(
    unroll: Unroll,
    layout: UnrollLayout,
    choose: Callable[[int], Indices] = np.arange,
    replay: Callable[[Mapping[str, Array], Array, tuple[Array, ...]], tuple[Array, ...]] | None = None,
) -> dict[str, Array]:
    """Some inputs of an unroll, [N, *shape] each, as copies.

    Without a recurrent core these are rows of any time and environment; with one, those of row 0, whose state is known,
    or with ``replay`` of any time too.

    Args:
        unroll: what an actor sent. layout: of it.
        choose: which of so many rows; all of them if not given.
        replay: of a recurrent core: from observations by name [T, B, *shape], ``first`` [T, B] and the states before
            row 0, each [B, *shape], to the states that every row's step gets, each [T, B, *shape].
    """
    length, envs = layout.unroll_length, layout.envs
    if not layout.state_shapes:
        chosen = choose(length * envs)
        return layout.spec.split(_observations(unroll, layout, chosen // envs, chosen % envs))
    first = unroll["first"].view(np.bool_)[:length]
    if replay is None:
        columns = choose(envs)
        keep = np.logical_not(first[0])[columns]
        inputs = layout.spec.split(_observations(unroll, layout, np.zeros_like(columns), columns))
        for i, state in enumerate(unroll.states):
            inputs[f"state_{i}"] = state[columns] * keep.reshape(-1, *[1] * (state.ndim - 1))
        return inputs
    rows = np.arange(length * envs)
    inputs = layout.spec.split(_observations(unroll, layout, rows // envs, rows % envs))
    by_time = {name: values.reshape(length, envs, *values.shape[1:]) for name, values in inputs.items()}
    for i, state in enumerate(replay(by_time, first, unroll.states)):
        inputs[f"state_{i}"] = state.reshape(length * envs, *state.shape[2:])
    chosen = choose(length * envs)
    return {name: values[chosen] for name, values in inputs.items()}


def _observations(unroll: Unroll, layout: UnrollLayout, rows: Indices, columns: Indices) -> Array:
    if "frames" not in unroll:
        chosen: Array | torch.Tensor = unroll["observations"][rows, columns]
        return chosen.cpu().numpy() if isinstance(chosen, torch.Tensor) else chosen
    needed, places = np.unique(columns, return_inverse=True)
    stacked = restack_frames(unroll["frames"][:, needed], unroll["first"][:, needed], layout.spec)
    return stacked[rows, places]


def random_inputs(spec: EnvSpec, state_shapes: tuple[tuple[int, ...], ...], rows: int) -> dict[str, Array]:
    """Stand-ins of the right shapes until there are real inputs: random bytes or normal numbers, and zero states."""
    generator = np.random.default_rng(0)
    inputs: dict[str, Array] = {}
    for part in spec.inputs:
        shape = (rows, *part.shape)
        if part.dtype == "uint8":
            most = 2 if part.name == ACTION_MASK else 256
            inputs[part.name] = generator.integers(0, most, shape, dtype=np.uint8)
        else:
            inputs[part.name] = generator.standard_normal(shape, dtype=np.float32)
    return inputs | {f"state_{i}": np.zeros((rows, *state), np.float32) for i, state in enumerate(state_shapes)}


@torch.no_grad()
def replay_states(
    module: PolicyModule, observed: Mapping[str, Array], first: Array, states: tuple[Array, ...]
) -> tuple[Array, ...]:
    """The recurrent states of every row of an unroll, by a policy that may be newer than the one that acted.

    Args:
        module: of a recurrent policy. observed: by name, [T, B, *shape]. first: [T, B]. states: before row 0.
    Returns:
        What each row's step gets, zero where an episode begins, each [T, B, *shape].
    """
    device = next(module.parameters()).device
    rows = {name: torch.from_numpy(values).to(device) for name, values in observed.items()}
    keep = torch.from_numpy(np.logical_not(first)).to(device)
    state = tuple(torch.from_numpy(np.asarray(values)).to(device) for values in states)
    found = []
    for t in range(len(first)):
        state = tuple(part * keep[t].reshape(-1, *[1] * (part.ndim - 1)) for part in state)
        found.append(state)
        _, *following = module(*(values[t] for values in rows.values()), *state)
        state = tuple(following)
    return tuple(torch.stack(parts).cpu().numpy() for parts in zip(*found, strict=True))
