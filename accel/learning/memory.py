"""Whether a learner's memory holds what its configuration and environment ask for, before any of it is made."""

from __future__ import annotations

import psutil
import torch

from accel.config import TrainConfig
from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError
from accel.experience.unroll import UnrollLayout
from accel.networks import build_from_config

_COPIES = 4
"""Of each weight: itself, its gradient and two moments."""


def check_memory(config: TrainConfig, spec: EnvSpec, device: torch.device) -> None:
    """Raises ConfigError: the batch, one unroll more of each actor, and a network on the CPU take more memory than is
    free."""
    acting = config.acting
    unroll = UnrollLayout(spec, acting.unroll_length, acting.envs_per_actor * spec.agents).nbytes
    unrolls = (config.store.held_unrolls + max(acting.actors, 1)) * unroll
    weights = _COPIES * 4 * _count_parameters(config, spec) if device.type == "cpu" else 0
    free = psutil.virtual_memory().available
    if unrolls + weights > free:
        raise ConfigError(
            f"the learner needs {_gib(unrolls + weights)} of memory, and {_gib(free)} are free: {_gib(unrolls)} for "
            f"unrolls of {acting.unroll_length} steps of {acting.envs_per_actor} environments "
            f"(--unroll-length, --envs-per-actor, --batch-unrolls) with observations of shape "
            f"{spec.observation_shape}, {_gib(weights)} for the network '{config.policy.network}' with gradients and "
            "moments (--network): make them smaller"
        )


def _count_parameters(config: TrainConfig, spec: EnvSpec) -> int:
    """Of the network, without making it; 0 where a module of the user's own cannot be counted so."""
    try:
        with torch.device("meta"):
            network = build_from_config(config.policy, spec)
    except Exception:  # noqa: BLE001 - whoever makes it in earnest says what is wrong
        return 0
    return sum(parameter.numel() for parameter in network.parameters())


def _gib(count_bytes: int) -> str:
    return f"{count_bytes / (1 << 30):.1f} GiB"
