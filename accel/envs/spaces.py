"""What an environment looks like to the rest of the pipeline: shapes, dtypes, actions. No torch, no gymnasium."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal, Self, TypeVar, cast, get_args

import numpy as np
import numpy.typing as npt

from accel.json_object import Json, finite

ActionKind = Literal["categorical", "multi_categorical", "gaussian"]
AutoresetMode = Literal["next_step", "same_step"]
FrameFill = Literal["zero", "repeat"]
Storage = Literal["uint8", "float32"]
Array = npt.NDArray[np.generic]
Choice = TypeVar("Choice")

ACTION_MASK = "action_mask"
"""The observation's key, the info's key and the graph's input that say which actions are allowed."""
MASKED = -1e9
"""Logit or value of an action that is not allowed: of probability zero in single precision, and finite."""
ALLOWED_ABOVE = 0.5 * MASKED
"""What tells logits and values of allowed actions from MASKED."""
MAX_ELEMENTS = 2**26
"""Numbers of one observation, and of one action's parts, at most."""


@dataclass(frozen=True)
class ActionSpec:
    """The action space, named by the distribution that samples it.

    Attributes:
        kind: ``categorical`` (Discrete), ``multi_categorical`` (MultiDiscrete) or ``gaussian`` (Box, flattened).
        sizes: (n,) for categorical; nvec for multi_categorical; (k,), the flattened size, for gaussian.
        low: [k] lower bounds for gaussian (``-inf`` where unbounded), empty otherwise.
        high: [k] upper bounds for gaussian, empty otherwise.
        squash: gaussian only: the environment gets tanh(sample) rescaled to the bounds instead of a clipped sample.
        masked: observations say which actions are allowed; MASKED stands in the outputs of the others.
    """

    kind: ActionKind
    sizes: tuple[int, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    squash: bool = False
    masked: bool = False

    @property
    def param_size(self) -> int:
        """P, the number of distribution parameters: logits, or means followed by log standard deviations."""
        return 2 * self.sizes[0] if self.kind == "gaussian" else sum(self.sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sampled action: () for categorical, (k,) for the others."""
        return () if self.kind == "categorical" else (self.action_size,)

    @property
    def action_size(self) -> int:
        """k, how many numbers one sampled action has."""
        return self.sizes[0] if self.kind == "gaussian" else len(self.sizes)

    @property
    def dtype(self) -> np.dtype:
        """dtype of sampled actions: int64 indices or float32 pre-squash samples."""
        return np.dtype(np.float32) if self.kind == "gaussian" else np.dtype(np.int64)

    def to_json(self) -> Json:
        """A plain JSON object; ``from_json`` restores an equal spec."""
        return cast("Json", finite(asdict(self)))

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """Inverse of ``to_json``; raises KeyError, TypeError or ValueError on a foreign object."""
        kind: ActionKind = _choice(value["kind"], get_args(ActionKind))
        sizes = _sizes(value["sizes"])
        low, high = (tuple(float(v) for v in value[side]) for side in ("low", "high"))  # type: ignore[attr-defined]
        bounds = sizes[0] if kind == "gaussian" and sizes else 0
        if not sizes or (kind != "multi_categorical" and len(sizes) > 1) or not len(low) == len(high) == bounds:
            raise ValueError(
                f"an action of kind {kind} has not the sizes {sizes} and {len(low)} and {len(high)} bounds"
            )
        return cls(kind, sizes, low, high, bool(value["squash"]), bool(value.get("masked")))


@dataclass(frozen=True)
class ObservationPart:
    """One tensor that the policy takes.

    Attributes:
        name: of the graph's input.
        shape: of one observation's part: (n,), or (C, H, W) for images.
        dtype: as the policy takes it: ``uint8`` for images and action masks, ``float32`` for everything else.
        start, stop: its elements in a record, see ``EnvSpec``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Storage
    start: int = 0
    stop: int = 0

    @property
    def is_image(self) -> bool:
        """Whether it is a (C, H, W) image."""
        return len(self.shape) == 3

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    def of_record(self, record: Array) -> Array:
        """Its place in records [..., *record_shape] as [..., *shape]: a view, of the record's dtype or float32."""
        stored = record[..., self.start : self.stop]
        if self.dtype == "float32" and record.dtype == np.uint8:
            stored = stored.view(np.float32)
        return stored.reshape(*record.shape[:-1], *self.shape)


def lay_out_record(parts: Iterable[ObservationPart]) -> tuple[tuple[ObservationPart, ...], tuple[int], Storage]:
    """The parts with their places, and the record's shape and dtype.

    Records are float32 where no part is an image, so that the parts are numbers beside each other. With images they
    are bytes: the floats come first, four bytes each, and the length is a multiple of four.
    """
    parts = tuple(parts)
    in_bytes = any(part.is_image for part in parts)
    places, end = {}, 0
    for part in sorted(parts, key=lambda part: part.dtype != "float32") if in_bytes else parts:
        size = part.size * (4 if in_bytes and part.dtype == "float32" else 1)
        places[part.name] = (end, end + size)
        end += size
    placed = tuple(ObservationPart(part.name, part.shape, part.dtype, *places[part.name]) for part in parts)
    return placed, (-(-end // 4) * 4 if in_bytes else end,), "uint8" if in_bytes else "float32"


@dataclass(frozen=True)
class EnvSpec:
    """One environment's observation and action layout, as every rank must agree on it.

    Attributes:
        observation_shape: shape of one observation; vectors are (n,), images are channels first (C, H, W).
        observation_dtype: ``uint8`` for images, ``float32`` for everything else.
        action: the action space.
        autoreset: which gymnasium autoreset mode the vector environment uses.
        frame_stack: S > 1 when channels are S consecutive frames, newest last, so that a frame need travel only once.
        frame_fill: what older frames of the stack hold at an episode's first observation.
        parts: what a Dict observation is made of, in the order of the policy's inputs; it travels as a record of
            ``observation_shape``, of which each part has a piece. Empty for all other observations.
        agents: rows of one environment: agents that share the policy.
    """

    observation_shape: tuple[int, ...]
    observation_dtype: Storage
    action: ActionSpec
    autoreset: AutoresetMode = "next_step"
    frame_stack: int = 1
    frame_fill: FrameFill = "zero"
    parts: tuple[ObservationPart, ...] = ()
    agents: int = 1

    @property
    def is_image(self) -> bool:
        """Whether observations are (C, H, W) images."""
        return len(self.observation_shape) == 3

    @property
    def has_images(self) -> bool:
        """Whether observations are images, or have images among their parts."""
        return any(part.is_image for part in self.inputs)

    @property
    def inputs(self) -> tuple[ObservationPart, ...]:
        """What the policy takes of an observation, in order: its parts, or the whole as ``observations``."""
        return self.parts or (ObservationPart("observations", self.observation_shape, self.observation_dtype),)

    @property
    def float_bytes(self) -> int:
        """How many bytes at the start of a record of bytes are floats; 0 for all other observations."""
        ends = [part.stop for part in self.parts if part.dtype == "float32"]
        return max(ends, default=0) if self.observation_dtype == "uint8" else 0

    def split(self, observations: Array) -> dict[str, Array]:
        """Observations [..., *observation_shape] as the policy's inputs by name, [..., *shape]; views if possible."""
        if not self.parts:
            return {"observations": observations}
        return {part.name: part.of_record(observations).astype(part.dtype, copy=False) for part in self.parts}

    def to_json(self) -> Json:
        """A plain JSON object; ``from_json`` restores an equal spec."""
        return cast("Json", finite(asdict(self)))

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """Inverse of ``to_json``; raises KeyError, TypeError or ValueError on a foreign object."""
        shape = _sizes(value["observation_shape"])
        if math.prod(shape) > MAX_ELEMENTS:
            raise ValueError(f"observations of shape {shape} have more than {MAX_ELEMENTS:,} numbers")
        dtype: Storage = _choice(value["observation_dtype"], get_args(Storage))
        parts, *record = lay_out_record(
            ObservationPart(str(part["name"]), _sizes(part["shape"]), _choice(part["dtype"], get_args(Storage)))
            for part in cast("list[Json]", value.get("parts", []))
        )
        if parts and record != [shape, dtype]:
            raise ValueError(f"observations of {shape} {dtype} are no record of the parts {[p.name for p in parts]}")
        action = ActionSpec.from_json(cast(Json, value["action"]))
        masks = [part.size for part in parts if part.name == ACTION_MASK]
        if action.masked and masks != [sum(action.sizes)]:
            raise ValueError(f"masked actions of sizes {action.sizes} need a part '{ACTION_MASK}' of as many numbers")
        return cls(
            observation_shape=shape,
            observation_dtype=dtype,
            action=action,
            autoreset=_choice(value["autoreset"], get_args(AutoresetMode)),
            frame_stack=_sizes([value["frame_stack"]])[0],
            frame_fill=_choice(value["frame_fill"], get_args(FrameFill)),
            parts=parts,
            agents=_sizes([value.get("agents", 1)])[0],
        )


def _sizes(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
        raise TypeError(f"{value!r} is no list of integers")
    if not all(0 < v <= MAX_ELEMENTS for v in value):
        raise ValueError(f"{value!r} are not sizes from 1 to {MAX_ELEMENTS:,}")
    return tuple(value)


def _choice(value: object, choices: tuple[Choice, ...]) -> Choice:
    if value not in choices:
        raise ValueError(f"{value!r} is none of {', '.join(map(str, choices))}")
    return value
