"""The composition of an algorithm: from a configuration to the object, and to the store and schedule that go with it.

A new algorithm of the package is one row here, its options in ``accel.config.models`` and its file. One from outside,
``--algorithm module:factory``, is a function ``factory(config, spec, device, **options)`` that returns one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

import numpy as np
import torch

from accel.algorithms.base import Algorithm
from accel.config import TrainConfig
from accel.config.actor import ActorAgreement
from accel.config.models import CircularConfig, CustomAlgorithmConfig, FifoConfig
from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError
from accel.experience.batch import Batcher
from accel.experience.rewards import RewardTransform
from accel.experience.stores.base import Store
from accel.experience.stores.circular import Circular
from accel.experience.stores.fifo import Fifo
from accel.experience.stores.replay import Replay
from accel.experience.unroll import UnrollLayout

_CLASSES = {
    "impala": "accel.algorithms.impala:Impala",
    "ppo": "accel.algorithms.ppo:Ppo",
    "impact": "accel.algorithms.impact:Impact",
    "dqn": "accel.algorithms.dqn:Dqn",
}


def make_algorithm(config: TrainConfig, spec: EnvSpec, device: torch.device) -> Algorithm:
    """The algorithm of a run, its networks on the device, initialised from the run's seed.

    Raises:
        ConfigError: it does not suit the environment or the network, or a module:factory does not load.
    """
    options = config.algorithm
    if isinstance(options, CustomAlgorithmConfig):
        return _load(options.algorithm)(config, spec, device, **options.kwargs)
    return _load(_CLASSES[options.algorithm])(config, spec, device, options)


def make_store(
    config: TrainConfig, spec: EnvSpec, device: torch.device, batcher: Batcher, rewards: RewardTransform
) -> Store:
    """The store of a run."""
    options = config.store
    if isinstance(options, FifoConfig):
        return Fifo(options.batch_unrolls, batcher, rewards)
    if isinstance(options, CircularConfig):
        return Circular(options.batch_unrolls, options.buffer_batches, options.batch_uses, batcher, rewards)
    return Replay(
        options.replay_capacity,
        options.batch_size,
        config.algorithm.bootstrap_steps,
        config.algorithm.discount,
        config.acting.actors,
        spec,
        device,
        rewards,
        np.random.default_rng(np.random.SeedSequence([config.run.seed, 1])),
        config.schedule.least_env_steps,
    )


def agree(config: TrainConfig, algorithm: Algorithm) -> tuple[ActorAgreement, UnrollLayout]:
    """What actors are told once their environment is known, and the layout of their unrolls."""
    network = algorithm.network
    layout = UnrollLayout(
        network.spec,
        config.acting.unroll_length,
        config.acting.envs_per_actor,
        network.state_shapes,
        algorithm.output_size,
        algorithm.explores,
    )
    agreement = ActorAgreement(
        state_shapes=layout.state_shapes,
        output_size=algorithm.output_size,
        explores=algorithm.explores,
        rule=algorithm.rule.name,
        rule_options=dict(algorithm.rule.options),
        digest=layout.digest,
    )
    return agreement, layout


def _load(path: str) -> Callable[..., Algorithm]:
    module_name, _, name = path.partition(":")
    try:
        found: object = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"algorithm '{path}': cannot load '{name}' of '{module_name}' ({error}): put the module on PYTHONPATH"
        ) from error
    if not callable(found):
        raise ConfigError(f"algorithm '{path}': '{name}' is no function that returns an Algorithm")
    return found
