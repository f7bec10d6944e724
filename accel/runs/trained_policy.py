"""A trained policy and its environment, the input of playing, compressing, measuring and exporting: a run of ours
(``accel.runs.loading.TrainedRun``) or an imported policy (``accel.imports.policy``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from accel.acting.rules import ActionRule, ActorPlace, RuleSpec, make_rule
from accel.acting.torch_policy import TorchSession
from accel.algorithms.distributions import ActionDistribution, PolicyDivergence, make_distribution
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.graph.policy_graph import PolicyGraph, export_policy
from accel.compressors.pipeline import make_compressor
from accel.compressors.plan import Plan
from accel.config import TrainConfig
from accel.envs.actions import action_converter
from accel.envs.base import Actions, Seed, VectorEnvironment
from accel.envs.factory import make_vector_env
from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError, EnvError
from accel.networks.observations import example_inputs
from accel.networks.policy import PolicyModule
from accel.publishing.distillation import StudentFactory
from accel.runs.player import Array, Floats, Player

Inputs = Mapping[str, Array]
_DISTILL, _TRAINED_ROUNDED = "distill", "qat"
# distillation steps, enough for a small student of a small policy; takes seconds
_DISTILL_STEPS, _DISTILL_BATCH, _DISTILL_ROWS = 2000, 256, 4096


@dataclass(frozen=True, kw_only=True)
class TrainedPolicy(ABC):
    """A policy in torch, its environment and its action rule.

    Attributes:
        path: the directory or file that it came from.
        config: its environment, seed and how many inputs calibrate; of a run, all that it was trained with.
        env_steps: environment steps behind the weights. version: the policy version behind them.
        policy: the module that acts, in evaluation mode: observations and state to outputs and next state.
        rule_spec: the rule that turns outputs into actions, by name.
        architecture: the network in a short text, for tables and cards.
        arguments: the command-line arguments that name it; None for a module that only this process has.
        recorded: recorded inputs in place of an environment, by name [N, *shape]; None for a policy that can be played.
    """

    path: Path
    config: TrainConfig
    spec: EnvSpec
    env_steps: int
    version: int
    policy: PolicyModule = field(repr=False)
    rule_spec: RuleSpec
    architecture: str
    arguments: tuple[str, ...] | None
    recorded: Inputs | None = field(default=None, repr=False)

    @property
    def has_distribution(self) -> bool:
        """Whether the outputs are a distribution's parameters: Q-values and means that are taken as they are have none,
        and are compared by the actions alone."""
        return True

    @property
    @abstractmethod
    def identity(self) -> dict[str, str | int]:
        """What identifies the policy and its weights, in plain JSON."""

    @property
    def divergence(self) -> PolicyDivergence:
        """The divergence between two policies with these outputs: by default that of the action space."""
        return PolicyDivergence(self.spec.action)

    @property
    @abstractmethod
    def normalisation(self) -> str:
        """How the graph normalises observations, in words."""

    @property
    @abstractmethod
    def scheme(self) -> str:
        """The default compression scheme."""

    def distribution(self, outputs: Tensor) -> ActionDistribution:
        """The action distribution of outputs [..., P]: by default that of the action space."""
        return make_distribution(self.spec.action, outputs)

    @cached_property
    def rule(self) -> ActionRule:
        """The rule that turns outputs into actions."""
        return make_rule(self.rule_spec, self.spec.action)

    def choose(self, outputs: Floats, rng: np.random.Generator | None = None) -> Actions:
        """Actions [N, *action] for outputs [N, P], as environments get them: sampled, or the most likely ones without a
        generator."""
        chosen = np.zeros((len(outputs), *self.spec.action.shape), self.spec.action.dtype)
        sampler = self.rule.bind(ActorPlace(len(outputs), 1), rng or np.random.default_rng(0))
        if rng is None:
            sampler.greedy(outputs, chosen)
        else:
            sampler.begin(TRAINED)
            sampler.sample(outputs, 0, chosen)
        return cast(Actions, sampler.to_env(chosen))

    @property
    def example_inputs(self) -> dict[str, Tensor]:
        """One row of zeros for each input of ``policy``, in order; a mask of ones."""
        return example_inputs(self.spec, self.policy.state_shapes)

    @cached_property
    def graph(self) -> PolicyGraph:
        """The exported policy, which every scheme that reduces nothing begins with. Raises GraphError."""
        return export_policy(self.policy, self.example_inputs, self.policy.output_names)

    def compress(
        self, scheme: str, calibration: Inputs | None = None, *, cpu: Iterable[str] | None = None
    ) -> CompressedPolicy:
        """The trained policy under a compression scheme.

        Args:
            scheme: such as ``fp32``, ``int8`` or ``prune(0.5)+int8``.
            calibration: real inputs by name, [N, *shape], as ``collect_inputs`` gives them; needed for activation
                ranges, students and the selection of channels.
            cpu: features of the CPU that will act (``accel.compressors.cpu.FEATURES``); this machine's when None.
        Raises:
            CompressorError: the scheme is unknown or cannot compress this network; CalibrationError without inputs.
        """
        plan = self.bind(scheme, calibration, cpu=cpu)
        if calibration is not None:
            self.teach(plan, calibration)
        # what is trained with rounding is rounded as it was trained
        if calibration is None or _TRAINED_ROUNDED in scheme:
            return plan.refresh(self.policy, version=self.version)
        return plan.fit(self.policy, calibration, version=self.version)

    def bind(self, scheme: str, calibration: Inputs | None = None, *, cpu: Iterable[str] | None = None) -> Plan:
        """The plan behind ``compress``, whose student, if it has one, is not taught. Raises SchemeError."""
        student = StudentFactory(self.spec, self.config.policy.activation, self.config.run.seed)
        action = self.spec.action.to_json()
        compressor = make_compressor(scheme, cpu=cpu, student_factory=student, divergence=self.divergence)
        return compressor.bind(
            self.policy,
            self.example_inputs,
            None if _DISTILL in scheme else calibration,  # the taught student is calibrated instead
            output_names=self.policy.output_names,
            metadata={"action": action, "env": self.config.environment.env, "network": self.architecture},  # type: ignore[dict-item]
            graph=self.graph,
        )

    def teach(self, plan: Plan, inputs: Inputs) -> None:
        """Distil into the plan's student, if it has one, and calibrate it."""
        rng = np.random.default_rng(self.config.run.seed)
        rows = len(next(iter(inputs.values())))
        update = plan.begin_update(self.policy)
        for _ in range(_DISTILL_STEPS):
            chosen = rng.integers(rows, size=_DISTILL_BATCH)
            batch = {name: torch.from_numpy(array[chosen]) for name, array in inputs.items()}
            if update.distill_step(batch) is None:
                return
        update.commit()
        plan.calibrate(inputs)

    def calibration_rows(self, scheme: str) -> int:
        """Number of real inputs that ``compress`` needs for a scheme; a student needs more than ranges do."""
        rows = self.config.compression.calibration_size
        return max(rows, _DISTILL_ROWS) if _DISTILL in scheme else rows

    def make_env(self, num_envs: int, seed: Seed, *, render: bool = False) -> VectorEnvironment:
        """New environments of the kind that the policy was trained on.

        Args:
            seed: of the first reset. render: whether ``VectorEnvironment.render`` has to work.
        Raises:
            EnvError: they cannot be made, or their layout is not the one that the policy was trained on.
        """
        environment = make_env(self.config, num_envs, seed, render=render)
        ours, theirs = self.spec, environment.spec
        layout = attrgetter("observation_shape", "observation_dtype", "parts", "action")
        if layout(ours) != layout(theirs):
            environment.close()
            raise EnvError(
                f"environment {self.config.environment.env!r} is not the one that {self.path} was trained on: "
                f"observations {theirs.observation_shape} {theirs.observation_dtype} and {theirs.action} now, "
                f"{ours.observation_shape} {ours.observation_dtype} and {ours.action} then"
            )
        return environment

    def act(self, observation: object, *, first: bool = False, greedy: bool = True) -> Array:
        """An action of full precision, as the environment's ``step`` takes it; for scripts, not for speed.

            run = accel.load_run(Path("results/cartpole"))
            action = run.act(observation)

        Args:
            observation: one observation [*shape], or a batch of them [B, *shape]. A Dict observation as the environment
                gives it, or a dictionary of batches; where masks come in info, ``{"observations": observation,
                "action_mask": info["action_mask"]}``. Tuple and index observations are flattened first, with
                ``gymnasium.spaces.flatten``.
            first: an episode begins: a recurrent policy starts from a state of zeros. The state is kept between calls.
            greedy: take the most likely action instead of sampling.
        Returns:
            One action, or [B] of them.
        Raises:
            ConfigError: the observation has another shape. EnvError: the environment cannot be made.
        """
        return self._scripted.act(observation, first, greedy)

    @cached_property
    def _scripted(self) -> _ScriptedActor:
        return _ScriptedActor(self)


class _ScriptedActor:
    """Acts with a policy in torch; keeps the recurrent state and the noise's generator between calls."""

    def __init__(self, trained: TrainedPolicy) -> None:
        environment = trained.make_env(1, 0)
        environment.close()
        self._to_env = action_converter(environment.action_space)
        self._layout = environment.layout
        self._trained = trained
        self._rng = np.random.default_rng(trained.config.run.seed)
        self._player: Player | None = None
        self._batch = 0

    def act(self, observation: object, first: bool, greedy: bool) -> Array:
        """See ``TrainedPolicy.act``."""
        trained = self._trained
        single, rows = self._rows(observation) if trained.spec.parts else _plain_rows(trained.spec, observation)
        batch = len(rows)
        if self._player is None or batch != self._batch:
            session = TorchSession(trained.policy, trained.example_inputs, batch)
            self._player, self._batch, first = Player(session, trained.spec), batch, True
        params = self._player.params(rows, np.ones(batch, np.bool_) if first else None)
        actions = self._to_env(trained.choose(params, None if greedy else self._rng))
        return actions[0] if single else actions

    def _rows(self, observation: object) -> tuple[bool, Array]:
        """Whether it is one Dict observation alone, and all of them as they travel, [B, *shape]. Raises ConfigError."""
        layout = self._layout
        single = layout.holds(observation)
        try:
            rows = layout.empty(1 if single else len(_first_leaf(observation)))
            layout.write(observation, rows[0] if single else rows)
            return single, rows
        except (TypeError, KeyError, ValueError, IndexError) as error:
            raise ConfigError(
                f"the observation is none of {layout.space}, nor a batch of them ({type(error).__name__}: {error}): "
                "give a dictionary, as the environment does"
            ) from error


def _plain_rows(spec: EnvSpec, observation: object) -> tuple[bool, Array]:
    shape = spec.observation_shape
    rows = np.asarray(observation, spec.observation_dtype)
    if rows.shape not in (shape, (len(rows), *shape) if rows.ndim else shape):
        raise ConfigError(
            f"the observation has shape {rows.shape}, and the policy takes {shape}, or a batch of them: flatten it "
            "with gymnasium.spaces.flatten, or apply the environment's wrappers"
        )
    return rows.shape == shape, rows.reshape(-1, *shape)


def _first_leaf(observation: object) -> Array:
    while isinstance(observation, Mapping | tuple):
        observation = next(iter(observation.values() if isinstance(observation, Mapping) else observation))
    return np.asarray(observation)


TRAINED = 1 << 62
"""Environment steps after which every exploration schedule has reached its end."""


def make_env(config: TrainConfig, num_envs: int, seed: Seed = 0, *, render: bool = False) -> VectorEnvironment:
    """The environments of a configuration. Raises EnvError, MissingExtraError."""
    options = config.environment
    return make_vector_env(
        options.env,
        num_envs,
        backend=options.backend,
        env_args=options.kwargs,
        wrappers=options.wrapper,
        seed=seed,
        squash_actions=options.squash_actions,
        render=render,
    )
