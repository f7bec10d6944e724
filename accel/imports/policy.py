"""``accel.compress`` and imported policies: torch modules that somebody else trained, with our face of a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

from accel.acting.rules import ActionRule, RuleSpec, make_rule
from accel.algorithms.distributions import ActionDistribution, make_distribution
from accel.config import TrainConfig
from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError
from accel.imports.adapter import AdaptedPolicy
from accel.imports.factories import FactorySpec, load_weights, make_module, with_forward
from accel.imports.normaliser import FixedNormaliser, read_normaliser
from accel.imports.stable_baselines3 import read_saved_policy
from accel.publishing.distillation import PolicyDivergence
from accel.runs.evaluation import compress_run
from accel.runs.loading import load_run
from accel.runs.trained_policy import TrainedPolicy, make_env
from compressors.artifact import CompressedPolicy

GREEDY = "greedy"
_RULES: Mapping[str, str] = {GREEDY: "accel.imports.greedy:GreedyRule"}


@dataclass(frozen=True)
class ImportedPolicy(TrainedPolicy):
    """A policy that somebody else trained, with the environment that it plays.

    Attributes:
        adapted: the module that acts.
        action_rule: how its outputs become actions.
        name: what it is called in tables and cards.
    """

    adapted: AdaptedPolicy = field(repr=False)
    action_rule: ActionRule = field(repr=False)
    name: str

    @property
    def policy(self) -> AdaptedPolicy:
        """See ``TrainedPolicy.policy``."""
        return self.adapted

    @property
    def rule(self) -> ActionRule:
        """See ``TrainedPolicy.rule``."""
        return self.action_rule

    @property
    def architecture(self) -> str:
        """The module's name, or algorithm and layers of a file."""
        return self.name

    @property
    def divergence(self) -> PolicyDivergence:
        """See ``TrainedPolicy.divergence``."""
        return PolicyDivergence(self.spec.action)

    @property
    def normalisation(self) -> str:
        """See ``TrainedPolicy.normalisation``."""
        if self.spec.observation_dtype == "uint8":
            return "divided by 255" if self.adapted.scales_images else "the policy's own"
        if isinstance(self.adapted.normaliser, FixedNormaliser):
            clip = self.adapted.normaliser.clip
            return f"(x - mean) / deviation over training, clipped to [-{clip:g}, {clip:g}]"
        return "none"

    @property
    def scheme(self) -> str:
        """int8."""
        return "int8"

    def distribution(self, outputs: Tensor) -> ActionDistribution:
        """The action space's own distribution."""
        return make_distribution(self.spec.action, outputs)


def import_module(
    module: nn.Module | str,
    config: TrainConfig,
    *,
    weights: Path | None = None,
    rule: str = GREEDY,
    normaliser: Path | None = None,
) -> ImportedPolicy:
    """A torch module, or what ``package.module:factory`` makes, as a policy.

    Args:
        module: the policy; see ``accel.imports.adapter.AdaptedPolicy`` for what it maps. Agents of CleanRL, which have
            no forward, are taken as they are. Factories are called with a ``FactorySpec`` if they need an argument.
        config: its environment.
        weights: a state dict, as .safetensors or as ``torch.save`` wrote it.
        rule: ``greedy``, ``stochastic``, or ``module:factory`` (``accel.acting.rules``).
        normaliser: a file with the statistics that observations are normalised with.
    Raises:
        ConfigError, CheckpointError: it cannot be made, or is no policy for this environment; names the layer.
        EnvError, MissingExtraError: the environment cannot be made.
    """
    environment = make_env(config, 1)
    environment.close()
    spec = environment.spec
    name = module if isinstance(module, str) else type(module).__name__
    if isinstance(module, str):
        module = make_module(module, FactorySpec.of(spec, environment.action_space))
    if weights is not None:
        load_weights(module, weights)
    constants = None if normaliser is None else read_normaliser(normaliser, spec.observation_shape)
    adapted = AdaptedPolicy(with_forward(module, spec), spec, normaliser=constants)
    path = Path(name.partition(":")[2] or name) if weights is None else weights
    return ImportedPolicy(path, config, spec, 0, 0, adapted, _rule(rule, spec), name)


def import_sb3(
    path: Path,
    config: TrainConfig,
    *,
    activation: str | None = None,
    rule: str = GREEDY,
    normaliser: Path | None = None,
) -> ImportedPolicy:
    """The policy of a Stable-Baselines3 zip file, of which nothing is unpickled.

    Args:
        path: what ``model.save(path)`` wrote.
        activation: where the file does not tell it: tanh, relu, elu, leaky_relu, gelu or silu.
        config, rule, normaliser: see ``import_module``; normaliser holds VecNormalize's statistics.
    Raises:
        ConfigError, CheckpointError, EnvError, MissingExtraError: see ``import_module``.
    """
    saved = read_saved_policy(path, activation)
    if saved.squashes:
        config = config.replace(squash_actions=True)
    environment = make_env(config, 1)
    environment.close()
    spec = environment.spec
    constants = None if normaliser is None else read_normaliser(normaliser, spec.observation_shape)
    adapted = AdaptedPolicy(saved.module, spec, log_std=saved.log_std, normaliser=constants, scales_images=True)
    return ImportedPolicy(path, config, spec, saved.env_steps, 0, adapted, _rule(rule, spec), saved.architecture)


def _rule(name: str, spec: EnvSpec) -> ActionRule:
    rule = make_rule(RuleSpec(_RULES.get(name, name)), spec.action)
    if rule.output_size != spec.action.param_size:
        raise ConfigError(
            f"--rule {name} takes {rule.output_size} outputs, and a policy for {spec.action.kind} actions of sizes "
            f"{spec.action.sizes} gives {spec.action.param_size}: choose greedy or stochastic"
        )
    return rule


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
        artifact.write(Path("policy.accel"))

    Args:
        policy: a torch module (see ``import_module``), a run's directory, or a policy that was imported.
        scheme: such as ``int8`` or ``prune(0.5)+int8``.
        env: a gymnasium id, or ``module:id``; needed for a torch module, as are the options after it.
        env_args: ``k=v`` for its constructor. wrappers: ``module:function`` each.
        squash_actions: the environment gets tanh of the outputs, rescaled to its bounds.
        rule, normaliser: see ``import_module``.
        seed: of the episodes that calibrate.
    Raises:
        ConfigError, EnvError, CheckpointError: the policy cannot be played. CompressorError: nor compressed so.
    """
    if isinstance(policy, nn.Module):
        if env is None:
            raise ConfigError("a torch module needs the environment that it plays: give env, such as env='CartPole-v1'")
        config = TrainConfig.create(env=env, env_arg=env_args, wrapper=wrappers, squash_actions=squash_actions)
        policy = import_module(policy, config, rule=rule, normaliser=normaliser)
    return compress_run(load_run(policy) if isinstance(policy, Path) else policy, scheme, seed)
