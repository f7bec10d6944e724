"""Every benchmark as a command: its options, and what it measures with them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from accel.bench.advice import advise
from accel.bench.checks import RUNTIMES, SCHEMES, check_networks
from accel.bench.rows import Notify, Row
from accel.config import TrainConfig
from accel.config.files import load_preset
from accel.config.parts import Activation
from accel.display.arguments import argument
from accel.errors import ConfigError
from accel.imports.policy_source import PolicyActivation, PolicySource

if TYPE_CHECKING:
    from accel.bench.policies import Policies

_RUNTIMES = ",".join(RUNTIMES)
_NETWORKS = "mlp:64x2"
_COMMA = re.compile(r",(?![^()]*\))")

Runtimes = Annotated[str, tyro.conf.arg(help="any of torch (eager), onnxruntime and native (compiled kernels)")]

_ENVIRONMENT = ("env", "env_arg", "wrapper", "backend", "squash_actions", "normalise_observations", "activation")


@dataclass(frozen=True)
class BenchResult:
    """Rows and how to show them.

    Attributes:
        kind: of table.
        lines: recommendations and explanations.
    """

    kind: str
    rows: list[Row]
    title: str
    lines: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class BenchOptions(ABC):
    """What every benchmark has: where rows go, measuring time, a trained run, or networks in an environment."""

    json: Annotated[Path | None, tyro.conf.arg(help="write the rows to this file, a JSON list of flat objects")] = None
    seconds: Annotated[float, tyro.conf.arg(help="total measuring time, without set-up")] = 20.0
    repeats: Annotated[int, tyro.conf.arg(help="samples of each cell at most; cells are measured in turns")] = 50
    run: Annotated[Path | None, tyro.conf.arg(help="run directory: its network and trained weights")] = None
    env: Annotated[str | None, tyro.conf.arg(help="gymnasium id, or module:id to import the module first")] = None
    env_arg: Annotated[
        tuple[str, ...], tyro.conf.arg(help="k=v for the environment's constructor; may be repeated")
    ] = ()
    wrapper: Annotated[
        tuple[str, ...], tyro.conf.arg(help="module:function around each environment; may be repeated")
    ] = ()
    backend: Annotated[
        Literal["gymnasium", "envpool", "device"],
        tyro.conf.arg(help="what steps the environments; device: tensors, for bench learner"),
    ] = "gymnasium"
    squash_actions: Annotated[bool, tyro.conf.arg(help="tanh-squash Box actions into their bounds")] = False
    normalise_observations: Annotated[bool, tyro.conf.arg(help="normalise observations in the exported graph")] = False
    network: Annotated[
        str | None,
        argument(
            "network texts, separated by commas; default: mlp:64x2, of refresh three sizes, of learner the training's"
        ),
    ] = None
    activation: Annotated[Activation, tyro.conf.arg(help="activation of mlp torsos")] = "tanh"

    @abstractmethod
    def measure(self, refuse: Notify) -> BenchResult:
        """Measure what the options say; ``refuse`` gets a message about each scheme that does not work here."""

    def _refuse(self, names: Sequence[str], reason: str) -> None:
        """Raise ConfigError where one of these options is given; ``reason`` has ``{}`` for those that are."""
        given = [name for name in names if getattr(self, name, None) != getattr(type(self), name, None)]
        if given:
            raise ConfigError(reason.format(", ".join(f"--{name.replace('_', '-')}" for name in given)))

    def environment(self, default: str | None = None, **options: object) -> TrainConfig | None:
        """The configuration of ``env`` and its options; None without an environment.

        Args:
            default: the environment if neither one nor a run is given.
            options: further options of the configuration.
        Raises:
            ConfigError: an option is invalid, contradicts ``run`` or needs an environment.
        """
        if self.run is not None:
            self._refuse(_ENVIRONMENT, "--run brings its own environment and network: leave out {}")
            return None
        env = default if self.env is None else self.env
        if env is None:
            of_environment = [name for name in _ENVIRONMENT if name != "activation"]
            self._refuse(of_environment, "{}: these need an environment, give --env too")
            return None
        return TrainConfig.create(**{**{name: getattr(self, name) for name in _ENVIRONMENT}, "env": env}, **options)

    def networks(self, default: str = _NETWORKS) -> list[str]:
        """The networks' texts. Raises ConfigError beside a run."""
        if self.run is not None:
            self._refuse(["network"], "--run brings its own network: leave {} out")
        return texts(default if self.network is None else self.network)


@dataclass(frozen=True, kw_only=True)
class PoliciesOptions(BenchOptions, PolicySource):
    """A trained run, networks with random weights, or a policy that others trained."""

    schemes: Annotated[str, tyro.conf.arg(help="compression schemes, separated by commas; qat is measured as int8")] = (
        ",".join(SCHEMES)
    )
    policy_activation: PolicyActivation = None

    def _how(self, refuse: Notify) -> dict[str, Any]:
        """How policies are measured, whatever is measured of them."""
        return {"schemes": texts(self.schemes), "seconds": self.seconds, "repeats": self.repeats, "notify": refuse}

    def policies(self, networks: str = _NETWORKS, *, default: str | None = None, **options: object) -> Policies:
        """What is measured.

        Args:
            networks, default: where no network or environment is given. options: of the configuration.
        Raises:
            ConfigError: options that contradict each other. CheckpointError, EnvError: it cannot be read or played.
        """
        from accel.bench.policies import Policies

        if self.module is None and self.policy is None:
            imported = ("weights", "rule", "policy_activation", "normaliser", "observations", "discrete")
            self._refuse(imported, "{}: these are for --policy and --module, give one of them too")
            config, chosen = self.environment(default, **options), self.networks(networks)
            if self.run is None:
                return Policies(chosen, config, activation=self.activation)
            from accel.runs.loading import load_run

            return Policies(run=load_run(self.run, which=self.which))
        own = ("run", "network", "activation", "normalise_observations")
        self._refuse(own, "--policy and --module bring their own network: leave out {}")
        values = {field.name: getattr(self, field.name) for field in fields(PolicySource)}
        policy = PolicySource(**values | {"activation": self.policy_activation}).load()
        return Policies(run=replace(policy, config=policy.config.replace(**options)))


@dataclass(frozen=True, kw_only=True)
class PolicyOptions(PoliciesOptions):
    """Microseconds, bytes and mismatch of a policy call: torch, each scheme on onnxruntime and native.

    Observations and actions come from --run or --env. Default: 4x84x84 frames and 6 choices for a CNN, 17 numbers and 6
    continuous actions otherwise. Your own policy, on inputs that it meets: --policy or --module, with --env.
    """

    batch: Annotated[str, tyro.conf.arg(help="rows per call, separated by commas")] = "1,8,64"
    runtimes: Runtimes = _RUNTIMES

    def measure(self, refuse: Notify) -> BenchResult:
        """See ``BenchOptions.measure``."""
        from accel.bench.policy import bench_policy

        rows = bench_policy(
            self.policies(),
            batches=integers(self.batch),
            runtimes=texts(self.runtimes),
            **self._how(refuse),
        )
        title = f"Policy: µs per call; inputs: {rows[0]['inputs']}; {rows[0]['weights']} weights"
        return BenchResult("policy", rows, title, advise("policy", rows))


@dataclass(frozen=True, kw_only=True)
class ActorOptions(PoliciesOptions):
    """Microseconds per environment step of the actor loop: environment, policy and overhead, for each scheme.

    The environment alone, stepped by random actions, is measured as the lower limit. Without --run and --env:
    CartPole-v1. Your own policy: --policy or --module, with --env.
    """

    envs_per_actor: Annotated[str, tyro.conf.arg(help="environments stepped together, separated by commas")] = "1,8,64"
    runtimes: Runtimes = _RUNTIMES
    unroll_length: Annotated[int | None, argument("T, vector steps per unroll; default: 20, or the run's")] = None

    def measure(self, refuse: Notify) -> BenchResult:
        """See ``BenchOptions.measure``."""
        from accel.bench.actor import bench_actor

        if self.run is not None and self.unroll_length is not None:
            raise ConfigError("--run brings its own unrolls: leave out --unroll-length")
        length = 20 if self.unroll_length is None else self.unroll_length
        rows = bench_actor(
            self.policies(default="CartPole-v1", unroll_length=length),
            envs_per_actor=integers(self.envs_per_actor),
            runtimes=texts(self.runtimes),
            **self._how(refuse),
        )
        first = rows[0]
        title = (
            f"Actor: µs per environment step of {first['env']}, unrolls of {first['unroll_length']}, "
            f"{first['weights']} weights"
        )
        return BenchResult("actor", rows, title, advise("actor", rows))


@dataclass(frozen=True, kw_only=True)
class RefreshOptions(PoliciesOptions):
    """Milliseconds from new weights to a loaded policy: bind, requantise, serialise, load; and the break-even.

    Break-even: the environment steps per refresh from which on an actor is faster than with fp32. Your
    own policy, whose weights change a little each time: --policy or --module, with --env.
    """

    envs: Annotated[int, tyro.conf.arg(help="environments per actor")] = 8

    def measure(self, refuse: Notify) -> BenchResult:
        """See ``BenchOptions.measure``."""
        from accel.bench.refresh import bench_refresh

        policies = self.policies("mlp:64x2,mlp:256x2,mlp:512x3")
        rows = bench_refresh(policies, envs=self.envs, **self._how(refuse))
        title = (
            f"Refresh: ms from new weights to a loaded policy; environments: {self.envs}; {rows[0]['weights']} weights"
        )
        lines = [
            "per M: requantise and serialise per million parameters; break-even: environment steps per refresh",
            *advise("refresh", rows),
        ]
        return BenchResult("refresh", rows, title, lines)


@dataclass(frozen=True, kw_only=True)
class LearnerOptions(BenchOptions):
    """Microseconds of the learner's update per environment step, by phase, in single precision and in bf16; on CUDA
    with and without CUDA graphs.

    The learner limits a run: compression gains nothing where the actors together are faster. Experience is random, with
    the layout of --run, --preset or --env; --run and --preset also set the training options. Networks are those of
    accel train: an imported policy (--policy, --module) has no learner here.
    """

    preset: Annotated[str | None, tyro.conf.arg(help="preset of accel train: its environment and learner")] = None
    envs: Annotated[int | None, tyro.conf.arg(help="B, environments in a batch")] = None
    unroll_length: Annotated[int | None, tyro.conf.arg(help="T, vector steps per environment in a batch")] = None
    passes: Annotated[int | None, tyro.conf.arg(help="passes over a batch; more than one trains with ppo")] = None
    minibatches: Annotated[int | None, tyro.conf.arg(help="minibatches per pass; more than one trains with ppo")] = None
    device: Annotated[
        Literal["auto", "cpu", "cuda"] | None, argument("learner device; default: the training's, or auto")
    ] = None
    threads: Annotated[
        int | None,
        argument("torch threads on the CPU; default: the training's, or the cores that actors leave free"),
    ] = None

    def training(self) -> TrainConfig | None:
        """The preset's configuration, None without one. Raises ConfigError: an option contradicts the preset."""
        if self.preset is None:
            return None
        self._refuse(("run", *_ENVIRONMENT), "--preset brings its own training: leave out {}")
        return TrainConfig.create(**load_preset(self.preset))

    def changed(self, config: TrainConfig) -> TrainConfig:
        """The training configuration with the given options. Raises ConfigError."""
        named: dict[str, object] = {"passes": self.passes, "minibatches": self.minibatches, "device": self.device}
        named |= {"unroll_length": self.unroll_length, "learner_threads": self.threads}
        given = {name: value for name, value in named.items() if value is not None}
        if self.envs is not None:
            given |= {"envs_per_actor": self.envs, "batch_unrolls": 1}
        if max(self.passes or 1, self.minibatches or 1) == 1:
            return config.replace(**given)
        try:
            return config.replace(**given, algorithm="ppo")
        except ConfigError as error:
            raise ConfigError(f"--passes and --minibatches above 1 train with ppo: {error}") from None

    def measure(self, refuse: Notify) -> BenchResult:
        """See ``BenchOptions.measure``."""
        from accel.bench.learner import bench_learner
        from accel.bench.policies import default_spec, environment_spec

        if self.backend == "device":
            return self._on_device()
        spec, config, given = None, self.training(), self.networks()
        if self.run is not None:
            from accel.runs.loading import load_run

            self.environment()
            run = load_run(self.run)
            config, spec = run.config, run.spec
        networks = check_networks(given if config is None or self.network is not None else [config.policy.network])
        environment = config or self.environment()
        config = environment or TrainConfig.create(activation=self.activation)
        if spec is None and environment is not None:
            spec = environment_spec(environment)
        layouts = {default_spec(network) for network in networks} if spec is None else {spec}
        if len(layouts) > 1:
            raise ConfigError(
                f"{', '.join(networks)} take observations of different shapes: give --env, or one network"
            )
        rows = bench_learner(
            [self.changed(config.replace(network=network)) for network in networks],
            layouts.pop(),
            seconds=self.seconds,
            repeats=self.repeats,
            notify=refuse,
        )
        line = "compression gains nothing where the actors together are faster than the learner"
        return _learner_result("Learner", rows, "", [line])

    def _on_device(self) -> BenchResult:
        """Environments of tensors, collected and learned from."""
        from accel.bench.device import bench_device

        config, networks = self.environment(), self.networks("mlp:64x2")
        if config is None or len(networks) > 1:
            raise ConfigError("--backend device measures one training: give --env module:factory, and one --network")
        config = self.changed(config.replace(network=networks[0]))
        rows = bench_device(config, seconds=self.seconds, repeats=self.repeats)
        return _learner_result("Device", rows, f" of {self.env}", [])


Options = (
    Annotated[PolicyOptions, tyro.conf.subcommand("policy")]
    | Annotated[ActorOptions, tyro.conf.subcommand("actor")]
    | Annotated[RefreshOptions, tyro.conf.subcommand("refresh")]
    | Annotated[LearnerOptions, tyro.conf.subcommand("learner")]
)


def _learner_result(what: str, rows: list[Row], of: str, lines: Sequence[str]) -> BenchResult:
    first = rows[0]
    title = (
        f"{what}: µs per environment step; {first['T']} x {first['B']} steps{of}, {first['algorithm']}, "
        f"passes: {first['passes']}, minibatches: {first['minibatches']}, {first['device']}"
    )
    return BenchResult("learner", rows, title, lines)


def texts(text: str) -> list[str]:
    """Items separated by commas outside of parentheses."""
    return [item.strip() for item in _COMMA.split(text) if item.strip()]


def integers(text: str) -> list[int]:
    """Whole numbers separated by commas. Raises ConfigError."""
    try:
        return [int(item) for item in texts(text)]
    except ValueError:
        raise ConfigError(f"'{text}' is not a list of whole numbers separated by commas, such as 1,8,32") from None
