"""Joins unrolls into the learner's batch: zero-copy for a single unroll on CPU, one staged copy to a CUDA device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from accel.envs.spaces import EnvSpec
from accel.experience.transfer import Joined, make_staging
from accel.experience.unroll import Unroll, restack_frames

_FLAGS = ("valid", "truncated")
_STEPS = ("valid", "actions", "rewards", "terminated", "truncated", "behaviour_log_prob", "behaviour_params")
_WHERE_THERE = ("final_observations", "exploration")


@dataclass(frozen=True)
class Batch:
    """Time-major tensors on the learner's device; T rows of steps, T+1 where the bootstrap row belongs.

    Attributes:
        observations: [T+1, B, *obs] uint8 or float32; images may lie channels last in memory.
        final_observations: [T, B, *obs], only where the environment resets within a step; None otherwise.
        first: [T+1, B] bool, on the host: recurrent cores plan with it. valid: [T, B] bool.
        actions: [T, B, *action] as sampled. rewards: [T, B] raw.
        terminated, truncated: [T, B] bool.
        behaviour_log_prob: [T, B] nats. behaviour_params: [T, B, P], the acting policy's outputs.
        exploration: [T, B] ε of the action rule, where it has one; None otherwise.
        states: recurrent state [B, *shape] each, at row 0.
        on_host: ``valid`` and ``truncated`` on the host too, where the rest is on another device.
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
    on_host: Mapping[str, Tensor] = field(default_factory=dict)

    def rows(self, flag: str) -> Tensor:
        """[N] places t·B + b of the steps that are ``valid`` or ``truncated``, on the host, which waits for nothing."""
        flags: Tensor = self.on_host.get(flag, getattr(self, flag))
        return torch.nonzero(flags.reshape(-1)).squeeze(1)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, for saving."""
        named = {k: v for k, v in vars(self).items() if isinstance(v, Tensor)}
        return named | {f"state_{i}": state for i, state in enumerate(self.states)}


class Batcher:
    """Builds batches on one device. On a CPU the unrolls' buffers must stay unchanged while the batch is in use.

    Args:
        channels_last: the network takes images in that memory order. On a CPU they are laid out so once, here, instead
            of in every pass, where it costs more than the arithmetic on them.
    Attributes:
        staging: to the device.
    """

    def __init__(self, spec: EnvSpec, device: torch.device, *, channels_last: bool = False) -> None:
        self._spec = spec
        self._device = device
        self.staging = make_staging(device)
        self._channels_last = channels_last and spec.observation_dtype == "uint8" and device.type == "cpu"

    def build(self, unrolls: Sequence[Unroll]) -> Batch:
        """Join unrolls of one layout along the environment axis."""
        some, states = unrolls[0], [name for name in unrolls[0].arrays if name.startswith("state_")]
        names = [name for name in (*_STEPS, *_WHERE_THERE) if name in _STEPS or name in some]
        fields = {name: Joined([u[name] for u in unrolls], 1) for name in names}
        fields |= {name: Joined([u[name] for u in unrolls]) for name in states}
        images = self._images(unrolls) if self._channels_last else None
        if images is None:
            fields["observations"] = Joined(self._observations(unrolls), 1)
        first, on_host = Joined([u["first"] for u in unrolls], 1), {}
        if self._device.type != "cpu":  # Nothing on the host may be the unrolls' own memory, which is used again.
            on_host = {name: torch.from_numpy(np.array(fields[name].whole())) for name in _FLAGS}
            on_host["valid"] = on_host["valid"][:-1]
        sent = self.staging.send(fields)
        return Batch(
            observations=sent.pop("observations") if images is None else images,
            final_observations=sent.pop("final_observations", None),
            first=torch.from_numpy(first.whole() if not on_host else np.array(first.whole())),
            valid=sent.pop("valid")[:-1],
            states=tuple(sent.pop(name) for name in states),
            on_host=on_host,
            **sent,
        )

    def _observations(self, unrolls: Sequence[Unroll]) -> list[npt.NDArray[np.generic]]:
        if "frames" not in unrolls[0]:
            return [u["observations"] for u in unrolls]
        return [restack_frames(u["frames"], u["first"], self._spec) for u in unrolls]

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
                restack_frames(unroll["frames"], unroll["first"], spec, mine)
            else:
                for channel in range(channels):
                    mine[:, :, channel] = unroll["observations"][:, :, channel]
        return torch.from_numpy(images)

    def tensor(self, arrays: Sequence[npt.NDArray[np.generic]], axis: int = 1) -> Tensor:
        """The arrays joined along an axis: one tensor on the device; on CPU a single array is not copied."""
        return self.staging.send({"joined": Joined(arrays, axis)})["joined"]
