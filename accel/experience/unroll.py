"""Unroll: what an actor sends to the learner, a struct of arrays in one contiguous buffer. No torch.

Time-major [T, B, ...]. Row t holds the observation, the action chosen on it and what the environment answered. After a
finished episode gymnasium's NEXT_STEP mode spends one row on the reset: that row is invalid, its observation is the
episode's final one, and the row after it is ``first``. Rows T of ``observations``, ``first`` and ``valid`` belong to
the next unroll's row 0 and serve the bootstrap.

Besides observations, ``first`` and ``valid``, an unroll holds actions as sampled (before clipping or squashing),
rewards, terminated and truncated, μ's log-probability and outputs, the policy version and scheme of every step, the
recurrent state at its start, returns and lengths of finished episodes, and the actor's timings. A stacked frame travels
once and is restacked by the learner. A truncated episode bootstraps from its final observation; environments that reset
within a step store it in ``final_observations``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from accel.envs.spaces import EnvSpec

FORMAT_VERSION = 1
ALIGNMENT = 64
ACTOR_PHASES = ("env", "policy", "overhead", "send", "wait", "pull", "deserialise", "load")
"""Where an actor's time goes; ``load`` is the making of the session, after ``pull`` and ``deserialise``."""


@dataclass(frozen=True)
class Field:
    """One array of an unroll: its name, dtype and shape."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True)
class UnrollLayout:
    """Where each field of an unroll lies in its buffer; equal on both sides or the handshake fails.

    Attributes:
        spec: the environment's layout.
        unroll_length: T.
        envs: B, environments stepped together.
        state_shapes: per-environment shapes of the recurrent state at the unroll's start, in the learner's layout.
        output_size: P, the policy's outputs per environment; None: the action distribution's parameters.
        explores: whether rows record ε, the exploration of the action rule.
        prioritised: whether the actor computes priorities, of rows that its newest ones complete.
    """

    spec: EnvSpec
    unroll_length: int
    envs: int
    state_shapes: tuple[tuple[int, ...], ...] = ()
    output_size: int | None = None
    explores: bool = False
    prioritised: bool = False

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """All fields in buffer order."""
        t, b, spec, action = self.unroll_length, self.envs, self.spec, self.spec.action
        observation = np.dtype(spec.observation_dtype)
        table: list[tuple[str, object, tuple[int, ...]]] = [("header", np.int64, (4,))]
        if spec.frame_stack > 1:
            table.append(("frames", observation, (t + spec.frame_stack, b, *self.frame_shape)))
        else:
            table.append(("observations", observation, (t + 1, b, *spec.observation_shape)))
        if spec.autoreset == "same_step":
            table.append(("final_observations", observation, (t, b, *spec.observation_shape)))
        table += [
            ("first", np.bool_, (t + 1, b)),
            ("valid", np.bool_, (t + 1, b)),
            ("actions", action.dtype, (t, b, *action.shape)),
            ("rewards", np.float32, (t, b)),
            ("terminated", np.bool_, (t, b)),
            ("truncated", np.bool_, (t, b)),
            ("behaviour_log_prob", np.float32, (t, b)),
            ("behaviour_params", np.float32, (t, b, self.outputs)),
            ("policy_version", np.int32, (t, b)),
            ("scheme_id", np.int16, (t, b)),
            ("episode_return", np.float32, (t, b)),
            ("episode_length", np.int32, (t, b)),
            ("timings_s", np.float64, (len(ACTOR_PHASES),)),
        ]
        if self.explores:
            table.append(("exploration", np.float32, (t, b)))
        if self.prioritised:
            table.append(("priority", np.float32, (t, b)))
        table += [(f"state_{i}", np.float32, (b, *shape)) for i, shape in enumerate(self.state_shapes)]
        return tuple(Field(name, np.dtype(dtype), shape) for name, dtype, shape in table)  # type: ignore[call-overload]

    @property
    def outputs(self) -> int:
        """P."""
        return self.spec.action.param_size if self.output_size is None else self.output_size

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Shape of one frame of a stacked observation."""
        channels, *size = self.spec.observation_shape
        return (channels // self.spec.frame_stack, *size)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Byte offset of each field, aligned for vector loads."""
        offsets, end = [], 0
        for field in self.fields:
            offsets.append(end)
            end += -(-field.nbytes // ALIGNMENT) * ALIGNMENT
        return tuple(offsets)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of one unroll."""
        return self.offsets[-1] + -(-self.fields[-1].nbytes // ALIGNMENT) * ALIGNMENT

    @cached_property
    def digest(self) -> str:
        """Identifies the schema: format version, names, dtypes, shapes and offsets."""
        rows = [(f.name, f.dtype.str, list(f.shape), o) for f, o in zip(self.fields, self.offsets, strict=True)]
        return hashlib.sha256(json.dumps([FORMAT_VERSION, rows]).encode()).hexdigest()[:16]

    def view(self, buffer: npt.NDArray[np.uint8]) -> Unroll:
        """Numpy views into a buffer of ``nbytes`` bytes; nothing is copied. Raises ValueError on another size."""
        if buffer.nbytes != self.nbytes:
            raise ValueError(
                f"an unroll has {self.nbytes} bytes, this buffer {buffer.nbytes}: the other side uses another layout"
            )
        arrays = {
            field.name: buffer[offset : offset + field.nbytes].view(field.dtype).reshape(field.shape)
            for field, offset in zip(self.fields, self.offsets, strict=True)
        }
        return Unroll(arrays)


class Unroll:
    """Named numpy views into one unroll's buffer. ``observations`` is absent where frames travel once (``frames``)."""

    __slots__ = ("arrays",)

    def __init__(self, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
        self.arrays = arrays

    def __getitem__(self, name: str) -> npt.NDArray[np.generic]:
        return self.arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    @property
    def states(self) -> tuple[npt.NDArray[np.generic], ...]:
        """The recurrent state at row 0, before any reset that row asks for."""
        return tuple(array for name, array in self.arrays.items() if name.startswith("state_"))

    @property
    def sequence(self) -> int:
        """How many unrolls this actor sent before this one."""
        return int(self.arrays["header"][0])

    @property
    def oldest_version(self) -> int:
        """The oldest policy version that acted in this unroll."""
        return int(self.arrays["header"][1])

    @property
    def valid_steps(self) -> int:
        """Rows that are transitions."""
        return int(self.arrays["header"][2])


def restack_frames(
    frames: npt.NDArray[np.generic],
    first: npt.NDArray[np.generic],
    spec: EnvSpec,
    out: npt.NDArray[np.generic] | None = None,
) -> npt.NDArray[np.generic]:
    """Rebuild stacked observations from frames that travelled once.

    Args:
        frames: [T+S, B, C, H, W]; frame t+S-1 is row t's newest, and the first S-1 are row 0's older frames.
        first: [T+1, B]; an episode's first observation holds one real frame, the older ones are ``fill``.
        spec: S, frames per observation, and what fills them, ``zero`` or ``repeat`` (of the episode's first frame).
        out: where to write, [T+1, B, S*C, H, W] in any memory order; None for a fresh array.
    Returns:
        [T+1, B, S*C, H, W]; row 0 is exact even where its stack began before the unroll.
    """
    (rows, envs), stack = first.shape, spec.frame_stack
    channels, *size = frames.shape[2:]
    if out is None:
        out = np.empty((rows, envs, stack * channels, *size), dtype=frames.dtype)
    for k in range(stack):
        out[:, :, k * channels : (k + 1) * channels] = frames[k : k + rows]
    for row, env in zip(*np.nonzero(first[1:]), strict=True):
        start = int(row) + 1
        for later in range(start, min(start + stack - 1, rows)):
            filled = stack - 1 - (later - start)
            for k in range(filled):
                older = out[later, env, k * channels : (k + 1) * channels]
                older[...] = frames[start + stack - 1, env] if spec.frame_fill == "repeat" else 0
    return out
