"""Unrolls whose steps are tensors on the learner's device, and what takes them in without a copy to the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from accel.experience.batch import Batch, Batcher
from accel.experience.faults import Fault, remove_faults
from accel.experience.rewards import Floats, RewardTransform, Rows
from accel.experience.unroll import Unroll

Array = npt.NDArray[np.generic]


class DeviceUnroll(Unroll):
    """Fields of ``UnrollLayout`` as tensors on the device; on the host only what the learner's loop reads.

    Args:
        tensors: [T, B, ...] fields by name, T+1 rows of observations; environments reset within a step.
        host: header, timings, returns and lengths of the episodes that ended, [N] each.
        flags: ``valid`` [T, B] and ``truncated`` [T, B] on the host, where the device is another one.
        is_finite: whether all numbers are.
    """

    def __init__(
        self, tensors: dict[str, Tensor], host: Mapping[str, Array], flags: Mapping[str, Tensor], is_finite: bool
    ) -> None:
        super().__init__(cast("dict[str, Array]", {**tensors, **host}))
        self.tensors, self.flags, self.is_finite = tensors, flags, is_finite


def remove_faults_anywhere(unroll: Unroll, float_bytes: int = 0) -> list[Fault]:
    """``remove_faults`` of any unroll; one on a device goes by way of the host where it has faults."""
    if not isinstance(unroll, DeviceUnroll):
        return remove_faults(unroll, float_bytes)
    if unroll.is_finite:
        return []
    host = {name: values.cpu().numpy() for name, values in unroll.tensors.items()} | {"header": unroll["header"]}
    host["valid"] = np.concatenate((host["valid"], np.ones_like(host["valid"][:1])))
    faults = remove_faults(Unroll(host))
    host["valid"] = host["valid"][:-1]
    for name, values in unroll.tensors.items():
        values.copy_(torch.from_numpy(host[name]))
    for name, flag in unroll.flags.items():
        flag.copy_(torch.from_numpy(host[name]))
    return faults


class DeviceBatcher(Batcher):
    """Joins unrolls that are on the device already; a single one is not copied."""

    def __init__(self) -> None:
        pass

    def build(self, unrolls: Sequence[Unroll]) -> Batch:
        """See ``Batcher.build``."""
        taken = cast("Sequence[DeviceUnroll]", unrolls)
        fields = {name: self.tensor([unroll.tensors[name] for unroll in taken]) for name in taken[0].tensors}  # type: ignore[misc]
        first = torch.zeros((), dtype=torch.bool).expand(fields["observations"].shape[:2])  # No core plans with it.
        on_host = {name: torch.cat([unroll.flags[name] for unroll in taken], 1) for name in taken[0].flags}
        return Batch(first=first, states=(), on_host=on_host, **fields)

    def tensor(self, arrays: Sequence[Array], axis: int = 1) -> Tensor:
        """See ``Batcher.tensor``."""
        tensors = cast("Sequence[Tensor]", arrays)
        return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), axis)


class DeviceRewards(RewardTransform):
    """``RewardTransform`` of unrolls on a device; running returns begin anew with the environments of a resumed run."""

    _running: Tensor | None = None

    def observe(self, actor: int, unroll: Rows) -> None:
        """See ``RewardTransform.observe``."""
        if self._discount is None:
            return
        tensors = cast(DeviceUnroll, unroll).tensors
        rewards, valid = tensors["rewards"], tensors["valid"]
        decays = torch.logical_or(tensors["terminated"], tensors["truncated"]).logical_not_() * self._discount
        running = torch.zeros_like(rewards[0]) if self._running is None else self._running
        returns = torch.empty_like(rewards)
        for reward, decay, target in zip(rewards, decays, returns, strict=True):
            torch.add(reward, running, out=target)
            running = target * decay
        self._running = running
        shifted = (returns.double() - self.moments.mean) * valid
        sums = torch.stack((valid.sum().double(), shifted.sum(), shifted.square_().sum()))
        self.moments.merge(cast("tuple[float, float, float]", tuple(sums.tolist())))

    def transform(self, unroll: Rows) -> Floats:
        """[T, B] on the device; see ``RewardTransform.transform``."""
        rewards = cast(DeviceUnroll, unroll).tensors["rewards"]
        if self._discount is not None:
            rewards = rewards / (self.moments.variance + 1e-8) ** 0.5
        if self._clip is not None:
            rewards = rewards.clamp(-self._clip, self._clip)
        return cast(Floats, rewards * self._scale if self._scale != 1 else rewards)

    def state(self) -> dict[str, object]:
        """See ``RewardTransform.state``."""
        return super().state() | {"returns": {}}
