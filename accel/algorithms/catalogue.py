"""The composition of an algorithm: from a configuration to the object, and what actors are told of it.

A new algorithm of the package is one row here, its options in ``accel.config.algorithms`` and its file. One from
outside, ``--algorithm module:factory``, is a function ``factory(config, spec, device, **options)`` that returns one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch

from accel.acting.rules import RuleSpec
from accel.algorithms.base import Algorithm, GradientAlgorithm
from accel.algorithms.cuda_graphs import StepRunner
from accel.algorithms.gradient_exchange import GradientExchange
from accel.config import TrainConfig
from accel.config.actor import ActorAgreement, PriorityOptions
from accel.config.algorithms import CustomAlgorithmConfig
from accel.config.experience import PrioritisedConfig, SequencesConfig
from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError
from accel.experience.unroll import UnrollLayout

_CLASSES = {
    "impala": "accel.algorithms.impala:Impala",
    "seed": "accel.algorithms.impala:Impala",
    "ga3c": "accel.algorithms.impala:Impala",
    "a2c": "accel.algorithms.impala:Impala",
    "a3c": "accel.algorithms.impala:Impala",
    "ppo": "accel.algorithms.ppo:Ppo",
    "dppo": "accel.algorithms.ppo:Ppo",
    "ptr-ppo": "accel.algorithms.ptr_ppo:PtrPpo",
    "impact": "accel.algorithms.impact:Impact",
    "dqn": "accel.algorithms.dqn:Dqn",
    "gorila": "accel.algorithms.dqn:Dqn",
    "apex": "accel.algorithms.dqn:Dqn",
    "r2d2": "accel.algorithms.r2d2:R2d2",
    "d4pg": "accel.algorithms.d4pg:D4pg",
    "sac": "accel.algorithms.sac:Sac",
    "td3": "accel.algorithms.td3:Td3",
}


def make_algorithm(
    config: TrainConfig,
    spec: EnvSpec,
    device: torch.device,
    exchange: GradientExchange | None = None,
    runner: StepRunner | None = None,
) -> Algorithm:
    """The algorithm of a run, its networks on the device, initialised from the run's seed.

    With an ``exchange`` it is one learner's part of an algorithm that several learners share. A ``runner`` runs the
    parts of its updates. A module:factory's algorithm keeps its own of both.

    Raises:
        ConfigError: it does not suit the environment or the network, or a module:factory does not load.
    """
    options = config.algorithm
    if isinstance(options, CustomAlgorithmConfig):
        return _load(options.algorithm)(config, spec, device, **options.kwargs)
    algorithm = _load(_CLASSES[options.algorithm])(config, spec, device, options)
    if isinstance(algorithm, GradientAlgorithm):
        algorithm.exchange = exchange or algorithm.exchange
        algorithm.runner = runner or algorithm.runner
    return algorithm


def agree(config: TrainConfig, algorithm: Algorithm) -> tuple[ActorAgreement, UnrollLayout]:
    """What actors are told once their environment is known, and the layout of their unrolls."""
    network = algorithm.network
    return agreement_for(
        config,
        network.spec,
        network.state_shapes,
        algorithm.rule,
        algorithm.output_size,
        algorithm.explores,
        algorithm.initial_priorities if isinstance(config.store, PrioritisedConfig | SequencesConfig) else None,
    )


def agreement_for(
    config: TrainConfig,
    spec: EnvSpec,
    state_shapes: tuple[tuple[int, ...], ...],
    rule: RuleSpec,
    output_size: int,
    explores: bool,
    priorities: PriorityOptions | None = None,
) -> tuple[ActorAgreement, UnrollLayout]:
    """The same for any policy: its recurrent state, its action rule, its outputs P, whether rows record ε, and how
    actors compute priorities, where they do."""
    acting = config.acting
    layout = UnrollLayout(
        spec,
        acting.unroll_length,
        acting.envs_per_actor * spec.agents,
        state_shapes,
        output_size,
        explores,
        priorities is not None,
    )
    agreement = ActorAgreement(
        state_shapes=layout.state_shapes,
        output_size=output_size,
        explores=explores,
        rule=rule.name,
        rule_options=dict(rule.options),
        priorities=priorities,
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
