"""What an environment looks like to the rest of the pipeline: shapes, dtypes, actions. No torch, no gymnasium."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Self, cast, get_args

import numpy as np

from accel.json_object import Json

ActionKind = Literal["categorical", "multi_categorical", "gaussian"]
AutoresetMode = Literal["next_step", "same_step"]
FrameFill = Literal["zero", "repeat"]
# numbers of one observation, and of one action's parts
_MAX_ELEMENTS = 2**26


@dataclass(frozen=True)
class ActionSpec:
    """The action space, named by the distribution that samples it.

    Attributes:
        kind: ``categorical`` (Discrete), ``multi_categorical`` (MultiDiscrete) or ``gaussian`` (Box, flattened).
        sizes: (n,) for categorical; nvec for multi_categorical; (k,), the flattened size, for gaussian.
        low: [k] lower bounds for gaussian (``-inf`` where unbounded), empty otherwise.
        high: [k] upper bounds for gaussian, empty otherwise.
        squash: gaussian only: the environment gets tanh(sample) rescaled to the bounds instead of a clipped sample.
    """

    kind: ActionKind
    sizes: tuple[int, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    squash: bool = False

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
        if self.kind == "gaussian":
            return self.sizes[0]
        return len(self.sizes)

    @property
    def dtype(self) -> np.dtype:
        """dtype of sampled actions: int64 indices or float32 pre-squash samples."""
        return np.dtype(np.float32) if self.kind == "gaussian" else np.dtype(np.int64)

    def to_json(self) -> Json:
        """A plain JSON object; ``from_json`` restores an equal spec."""
        return {
            "kind": self.kind,
            "sizes": list(self.sizes),
            "low": [_encode_bound(v) for v in self.low],
            "high": [_encode_bound(v) for v in self.high],
            "squash": self.squash,
        }

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """Inverse of ``to_json``; raises KeyError, TypeError or ValueError on a foreign object."""
        kind, sizes = _choice(value["kind"], get_args(ActionKind)), _sizes(value["sizes"])
        low, high = (tuple(float(v) for v in value[side]) for side in ("low", "high"))  # type: ignore[attr-defined]
        bounds = sizes[0] if kind == "gaussian" and sizes else 0
        if not sizes or (kind != "multi_categorical" and len(sizes) > 1) or not len(low) == len(high) == bounds:
            raise ValueError(
                f"an action of kind {kind} has not the sizes {sizes} and {len(low)} and {len(high)} bounds"
            )
        return cls(cast("ActionKind", kind), sizes, low, high, bool(value["squash"]))


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
    """

    observation_shape: tuple[int, ...]
    observation_dtype: Literal["uint8", "float32"]
    action: ActionSpec
    autoreset: AutoresetMode = "next_step"
    frame_stack: int = 1
    frame_fill: FrameFill = "zero"

    @property
    def is_image(self) -> bool:
        """Whether observations are (C, H, W) images."""
        return len(self.observation_shape) == 3

    def to_json(self) -> Json:
        """A plain JSON object; ``from_json`` restores an equal spec."""
        return {
            "observation_shape": list(self.observation_shape),
            "observation_dtype": self.observation_dtype,
            "action": self.action.to_json(),
            "autoreset": self.autoreset,
            "frame_stack": self.frame_stack,
            "frame_fill": self.frame_fill,
        }

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """Inverse of ``to_json``; raises KeyError, TypeError or ValueError on a foreign object."""
        shape = _sizes(value["observation_shape"])
        if math.prod(shape) > _MAX_ELEMENTS:
            raise ValueError(f"observations of shape {shape} have more than {_MAX_ELEMENTS:,} numbers")
        return cls(
            observation_shape=shape,
            observation_dtype=cast(
                "Literal['uint8', 'float32']", _choice(value["observation_dtype"], ("uint8", "float32"))
            ),
            action=ActionSpec.from_json(cast(Json, value["action"])),
            autoreset=cast("AutoresetMode", _choice(value["autoreset"], get_args(AutoresetMode))),
            frame_stack=_sizes([value["frame_stack"]])[0],
            frame_fill=cast("FrameFill", _choice(value["frame_fill"], get_args(FrameFill))),
        )


def _sizes(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
        raise TypeError(f"{value!r} is no list of integers")
    if not all(0 < v <= _MAX_ELEMENTS for v in value):
        raise ValueError(f"{value!r} are not sizes from 1 to {_MAX_ELEMENTS:,}")
    return tuple(value)


def _choice(value: object, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"{value!r} is none of {', '.join(choices)}")
    return str(value)


def _encode_bound(value: float) -> float | str:
    """JSON has no infinities: they travel as the strings that ``float`` reads back."""
    return value if np.isfinite(value) else ("inf" if value > 0 else "-inf")
