"""Whether a learner's memory holds what its configuration and environment ask for, before any of it is made."""

from __future__ import annotations

import torch

from accel.config import TrainConfig
from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError
from accel.experience.unroll import UnrollLayout
from accel.networks import build_from_config
from accel.system.machine import available_memory_bytes

# Bytes of memory at the peak of a run, by parameter: of the whole network for training (weights, gradient, moments,
# initialising), of the part that acts for publishing (graphs, artifacts, sessions that check them) and for acting
# (an artifact as it arrives, and the session). Measured with mlps of 12 to 25 million parameters.
_TRAINING_BYTES, _TRAINING_ON_GPU_BYTES, _PUBLISHING_BYTES, _ACTING_BYTES = 36, 16, 72, 32


def check_memory(config: TrainConfig, spec: EnvSpec, device: torch.device, actors_here: int = 0) -> None:
    """Raises ConfigError: the batch, one unroll more of each actor, and the network take more memory than is free.

    Args:
        actors_here: how many other processes of this host act with the policy.
    """
    acting = config.acting
    unroll = UnrollLayout(spec, acting.unroll_length, acting.envs_per_actor * spec.agents).nbytes
    unrolls = (config.store.held_unrolls + max(acting.actors, 1)) * unroll
    parameters, that_act = _count_parameters(config, spec)
    learner = parameters * (_TRAINING_BYTES if device.type == "cpu" else _TRAINING_ON_GPU_BYTES)
    learner += that_act * _PUBLISHING_BYTES
    actors = actors_here * that_act * _ACTING_BYTES
    needed, free = unrolls + learner + actors, available_memory_bytes()
    if needed > free:
        raise ConfigError(
            f"the run needs {_gib(needed)} of memory on the learner's host, and {_gib(free)} are free: {_gib(unrolls)} "
            f"for unrolls of {acting.unroll_length} steps of {acting.envs_per_actor} environments "
            f"(--unroll-length, --envs-per-actor, --batch-unrolls) with observations of shape "
            f"{spec.observation_shape}; for the network '{config.policy.network}' (--network), whose weights are "
            f"{_gib(4 * parameters)}, {_gib(learner)} in the learner and {_gib(actors)} in {actors_here} actors "
            "(--actors): make them smaller"
        )


def _count_parameters(config: TrainConfig, spec: EnvSpec) -> tuple[int, int]:
    """Of the network, and of the part that acts, without making it; 0 where a module of the user's own cannot be
    counted so."""
    try:
        with torch.device("meta"):
            network = build_from_config(config.policy, spec)
    except Exception:  # noqa: BLE001 - whoever makes it in earnest says what is wrong
        return 0, 0
    whole, that_acts = (sum(map(torch.numel, part.parameters())) for part in (network, network.acting_module()))
    return whole, that_acts


def _gib(count_bytes: int) -> str:
    return f"{count_bytes / (1 << 30):.1f} GiB"
