"""Observation spaces as one array: images stay uint8 and become channels first, all else is a float32 vector.

A vector is the concatenation of the space's leaves in the order of ``gymnasium.spaces.flatten``: Box values flattened,
Discrete and MultiDiscrete one-hot, MultiBinary as zeros and ones, Dict and Tuple one after the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, cast

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from accel.envs.base import Observations
from accel.errors import EnvError

_ENCODABLE = "Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of these"
Space = spaces.Space[object]
Numbers = npt.NDArray[np.generic]
Indices = npt.NDArray[np.int64]


class ObservationLayout(ABC):
    """Writes an environment's observations into rows of one array.

    Attributes:
        shape: of one observation: (n,) or (C, H, W).
        dtype: ``uint8`` for images, ``float32`` for vectors.
        space: the space it was made for.
        is_plain: whether an observation is stored as it is: ``row[...] = observation`` does what ``write`` does.
    """

    shape: tuple[int, ...]
    dtype: Literal["uint8", "float32"]
    space: Space
    is_plain: bool

    @abstractmethod
    def write(self, observation: object, row: Observations) -> None:
        """Write one environment's observation into ``row`` [*shape]."""

    @abstractmethod
    def write_batch(self, observations: object, rows: Observations) -> None:
        """Write the batched observations of a vector environment into ``rows`` [B, *shape]."""

    def view_batch(self, observations: object) -> Observations | None:
        """The batched observations themselves where they need no conversion (a view, not a copy), else None."""
        return None

    def empty(self, num_envs: int) -> Observations:
        """Zeros [num_envs, *shape]."""
        return np.zeros((num_envs, *self.shape), dtype=self.dtype)

    def check(self, observation: object) -> None:
        """Raise EnvError unless ``observation``, one environment's first, has the structure its space announces."""
        try:
            fits = _same_structure(self.space, observation)
        except (TypeError, KeyError, ValueError, IndexError):
            fits = False
        if not fits:
            raise EnvError(
                f"the environment's first observation ({_describe(observation)}) does not have the shape of its "
                f"observation space {self.space}: correct the environment or the wrapper"
            )


def observation_layout(space: Space) -> ObservationLayout:
    """How observations of ``space`` are stored.

    uint8 Box spaces of two dimensions or more are images: [H, W], [H, W, C], [C, H, W], or a stack of those
    [S, H, W, C] or [S, C, H, W]. The channel axis is the smaller of the candidates, the last one if they are equal.

    Raises:
        EnvError: names the space (or the part of it) that has no fixed size.
    """
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) >= 2:
        return _Image(space)
    return _Vector(space)


class _Image(ObservationLayout):
    dtype = "uint8"

    def __init__(self, space: spaces.Box) -> None:
        self.space = cast(Space, space)
        source = space.shape
        if len(source) > 4:
            raise EnvError(f"image observations have 2 to 4 dimensions, and {space} has {len(source)}: add a wrapper")
        axes = tuple(range(len(source)))
        if len(source) > 2 and source[-1] <= source[-3]:
            axes = (*axes[:-3], axes[-1], axes[-3], axes[-2])
        moved = tuple(source[axis] for axis in axes)
        self.shape = (int(np.prod(moved[:-2])), *moved[-2:])
        self._unstacked = moved
        self._axes = axes
        self._batch_axes = (0, *(axis + 1 for axis in axes))
        self.is_plain = axes == tuple(range(len(source))) and len(source) == 3

    def write(self, observation: object, row: Observations) -> None:
        image = cast(npt.NDArray[np.uint8], observation)
        if self.is_plain:
            row[...] = image
        else:
            row.reshape(self._unstacked)[...] = image.transpose(self._axes)

    def write_batch(self, observations: object, rows: Observations) -> None:
        images = np.asarray(observations)
        rows.reshape(-1, *self._unstacked)[...] = images.transpose(self._batch_axes)

    def view_batch(self, observations: object) -> Observations | None:
        is_array = isinstance(observations, np.ndarray) and observations.dtype == np.uint8
        return cast(Observations, observations) if is_array and self.is_plain else None


class _Vector(ObservationLayout):
    dtype = "float32"

    def __init__(self, space: Space) -> None:
        self.space = space
        self._leaves = _leaves(space, "observation space")
        self.shape = (sum(leaf.size for leaf in self._leaves),)
        self.is_plain = isinstance(space, spaces.Box) and len(space.shape) == 1
        if not self.shape[0]:
            raise EnvError(f"the observation space {space} holds no numbers")

    def write(self, observation: object, row: Observations) -> None:
        if self.is_plain:
            row[...] = cast(Numbers, observation)
            return
        for leaf in self._leaves:
            leaf.write(leaf.get(observation), row[leaf.start : leaf.start + leaf.size])

    def write_batch(self, observations: object, rows: Observations) -> None:
        for leaf in self._leaves:
            leaf.write_batch(leaf.get(observations), rows[:, leaf.start : leaf.start + leaf.size])

    def view_batch(self, observations: object) -> Observations | None:
        is_array = isinstance(observations, np.ndarray) and observations.dtype == np.float32
        return cast(Observations, observations) if is_array and self.is_plain else None


class _Leaf:
    """A part of a vector observation: where it is found in the observation, and where it goes in the row."""

    def __init__(self, get: Callable[[object], object], size: int) -> None:
        self.get = get
        self.size = size
        self.start = 0

    def write(self, value: object, row: Observations) -> None:
        row[...] = np.reshape(cast(Numbers, value), -1)

    def write_batch(self, values: object, rows: Observations) -> None:
        array = np.asarray(values)
        rows[...] = array.reshape(len(rows), -1)


class _OneHotLeaf(_Leaf):
    """Indices as concatenated one-hot vectors."""

    def __init__(self, get: Callable[[object], object], sizes: Indices, start: Indices) -> None:
        super().__init__(get, int(sizes.sum()))
        self._offsets = np.cumsum(sizes) - sizes - start

    def write(self, value: object, row: Observations) -> None:
        row[...] = 0
        row[np.reshape(cast(Indices, value), -1) + self._offsets] = 1

    def write_batch(self, values: object, rows: Observations) -> None:
        rows[...] = 0
        positions = np.asarray(values).reshape(len(rows), -1) + self._offsets
        np.put_along_axis(rows, positions.astype(np.int64), 1, axis=1)


def _leaves(space: Space, where: str) -> list[_Leaf]:
    found = list(_walk(space, lambda observation: observation, where))
    start = 0
    for leaf in found:
        leaf.start = start
        start += leaf.size
    return found


def _walk(space: Space, get: Callable[[object], object], where: str) -> list[_Leaf]:
    if isinstance(space, spaces.Box):
        return [_Leaf(get, int(np.prod(space.shape)))]
    if isinstance(space, spaces.MultiBinary):
        return [_Leaf(get, int(np.prod(space.shape)))]
    if isinstance(space, spaces.Discrete):
        return [_OneHotLeaf(get, np.array([space.n], np.int64), np.array([space.start], np.int64))]
    if isinstance(space, spaces.MultiDiscrete):
        return [_OneHotLeaf(get, space.nvec.reshape(-1).astype(np.int64), space.start.reshape(-1).astype(np.int64))]
    if isinstance(space, spaces.Dict):
        return [leaf for key in space.spaces for leaf in _walk(space[key], _getter(get, key), f"{where}[{key!r}]")]
    if isinstance(space, spaces.Tuple):
        parts = enumerate(space.spaces)
        return [leaf for i, part in parts for leaf in _walk(part, _getter(get, i), f"{where}[{i}]")]
    raise EnvError(f"the {where} is {space}, which has no fixed-size encoding: {_ENCODABLE} would work; add a wrapper")


def _getter(outer: Callable[[object], object], key: object) -> Callable[[object], object]:
    return lambda observation: cast(Mapping[object, object], outer(observation))[key]


def _same_structure(space: Space, observation: object) -> bool:
    if isinstance(space, spaces.Dict):
        parts = cast(Mapping[str, object], observation)
        return all(_same_structure(space[key], parts[key]) for key in space.spaces)
    if isinstance(space, spaces.Tuple):
        values = cast(Sequence[object], observation)
        matches = (_same_structure(part, value) for part, value in zip(space.spaces, values, strict=True))
        return all(matches)
    return np.shape(cast(Numbers, observation)) == space.shape


def _describe(observation: object) -> str:
    if isinstance(observation, np.ndarray):
        return f"{observation.dtype} array of shape {observation.shape}"
    return f"{type(observation).__name__} {str(observation)[:80]}"
