"""``accel.compress`` and imported policies: torch modules trained elsewhere, as ``TrainedPolicy``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import xxhash
from gymnasium import spaces
from torch import nn

from accel.acting.rules import RuleSpec, make_rule
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.checks.faithful import check_faithful, check_source
from accel.config import TrainConfig
from accel.envs.base import Seed, VectorEnvironment
from accel.envs.spaces import ACTION_MASK, EnvSpec
from accel.errors import ConfigError
from accel.imports import greedy
from accel.imports.adapter import AdaptedPolicy
from accel.imports.normaliser import FixedNormaliser, read_normaliser
from accel.imports.policy_file import ReadPolicy, Source
from accel.imports.readers import read_module, read_policy_file
from accel.imports.recorded_observations import NAME, NoEnvironment, RecordedObservations, spaces_of
from accel.imports.torch_modules import FactorySpec
from accel.runs.evaluation import compress_run
from accel.runs.loading import load_run
from accel.runs.playing import collect_inputs
from accel.runs.trained_policy import Inputs, TrainedPolicy, make_env

_PROOF_ROWS, _PROOF_STEPS = 128, 100
logger = logging.getLogger("accel")

GREEDY, STOCHASTIC = "greedy", "stochastic"
_RULES: Mapping[str, str] = {GREEDY: greedy.RULE}


@dataclass(frozen=True, kw_only=True)
class ImportedPolicy(TrainedPolicy):
    """A policy trained elsewhere, with the environment that it plays; ``space``: the actions of a policy that has
    recorded observations in place of an environment."""

    policy: AdaptedPolicy = field(repr=False)
    space: spaces.Space[object] | None = None

    @property
    def has_distribution(self) -> bool:
        """See ``TrainedPolicy.has_distribution``."""
        return self.rule_spec.name != greedy.RULE

    def make_env(self, num_envs: int, seed: Seed, *, render: bool = False) -> VectorEnvironment:
        """See ``TrainedPolicy.make_env``; what cannot be played where observations are recorded."""
        if self.space is not None:
            return NoEnvironment(self.spec, self.space, num_envs)
        return super().make_env(num_envs, seed, render=render)

    @property
    def identity(self) -> dict[str, str | int]:
        """See ``TrainedPolicy.identity``."""
        digest = xxhash.xxh3_64()
        for name, tensor in self.policy.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.numpy().tobytes())
        return {"policy": self.architecture, "file": str(self.path), "weights": digest.hexdigest()}

    @property
    def normalisation(self) -> str:
        """See ``TrainedPolicy.normalisation``."""
        if self.spec.observation_dtype == "uint8":
            return "divided by 255" if self.policy.scales_images else "the policy's own"
        if isinstance(self.policy.normaliser, FixedNormaliser):
            clip = self.policy.normaliser.clip
            return f"(x - mean) / deviation over training, clipped to [-{clip:g}, {clip:g}]"
        return "none"

    @property
    def scheme(self) -> str:
        """int8."""
        return "int8"


def import_policy(
    policy: Path | nn.Module | None,
    config: TrainConfig,
    *,
    module: str | None = None,
    activation: str | None = None,
    rule: str = GREEDY,
    normaliser: Path | None = None,
    observations: Path | None = None,
    discrete: bool = False,
    arguments: tuple[str, ...] | None = None,
) -> ImportedPolicy:
    """A policy that others trained: a file of any known kind (``accel.imports.readers``), or a torch module.

    Args:
        policy: the file, of which nothing is unpickled; or the module, which maps what ``AdaptedPolicy`` says;
            CleanRL's agents, which have no forward, are accepted unchanged. None: what ``module`` makes, as it is.
        config: its environment.
        module: ``package.module:factory``, which makes the module that a file's weights belong to; called with a
            ``FactorySpec`` if it needs an argument.
        activation: where the file does not name it: tanh, relu, elu, leaky_relu, gelu or silu.
        rule: ``greedy``, ``stochastic``, or ``module:factory`` (``accel.acting.rules``).
        normaliser: a file with the statistics that observations are normalised with.
        observations: recorded ones in place of the environment (``accel.imports.recorded_observations``).
        discrete: whether outputs are logits or Q-values then, where the file does not say; else they are means.
        arguments: the options of a command that name all of this.
    Raises:
        ConfigError, CheckpointError: it cannot be read or made, or is no policy for this environment; names the layer.
        CompressorError: it cannot be exported, or its graph answers observations of the environment differently.
        EnvError, MissingExtraError: the environment cannot be made or played.
    """
    if isinstance(policy, Path):
        read, path = read_policy_file(policy, activation=activation, module=module), policy
    elif activation is not None:
        raise ConfigError("--activation is for --policy files: a --module has its own activations")
    else:
        read = read_module(policy if isinstance(policy, nn.Module) else str(module))
        path = Path(read.architecture.rpartition(":")[2])
    if read.normalised and normaliser is None:
        logger.warning(
            "%s was trained with VecNormalize: where that normalised observations, give --normaliser its statistics",
            path,
        )
    if rule == STOCHASTIC and not read.samples:
        raise ConfigError(
            f"--rule stochastic is for policies of PPO and A2C: of {read.architecture} the greedy actions alone are "
            "imported; choose greedy"
        )
    config = config.replace(squash_actions=read.squashes or config.environment.squash_actions)
    recorded = None if observations is None else RecordedObservations.read(observations)
    if recorded is None:
        played = _environment(config, read)
    else:
        config = config.replace(env=NAME)
        played = spaces_of(recorded, read, discrete, squash=config.environment.squash_actions)
    return _adopted(read, path, config, played, rule, normaliser, recorded, arguments)


def _adopted(
    read: ReadPolicy,
    path: Path,
    config: TrainConfig,
    environment: VectorEnvironment,
    rule: str,
    normaliser: Path | None,
    recorded: RecordedObservations | None,
    arguments: tuple[str, ...] | None,
) -> ImportedPolicy:
    """The policy in its environment or on recorded observations, proved equal to its source."""
    spec, space = environment.spec, environment.action_space
    if read.images_alone and spec.observation_dtype == "uint8":
        _require_image(environment.observation_space, config, normaliser)
    read.spaces.require(environment.observation_space, space, path, config.environment.env)
    adapted = AdaptedPolicy(
        read.make(FactorySpec.of(spec, space)),
        spec,
        log_std=read.log_std,
        normaliser=None if normaliser is None else read_normaliser(normaliser, _shape_of_numbers(spec)),
        scales_images=read.scales_images or _makes_bytes(config),
    )
    found = ImportedPolicy(
        path=path,
        config=config,
        spec=spec,
        env_steps=read.env_steps,
        version=0,
        policy=adapted,
        rule_spec=_rule(rule, adapted, spec),
        architecture=read.architecture,
        arguments=arguments,
        recorded=None if recorded is None else recorded.inputs(adapted),
        space=None if recorded is None else space,
    )
    return _proved(found, read.source)


def _shape_of_numbers(spec: EnvSpec) -> tuple[int, ...]:
    """Of what a normaliser takes. Raises ConfigError for a Dict of several entries beside a mask."""
    parts = [part for part in spec.inputs if part.name != ACTION_MASK]
    if len(parts) > 1:
        raise ConfigError(
            "--normaliser is for observations of one array, and the environment's are a Dict: leave it out"
        )
    return parts[0].shape


def _proved(policy: ImportedPolicy, source: Source | None) -> ImportedPolicy:
    """The policy, once its graph has given the module's outputs, and those of the file's own program, on observations
    that the module meets as it plays."""
    inputs = collect_inputs(policy, _PROOF_ROWS, policy=policy.policy, steps=_PROOF_STEPS)
    artifact, module = policy.compress("fp32"), policy.policy
    check_faithful(artifact, module, inputs)
    _require_logits(policy, inputs)
    if source is not None:
        parts = len(policy.spec.inputs)
        rows = [torch.from_numpy(array) for array in inputs.values()]
        prepared = [*map(module.prepared, rows[:parts]), *rows[parts:]]
        answers = [source([part[i : i + 1].numpy() for part in prepared]) for i in range(len(rows[0]))]
        check_source(artifact, inputs, [np.concatenate(outputs) for outputs in zip(*answers, strict=True)])
    return policy


def _require_logits(policy: ImportedPolicy, inputs: Inputs) -> None:
    """Raise ConfigError where actions would be sampled by the exponentials of probabilities."""
    if policy.rule_spec.name != STOCHASTIC or policy.spec.action.kind != "categorical":
        return
    with torch.no_grad():
        outputs, *_ = policy.policy(*map(torch.from_numpy, inputs.values()))
    if bool((outputs >= 0.0).all()) and bool(((outputs.sum(1) - 1.0).abs() < 1e-4).all()):
        raise ConfigError(
            f"--rule stochastic samples from logits, and the outputs of {policy.architecture} are probabilities: in "
            "every row they are at least 0 and sum to 1; give what its softmax takes, or the logarithm of what it "
            "gives, or choose greedy"
        )


def _environment(config: TrainConfig, read: ReadPolicy) -> VectorEnvironment:
    """What the policy plays, closed again. Raises ConfigError for a Dict observation that the policy does not take."""
    environment = make_env(config, 1)
    environment.close()
    if (parts := environment.spec.parts) and not read.takes_parts:
        raise ConfigError(
            f"{config.environment.env} observes {', '.join(part.name for part in parts)}, and this policy "
            "takes one array: add --wrapper gymnasium.wrappers:FlattenObservation for a Dict, or --wrapper "
            "accel.envs.masks:without_masks where a mask comes in info"
        )
    return environment


def _makes_bytes(config: TrainConfig) -> bool:
    """Whether images of floats are shown as bytes, which the policy gets back as floats in [0, 1]."""
    found = any(wrapper.endswith(":ImageBytes") for wrapper in config.environment.wrapper)
    if found:
        logger.warning("ImageBytes shows images as bytes: the policy gets them divided by 255, as floats in [0, 1]")
    return found


def _require_image(space: spaces.Space[object] | None, config: TrainConfig, normaliser: Path | None) -> None:
    """Raise ConfigError for bytes that Stable-Baselines3 treats otherwise: it scales and transposes images alone."""
    name = config.environment.env
    if normaliser is not None:
        raise ConfigError(
            f"--normaliser {normaliser} is for observations of floats, and {name} observes bytes: leave it out"
        )
    if not isinstance(space, spaces.Box):
        return
    if len(space.shape) != 3 or (space.low != 0).any() or (space.high != 255).any():
        raise ConfigError(
            f"{name} observes {space}, which Stable-Baselines3 takes for no image, as one has three dimensions and "
            "bytes from 0 to 255: import the policy with --module, whose code prepares what it observes"
        )


def _rule(name: str, policy: AdaptedPolicy, spec: EnvSpec) -> RuleSpec:
    if name == STOCHASTIC and policy.assumes_deviation:
        raise ConfigError(
            "--rule stochastic samples actions, and the policy gives means without deviations: choose greedy, or, with "
            "--module, return (means, log standard deviations)"
        )
    found = RuleSpec(_RULES.get(name, name))
    rule = make_rule(found, spec.action)
    if rule.output_size != spec.action.param_size:
        raise ConfigError(
            f"--rule {name} takes {rule.output_size} outputs, and a policy for {spec.action.kind} actions of sizes "
            f"{spec.action.sizes} gives {spec.action.param_size}: choose greedy or stochastic"
        )
    return found


def compress(
    policy: nn.Module | Path | TrainedPolicy,
    scheme: str = "int8",
    *,
    env: str | None = None,
    env_args: Sequence[str] = (),
    wrappers: Sequence[str] = (),
    squash_actions: bool = False,
    rule: str = GREEDY,
    normaliser: Path | None = None,
    seed: int = 0,
) -> CompressedPolicy:
    """Compress a policy, calibrated on observations that it meets while it plays its environment.

        artifact = accel.compress(module, "int8", env="CartPole-v1")
        Path("policy.accel").write_bytes(artifact.to_bytes())

    Args:
        policy: a torch module (see ``import_policy``), a run's directory, or a policy that was imported.
        scheme: such as ``int8`` or ``prune(0.5)+int8``.
        env: a gymnasium id, or ``module:id``; needed for a torch module, as are the options after it.
        env_args: ``k=v`` for its constructor. wrappers: ``module:function`` each.
        squash_actions: the environment gets tanh of the outputs, rescaled to its bounds.
        rule, normaliser: see ``import_policy``.
        seed: of the episodes that calibrate.
    Raises:
        ConfigError, EnvError, CheckpointError: the policy cannot be played. CompressorError: the scheme does not suit
            it.
    """
    if isinstance(policy, nn.Module):
        if env is None:
            raise ConfigError("a torch module needs the environment that it plays: give env, such as env='CartPole-v1'")
        config = TrainConfig.create(env=env, env_arg=env_args, wrapper=wrappers, squash_actions=squash_actions)
        policy = import_policy(policy, config, rule=rule, normaliser=normaliser)
    return compress_run(load_run(policy) if isinstance(policy, Path) else policy, scheme, seed)
