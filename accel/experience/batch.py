"""Joins unrolls into the learner's batch: zero-copy for a single unroll on CPU, pinned staging for CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from accel.envs.spaces import EnvSpec
from accel.experience.unroll import Unroll, restack_frames


@dataclass(frozen=True)
class Batch:
    """Time-major tensors on the learner's device; T rows of steps, T+1 where the bootstrap row belongs.

    Attributes:
        observations: [T+1, B, *obs] uint8 or float32; images may lie channels last in memory.
        final_observations: [T, B, *obs], only where the environment resets within a step; None otherwise.
        first: [T+1, B] bool. valid: [T, B] bool.
        actions: [T, B, *action] as sampled. rewards: [T, B] raw.
        terminated, truncated: [T, B] bool.
        behaviour_log_prob: [T, B] nats. behaviour_params: [T, B, P], the acting policy's outputs.
        exploration: [T, B] ε of the action rule, where it has one; None otherwise.
        states: recurrent state [B, *shape] each, at row 0.
    """

    observations: Tensor
    final_observations: Tensor | None
    first: Tensor
    valid: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    behaviour_log_prob: Tensor
    behaviour_params: Tensor
    states: tuple[Tensor, ...]
    exploration: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, for saving."""
        named = {k: v for k, v in vars(self).items() if isinstance(v, Tensor)}
        return named | {f"state_{i}": state for i, state in enumerate(self.states)}


class Batcher:
    """Builds batches on one device. On a CPU the unrolls' buffers must stay unchanged while the batch is in use.

    Args:
        spec: the environment's layout.
        device: where batches go.
        pinned: stage them in page-locked memory on their way to a CUDA device.
        channels_last: the network takes images in that memory order. On a CPU they are laid out so once, here, instead
            of in every pass, where it costs more than the arithmetic on them.
    """

    def __init__(
        self, spec: EnvSpec, device: torch.device, *, pinned: bool = True, channels_last: bool = False
    ) -> None:
        self._spec = spec
        self._device = device
        self._pinned = pinned
        self._channels_last = channels_last and spec.observation_dtype == "uint8" and device.type == "cpu"

    def build(self, unrolls: Sequence[Unroll]) -> Batch:
        """Join unrolls of one layout along the environment axis."""
        final = self._join(unrolls, "final_observations") if "final_observations" in unrolls[0] else None
        return Batch(
            observations=self._observations(unrolls),
            final_observations=final,
            first=self._join(unrolls, "first"),
            valid=self._join(unrolls, "valid")[:-1],
            actions=self._join(unrolls, "actions"),
            rewards=self._join(unrolls, "rewards"),
            terminated=self._join(unrolls, "terminated"),
            truncated=self._join(unrolls, "truncated"),
            behaviour_log_prob=self._join(unrolls, "behaviour_log_prob"),
            behaviour_params=self._join(unrolls, "behaviour_params"),
            states=tuple(self._join(unrolls, f"state_{i}", axis=0) for i in range(unrolls[0].recurrent_states)),
            exploration=self._join(unrolls, "exploration") if "exploration" in unrolls[0] else None,
        )

    def _observations(self, unrolls: Sequence[Unroll]) -> Tensor:
        if self._channels_last:
            return self._images(unrolls)
        if "frames" not in unrolls[0]:
            return self._join(unrolls, "observations")
        spec = self._spec
        stacked = [
            restack_frames(u["frames"], u["first"].view(np.bool_), spec.frame_stack, spec.frame_fill) for u in unrolls
        ]
        return self.tensor(stacked)

    def _images(self, unrolls: Sequence[Unroll]) -> Tensor:
        """[T+1, B, C, H, W] of all unrolls, the channels of a pixel side by side in memory."""
        spec = self._spec
        channels, height, width = spec.observation_shape
        rows, envs = unrolls[0]["first"].shape
        stored = np.empty((rows, envs * len(unrolls), height, width, channels), np.uint8)
        images = np.moveaxis(stored, -1, 2)
        for k, unroll in enumerate(unrolls):
            mine = images[:, k * envs : (k + 1) * envs]
            if "frames" in unroll:
                first = unroll["first"].view(np.bool_)
                restack_frames(unroll["frames"], first, spec.frame_stack, spec.frame_fill, mine)
            else:
                for channel in range(channels):
                    mine[:, :, channel] = unroll["observations"][:, :, channel]
        return torch.from_numpy(images)

    def _join(self, unrolls: Sequence[Unroll], name: str, axis: int = 1) -> Tensor:
        return self.tensor([unroll[name] for unroll in unrolls], axis)

    def tensor(self, arrays: Sequence[npt.NDArray[np.generic]], axis: int = 1) -> Tensor:
        """The arrays joined along an axis: one tensor on the device; on CPU a single array is not copied."""
        if self._device.type == "cpu":
            return torch.from_numpy(arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis))
        shape = list(arrays[0].shape)
        shape[axis] *= len(arrays)
        staged = torch.empty(shape, dtype=torch.from_numpy(arrays[0][:0]).dtype, pin_memory=self._pinned)
        np.concatenate(arrays, axis, out=staged.numpy())
        return staged.to(self._device, non_blocking=self._pinned)
