"""Observation spaces as one array: images stay uint8 and become channels first, a Dict is a record of its parts, all
else is a float32 vector.

A vector is the concatenation of the space's leaves in the order of ``gymnasium.spaces.flatten``: Box values flattened,
Discrete and MultiDiscrete one-hot, MultiBinary as zeros and ones, Tuple one after the other.

Each entry of a Dict, at whatever depth, is an image or a vector of its own, and an input of the policy with the entry's
name. So is each entry of a Tuple with images. The entry ``action_mask`` of an environment with discrete actions is no
input of the network but says which actions are allowed.
"""

from __future__ import annotations

import math
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any, Literal, NamedTuple, SupportsIndex, TypeGuard, cast

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from accel.envs.images import looks_like_image
from accel.envs.spaces import (
    ACTION_MASK,
    MAX_ELEMENTS,
    ActionSpec,
    AutoresetMode,
    EnvSpec,
    FrameFill,
    ObservationPart,
    lay_out_record,
)
from accel.errors import EnvError, InterfaceError

_ENCODABLE = "Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of these"
Observations = npt.NDArray[np.uint8] | npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
Space = spaces.Space[object]
Numbers = npt.NDArray[np.generic]
Indices = npt.NDArray[np.int64]
Path = tuple[str | int, ...]
_Nested = (spaces.Dict, spaces.Tuple)


class ObservationLayout(ABC):
    """Writes an environment's observations into rows of one array.

    Attributes:
        shape: of one observation: (n,) or (C, H, W).
        dtype: ``uint8`` for images, ``float32`` for vectors.
        space: the space it was made for.
        is_plain: whether an observation is stored as it is: ``row[...] = observation`` does what ``write`` does.
        parts: of a record; empty for all other observations.
        paths: where each part is found in an observation.
    """

    shape: tuple[int, ...]
    dtype: Literal["uint8", "float32"]
    space: Space
    is_plain: bool
    parts: tuple[ObservationPart, ...] = ()
    paths: tuple[Path, ...] = ()

    def spec(
        self, action: ActionSpec, autoreset: AutoresetMode, frame_stack: int = 1, frame_fill: FrameFill = "zero"
    ) -> EnvSpec:
        """The layout of an environment with these observations. Raises EnvError: they are too large."""
        if math.prod(self.shape) > MAX_ELEMENTS:
            raise EnvError(
                f"observations of shape {self.shape} have {math.prod(self.shape):,} numbers, more than "
                f"{MAX_ELEMENTS:,}: make them smaller with a wrapper (--wrapper)"
            )
        masked = any(part.name == ACTION_MASK for part in self.parts) and action.kind != "gaussian"
        action = replace(action, masked=masked)
        return EnvSpec(self.shape, self.dtype, action, autoreset, frame_stack, frame_fill, self.parts)

    def holds(self, observation: object) -> bool:
        """Whether ``observation`` has the structure and shapes of one environment's observation."""
        try:
            return _same_structure(self.space, observation)
        except (TypeError, KeyError, ValueError, IndexError):
            return False

    @abstractmethod
    def write(self, observations: object, rows: Observations) -> None:
        """Write one environment's observation into ``rows`` [*shape], or a batch of them into ``rows`` [B, *shape].

        Raises InterfaceError: a Discrete out of range.
        """

    def view_batch(self, observations: object) -> Observations | None:
        """The batched observations themselves where they need no conversion (a view, not a copy), else None."""
        is_array = isinstance(observations, np.ndarray) and observations.dtype == self.dtype
        return cast(Observations, observations) if is_array and self.is_plain else None

    def empty(self, num_envs: int) -> Observations:
        """Zeros [num_envs, *shape]."""
        return np.zeros((num_envs, *self.shape), dtype=self.dtype)

    def check(self, observation: object) -> None:
        """Hold one environment's observation against its space, which takes longer than ``write``: for the first ones.

        Values beyond the bounds of a Box pass, unless it is of bytes.

        Raises:
            InterfaceError: it has not the structure, the shapes or the kind of values that the space announces.
        """
        if not self.holds(observation):
            raise InterfaceError(
                f"the observation ({_describe(observation)}) does not have the shape of the observation space "
                f"{self.space}: correct the environment or the wrapper"
            )
        if found := self.contradiction(observation):
            raise InterfaceError(f"the observation{found}")

    def contradiction(self, observation: object) -> str:
        """What of an observation that ``holds`` is no value of its space, why, and the remedy; empty: nothing."""
        return ""


def observation_layout(space: Space, action: ActionSpec | None = None) -> ObservationLayout:
    """How observations of ``space`` are stored; ``action``, where it is discrete, gives ``action_mask`` its meaning.

    uint8 Box spaces of two dimensions or more are images: [H, W], [H, W, C], [C, H, W], or a stack of those
    [S, H, W, C] or [S, C, H, W]. The channel axis is the smaller of the candidates, the last one if they are equal.

    Raises:
        EnvError: names the space (or the part of it) that has no fixed size or is an image of other numbers than
            bytes, two entries of one name, or an action mask that does not fit the actions.
    """
    if _is_record(space):
        return _Record(space, action)
    return _part_layout(space, "observation space")


def settle_masks(spec: EnvSpec, observations: Observations, acts: Flags) -> None:
    """Allow everything where a mask allows nothing and no action is taken, as at an episode's end.

    Args:
        spec: without masked actions, nothing is done.
        observations: [B, *record], written in place.
        acts: [B] whether the next action of this environment counts.
    Raises:
        EnvError: a mask allows nothing where an action is wanted.
    """
    if not spec.action.masked:
        return
    mask = next(part for part in spec.parts if part.name == ACTION_MASK).of_record(observations)
    starts = np.cumsum((0, *spec.action.sizes[:-1]))
    empty = np.logical_not(np.logical_or.reduceat(mask != 0, starts, axis=1))
    if not empty.any():
        return
    if (acts & empty.any(1)).any():
        raise EnvError(
            f"the {ACTION_MASK} of environment {int(np.flatnonzero(acts & empty.any(1))[0])} allows no action in the "
            "middle of an episode, or is missing from its info: correct the environment, or end its episode"
        )
    mask[np.repeat(empty, spec.action.sizes, axis=1)] = 1


def _part_layout(space: Space, where: str) -> ObservationLayout:
    if _is_image(space):
        return _Image(cast(spaces.Box, space))
    if looks_like_image(space):
        raise EnvError(
            f"the {where} is {space}: convolutional networks take images of uint8. Add --wrapper "
            "accel.envs.images:ImageBytes, which makes bytes of it, or --wrapper "
            "gymnasium.wrappers:FlattenObservation, if it is a vector"
        )
    layout = _vector(space, where)
    if not layout.shape[0]:
        raise EnvError(f"the {where} is {space}, which holds no numbers: leave it out, with a wrapper")
    return layout


def _is_image(space: Space) -> bool:
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) >= 2


def _is_record(space: object) -> TypeGuard[spaces.Dict | spaces.Tuple[Any]]:
    return isinstance(space, spaces.Dict) or (isinstance(space, spaces.Tuple) and _holds_image(space))


def _holds_image(space: Space) -> bool:
    if isinstance(space, _Nested):
        return any(_holds_image(part) for _, part in _branches(space))
    return _is_image(space)


def _branches(space: spaces.Dict | spaces.Tuple[Any]) -> list[tuple[str | int, Space]]:
    """The parts of a space, by what finds them in an observation."""
    return list(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))


class _Image(ObservationLayout):
    dtype = "uint8"

    def __init__(self, space: spaces.Box) -> None:
        self.space = cast(Space, space)
        source = space.shape
        if len(source) > 4:
            raise EnvError(f"image observations have 2 to 4 dimensions, and {space} has {len(source)}: add a wrapper")
        axes = list(range(len(source)))
        if len(source) > 2 and source[-1] <= source[-3]:
            axes.insert(-2, axes.pop())
        self._axes, self._batch_axes = axes, (0, *(axis + 1 for axis in axes))
        self._unstacked = [source[axis] for axis in axes]
        self.shape = (math.prod(self._unstacked[:-2]), *self._unstacked[-2:])
        self.is_plain = axes == [0, 1, 2]

    def contradiction(self, observation: object) -> str:
        values = np.asarray(observation)
        odd = values.reshape(-1) if values.dtype.kind not in "bui" else values[(values < 0) | (values > 255)]
        return _odd_value(
            odd,
            f"and the space {self.space} is of bytes, to which it would be cut",
            "return whole numbers from 0 to 255 as np.uint8, or declare the space as np.float32 with its bounds and "
            "add --wrapper accel.envs.images:ImageBytes",
        )

    def write(self, observations: object, rows: Observations) -> None:
        if self.is_plain:
            rows[...] = cast(npt.NDArray[np.uint8], observations)
            return
        images = np.asarray(observations)  # frames may be lazy
        axes = self._axes if rows.ndim == len(self.shape) else self._batch_axes
        rows.reshape(*rows.shape[:-3], *self._unstacked)[...] = images.transpose(axes)


class _Mask(ObservationLayout):
    """Which actions are allowed: numbers of which none is zero, one for each logit, or one array for each component."""

    dtype = "uint8"
    is_plain = False

    def __init__(self, space: Space, action: ActionSpec) -> None:
        self.space = space
        self.shape = (action.param_size,)
        parts = space.spaces if isinstance(space, spaces.Tuple) else (space,)
        if sum(int(np.prod(part.shape or ())) for part in parts) != action.param_size:
            raise EnvError(
                f"the observation's {ACTION_MASK} is {space}, and the environment has {action.param_size} actions "
                f"(sizes {action.sizes}): give one number for each, or name it otherwise if it is something else"
            )

    def write(self, observations: object, rows: Observations) -> None:
        if isinstance(observations, tuple):
            parts = [np.reshape(part, (*rows.shape[:-1], -1)) for part in observations]
            observations = np.concatenate(parts, axis=-1)
        rows[...] = np.reshape(cast(Numbers, observations), rows.shape) != 0


class _Entry(NamedTuple):
    """A part of a structure: what it is called, where it is found, and how it is stored."""

    name: str
    path: Path
    layout: ObservationLayout


class _Structure(ObservationLayout):
    """Every entry by its own layout, in its piece of one array."""

    is_plain = False

    def __init__(self, space: Space, entries: Sequence[_Entry]) -> None:
        self.space, self._entries = space, entries
        self._pieces, self.shape, self.dtype = lay_out_record(
            ObservationPart(entry.name, entry.layout.shape, entry.layout.dtype) for entry in entries
        )
        self._writes = [
            # numbers are beside each other
            (entry.layout.write, entry.path, slice(piece.start, piece.stop), None if self.dtype == "float32" else piece)
            for entry, piece in zip(entries, self._pieces, strict=True)
        ]

    def contradiction(self, observation: object) -> str:
        for entry in self._entries:
            if found := entry.layout.contradiction(_at(observation, entry.path)):
                return "".join(f"[{key!r}]" for key in entry.path) + found
        return ""

    def write(self, observations: object, rows: Observations) -> None:
        for write, path, place, piece in self._writes:
            row = rows[..., place] if piece is None else cast(Observations, piece.of_record(rows))
            write(_at(observations, path), row)


_RESERVED = re.compile(rf"\d.*|params|(next_)?state_\d+|{ACTION_MASK}")
"""Names of the graph's other tensors, of the mask, which is none beside Box actions, and what is no name."""


class _Record(_Structure):
    """A Dict, or a Tuple with images, whose entries are inputs of the policy."""

    def __init__(self, space: Space, action: ActionSpec | None) -> None:
        discrete = None if action is None or action.kind == "gaussian" else action
        # the mask last: it is no input of the network
        entries = sorted(_entries(space, (), discrete), key=lambda entry: isinstance(entry.layout, _Mask))
        names = [entry.name for entry in entries]
        if twice := sorted(name for name in names if names.count(name) > 1):
            raise EnvError(f"the observation space has two entries that are both called {twice[0]!r}: rename one")
        if all(isinstance(entry.layout, _Mask) for entry in entries):
            raise EnvError(f"the observation space {space} has nothing for a network to look at")
        super().__init__(space, entries)
        self.parts, self.paths = self._pieces, tuple(entry.path for entry in entries)


def _entries(space: Space, path: Path, action: ActionSpec | None) -> Iterator[_Entry]:
    """Every image and vector of a Dict at whatever depth. Raises EnvError."""
    if path == (ACTION_MASK,) and action is not None:
        yield _Entry(ACTION_MASK, path, _Mask(space, action))
    elif _is_record(space):
        for key, part in _branches(space):
            yield from _entries(part, (*path, key), action)
    else:
        where = "observation space" + "".join(f"[{key!r}]" for key in path)
        name = re.sub(r"\W", "_", "_".join(map(str, path)))
        yield _Entry(f"part_{name}" if _RESERVED.fullmatch(name) else name, path, _part_layout(space, where))


class _Numbers(ObservationLayout):
    """Values one after the other."""

    dtype = "float32"

    def __init__(self, space: Space, size: int) -> None:
        self.space, self.shape = space, (size,)
        self.is_plain = isinstance(space, spaces.Box) and len(space.shape) == 1

    def contradiction(self, observation: object) -> str:
        values = np.asarray(observation)
        if values.dtype.kind not in "buif":
            return (
                f" has {_describe(observation)} for the space {self.space}, which is no array of real numbers: "
                f"return one of {self.space.dtype}"
            )
        if values.dtype.kind != "f" or np.dtype(self.space.dtype).kind == "f":
            return ""
        return _odd_value(
            values[values != np.rint(values)],
            f"and the space {self.space} is of whole numbers",
            "return whole numbers, or declare the space as np.float32",
        )

    def write(self, observations: object, rows: Observations) -> None:
        values = cast(Numbers, observations)
        rows[...] = values if self.is_plain else np.reshape(values, rows.shape)


class _OneHot(_Numbers):
    """Indices as concatenated one-hot vectors."""

    def __init__(self, space: Space, sizes: Indices, start: Indices) -> None:
        super().__init__(space, int(sizes.sum()))
        self._sizes, self._first = sizes, start
        self._offsets = np.cumsum(sizes) - sizes - start

    def contradiction(self, observation: object) -> str:
        values = np.reshape(np.asarray(observation), -1)
        is_index = values.dtype.kind in "bui"
        odd = values[(values < self._first) | (values >= self._first + self._sizes)] if is_index else values[:1]
        return _odd_value(
            odd,
            f"which is {'out of range' if is_index else 'no integer'} for the space {self.space}",
            "return an index of the space, or declare a space that has the value",
        )

    def write(self, observations: object, rows: Observations) -> None:
        rows[...] = 0
        places = np.reshape(cast(Indices, observations), (*rows.shape[:-1], -1)) + self._offsets
        if rows.ndim == 1:
            rows[places] = 1
        else:
            np.put_along_axis(rows, places.astype(np.int64), 1, axis=1)


class _Index(_OneHot):
    """One index: without arrays, which leaves time to check it."""

    def __init__(self, space: spaces.Discrete) -> None:
        self._size, self._start = int(space.n), int(space.start)
        super().__init__(cast(Space, space), np.array([space.n], np.int64), np.array([space.start], np.int64))

    def write(self, observations: object, rows: Observations) -> None:
        if rows.ndim > 1:
            values = np.reshape(cast(Indices, observations), -1)
            odd = (values < self._start) | (values >= self._start + self._size) | (values.dtype.kind not in "bui")
            if odd.any():
                raise InterfaceError(f"the observation{self.contradiction(values[odd][0])}")
            super().write(observations, rows)
            return
        try:
            place = operator.index(cast(SupportsIndex, observations)) - self._start
        except TypeError:  # numpy's booleans, and what is no integer
            is_odd = self.contradiction(observations)
            place = -1 if is_odd else int(np.asarray(observations).item()) - self._start
        if not 0 <= place < self._size:
            raise InterfaceError(f"the observation{self.contradiction(observations)}")
        rows[...] = 0
        rows[place] = 1


def _odd_value(odd: Numbers, why: str, remedy: str) -> str:
    """What is wrong with the first of some values, and what to do; empty where there are none."""
    return f" has the value {odd[0]} of {odd.dtype}, {why}: {remedy}" if odd.size else ""


def _vector(space: Space, where: str) -> ObservationLayout:
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return _Numbers(cast(Space, space), int(np.prod(space.shape)))
    if isinstance(space, spaces.Discrete):
        return _Index(space)
    if isinstance(space, spaces.MultiDiscrete):
        sizes, start = (part.reshape(-1).astype(np.int64) for part in (space.nvec, space.start))
        return _OneHot(cast(Space, space), sizes, start)
    if isinstance(space, _Nested):
        entries = [_Entry(f"{key}", (key,), _vector(part, f"{where}[{key!r}]")) for key, part in _branches(space)]
        return _Structure(space, entries)
    is_mission = type(space).__module__.startswith("minigrid.")
    hint = ", such as --wrapper minigrid.wrappers:ImgObsWrapper, which keeps the image alone" if is_mission else ""
    raise EnvError(
        f"the {where} is {space}, which has no fixed-size encoding: {_ENCODABLE} would work; add a wrapper{hint}"
    )


def _at(observation: object, path: Path) -> object:
    for key in path:
        observation = cast(Mapping[object, object], observation)[key]
    return observation


def _same_structure(space: Space, observation: object) -> bool:
    if isinstance(space, _Nested):
        values, branches = cast(Mapping[object, object], observation), _branches(space)
        is_whole = isinstance(space, spaces.Dict) or len(cast(Sized, observation)) == len(branches)
        return is_whole and all(_same_structure(part, values[key]) for key, part in branches)
    return np.shape(cast(Numbers, observation)) == space.shape


def _describe(observation: object) -> str:
    if isinstance(observation, np.ndarray):
        return f"{observation.dtype} array of shape {observation.shape}"
    return f"{type(observation).__name__} {str(observation)[:80]}"
