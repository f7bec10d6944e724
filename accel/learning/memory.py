"""Whether a learner's memory holds what its configuration and environment ask for, before any of it is made.

No torch before the environment is known: what its network takes at least is looked at before anything starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel.config import TrainConfig
from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError
from accel.experience.unroll import UnrollLayout
from accel.networks.text import parse_network
from accel.system.machine import available_memory_bytes
from accel.transport.base import check_unroll_bytes

if TYPE_CHECKING:
    import torch

# Bytes of memory at the peak of a run, by parameter: of the whole network for training (weights, gradient, moments,
# initialising), of the part that acts for publishing (graphs, artifacts, sessions that check them) and for acting
# (an artifact as it arrives, and the session). Measured with mlps of 12 to 25 million parameters.
_TRAINING_BYTES, _TRAINING_ON_GPU_BYTES, _PUBLISHING_BYTES, _ACTING_BYTES = 36, 16, 72, 32


def check_memory(config: TrainConfig, spec: EnvSpec, device: torch.device, actors_here: int = 0) -> None:
    """Raises ConfigError: the batch, one unroll more of each actor, and the network take more memory than is free.

    TransportError: an unroll is larger than any that can be sent.

    Args:
        actors_here: how many other processes of this host act with the policy.
    """
    acting = config.acting
    unroll = UnrollLayout(spec, acting.unroll_length, acting.envs_per_actor * spec.agents).nbytes
    unrolls = (config.store.held_unrolls + max(acting.actors, 1)) * unroll
    told = (
        f"{_gib(unrolls)} for unrolls of {acting.unroll_length} steps of {acting.envs_per_actor} environments "
        f"(--unroll-length, --envs-per-actor, --batch-unrolls) with observations of shape {spec.observation_shape}; "
    )
    _check(config, *_count_parameters(config, spec), device.type != "cpu", actors_here, unrolls, told)
    check_unroll_bytes(unroll)


def check_network(config: TrainConfig) -> None:
    """Raises ConfigError: weights between a network's layers alone take more memory than is free, with all actors."""
    least = parse_network(config.policy.network).least_weights
    actors = 0 if config.inference_ranks else config.acting.actors
    _check(config, least, least, config.learner.device != "cpu", actors)


def _check(
    config: TrainConfig,
    parameters: int,
    that_act: int,
    on_gpu: bool,
    actors_here: int,
    unrolls: int = 0,
    told: str = "",
) -> None:
    learner = parameters * (_TRAINING_ON_GPU_BYTES if on_gpu else _TRAINING_BYTES) + that_act * _PUBLISHING_BYTES
    actors = actors_here * that_act * _ACTING_BYTES
    needed, free = unrolls + learner + actors, available_memory_bytes()
    if needed > free:
        raise ConfigError(
            f"the run needs {_gib(needed)} of memory on the learner's host, and {_gib(free)} are free: {told}for the "
            f"network '{config.policy.network}' (--network), whose weights are {_gib(4 * parameters)}, {_gib(learner)} "
            f"in the learner and {_gib(actors)} in {actors_here} actors (--actors): make them smaller"
        )


def _count_parameters(config: TrainConfig, spec: EnvSpec) -> tuple[int, int]:
    """Of the network, and of the part that acts, without making it; 0 where a module of the user's own cannot be
    counted so."""
    import torch

    from accel.networks import build_from_config

    try:
        with torch.device("meta"):
            network = build_from_config(config.policy, spec)
    except Exception:  # noqa: BLE001 - whoever makes it in earnest says what is wrong
        return 0, 0
    whole, that_acts = (sum(map(torch.numel, part.parameters())) for part in (network, network.acting_module()))
    return whole, that_acts


def _gib(count_bytes: int) -> str:
    return f"{count_bytes / (1 << 30):.1f} GiB"
