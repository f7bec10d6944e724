"""A run that was trained before: its configuration, its environment's layout and its network, ready to be played."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from accel.acting.rules import ActionRule, make_rule
from accel.algorithms.base import Algorithm
from accel.algorithms.catalogue import make_algorithm
from accel.config import TrainConfig
from accel.envs import VectorEnvironment, make_vector_env
from accel.envs.base import Seed
from accel.envs.spaces import EnvSpec
from accel.errors import CheckpointError, EnvError
from accel.networks import PolicyNetwork, parse_network
from accel.networks.policy import ActingModule
from accel.publishing.distillation import PolicyDivergence, StudentFactory, make_divergence
from accel.runs.directory import RunDirectory
from accel.runs.summary import Summary
from accel.tuning.choice import FULL_PRECISION, parse_choice
from compressors.artifact import CompressedPolicy, Json
from compressors.pipeline import make_compressor
from compressors.plan import Plan

Inputs = Mapping[str, npt.NDArray[np.generic]]
_PREFIX = "network."
_DISTILL = "distill"
# enough for a small student to follow a small policy; seconds
_LESSONS, _LESSON_BATCH, _LESSON_ROWS = 2000, 256, 4096


@dataclass(frozen=True)
class TrainedRun:
    """What a run has learnt.

    Attributes:
        path: the run's directory.
        config: what it was trained with.
        spec: its environment's layout.
        algorithm: its networks with the newest checkpoint's weights, on the CPU.
        env_steps: environment steps behind the weights.
        version: the policy version behind the weights.
    """

    path: Path
    config: TrainConfig
    spec: EnvSpec
    algorithm: Algorithm = field(repr=False)
    env_steps: int
    version: int

    @cached_property
    def network(self) -> PolicyNetwork:
        """The network whose policy side acts, in evaluation mode."""
        return self.algorithm.network.eval().requires_grad_(False)

    @cached_property
    def rule(self) -> ActionRule:
        """How outputs become actions."""
        return make_rule(self.algorithm.rule, self.spec.action)

    @property
    def divergence(self) -> PolicyDivergence:
        """How far two policies of this run are apart."""
        return make_divergence(self.algorithm)

    @cached_property
    def policy(self) -> ActingModule:
        """The policy's side of the network: observations and state to distribution parameters and next state."""
        return self.network.acting_module().eval()

    @property
    def scheme(self) -> str:
        """The compression scheme that actors had at the end, also where it was annealed or tuned."""
        choice = parse_choice(self.config.compression.compressor, self.config.policy.network)
        if choice.schedule is not None:
            return choice.schedule.level_at(self.env_steps)
        if choice.kind == "fixed":
            return choice.levels[0]
        try:
            return Summary.read(self.path).scheme
        except CheckpointError:
            return FULL_PRECISION

    @property
    def example_inputs(self) -> dict[str, torch.Tensor]:
        """One row of zeros for each input of ``policy``, in order."""
        dtype = torch.uint8 if self.spec.observation_dtype == "uint8" else torch.float32
        inputs = {"observations": torch.zeros(1, *self.spec.observation_shape, dtype=dtype)}
        inputs.update({f"state_{i}": torch.zeros(1, *shape) for i, shape in enumerate(self.network.state_shapes)})
        return inputs

    @property
    def metadata(self) -> dict[str, Json]:
        """What artifacts of this run carry: the action space, the environment and the network's text."""
        action = self.spec.action.to_json()
        return {"action": action, "env": self.config.environment.env, "network": self.config.policy.network}  # type: ignore[dict-item]

    def compress(
        self, scheme: str, calibration: Inputs | None = None, *, cpu: Iterable[str] | None = None
    ) -> CompressedPolicy:
        """The trained policy under a compression scheme.

        Args:
            scheme: such as ``fp32``, ``int8`` or ``prune(0.5)+int8``.
            calibration: real inputs by name, [N, *shape], as ``collect_inputs`` gives them; schemes
                with activation ranges need them, students learn from them, others may choose better with them.
            cpu: features of the CPU that is going to act (``compressors.cpu.FEATURES``); this machine's when None.
        Raises:
            CompressorError: the scheme is unknown or cannot compress this network; CalibrationError without inputs.
        """
        student = StudentFactory(self.config, self.network)
        divergence = self.divergence
        compressor = make_compressor(scheme, cpu=cpu, student_factory=student, divergence=divergence)
        teaches = _DISTILL in scheme and calibration is not None
        plan = compressor.bind(
            self.policy,
            self.example_inputs,
            None if teaches else calibration,  # ranges are those of the student that was taught
            output_names=self.policy.output_names,
            metadata=self.metadata,
        )
        if teaches and calibration is not None:
            self._teach(plan, calibration)
            plan.calibrate(calibration)
        return plan.refresh(self.policy, version=self.version)

    def calibration_rows(self, scheme: str) -> int:
        """How many real inputs ``compress`` should be given for a scheme; students learn from more than ranges need."""
        return (
            max(self.config.compression.calibration_size, _LESSON_ROWS)
            if _DISTILL in scheme
            else self.config.compression.calibration_size
        )

    def _teach(self, plan: Plan, inputs: Inputs) -> None:
        rng = np.random.default_rng(self.config.run.seed)
        rows = len(next(iter(inputs.values())))
        for _ in range(_LESSONS):
            chosen = rng.integers(rows, size=_LESSON_BATCH)
            plan.distill_step(self.policy, {name: torch.from_numpy(array[chosen]) for name, array in inputs.items()})

    def make_env(self, num_envs: int, seed: Seed, *, render: bool = False) -> VectorEnvironment:
        """The environments that the run was trained on, anew.

        Args:
            num_envs: B.
            seed: of the first reset.
            render: whether ``VectorEnvironment.render`` has to work.
        Raises:
            EnvError: it cannot be made, or its layout is not the one that the policy was trained on.
        """
        config = self.config
        environment = make_vector_env(
            config.environment.env,
            num_envs,
            backend=config.environment.backend,
            env_args=config.environment.kwargs,
            wrappers=config.environment.wrapper,
            seed=seed,
            squash_actions=config.environment.squash_actions,
            render=render,
        )
        ours, theirs = self.spec, environment.spec
        if (ours.observation_shape, ours.observation_dtype, ours.action) != (
            theirs.observation_shape,
            theirs.observation_dtype,
            theirs.action,
        ):
            environment.close()
            raise EnvError(
                f"environment {config.environment.env!r} is not the one that {self.path} was trained on: observations "
                f"{theirs.observation_shape} {theirs.observation_dtype} and {theirs.action} now, "
                f"{ours.observation_shape} {ours.observation_dtype} and {ours.action} then"
            )
        return environment


def load_run(path: Path) -> TrainedRun:
    """Read a run's configuration and its newest checkpoint.

        run = load_run(Path("results/cartpole"))
        artifact = run.compress("fp32")

    Args:
        path: a run directory, such as ``results/NAME``; it may still be running.
    Raises:
        RunDirectoryError: the path is no run directory.
        ConfigError: its configuration is not valid for this version of accel.
        CheckpointError: it holds no checkpoint, or a damaged one, or one of another network.

    Files are checked before anything acts on them, but modules that the configuration names are imported: a network or
    environment of the user's own is code, so load only runs whose configuration you trust.
    """
    run = RunDirectory.open(path, read_only=True)
    config = TrainConfig.from_json(run.read_config())
    state = run.load_checkpoint()
    try:
        spec = EnvSpec.from_json(cast("dict[str, object]", state.counters["spec"]))
        version = state.counters["version"]
        if not isinstance(version, int) or not 0 <= version < 2**63:
            raise ValueError(f"version {version!r}")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(
            f"the checkpoint of {run.path} lacks the environment's layout or the policy's version ({error!r}): "
            "it is of another version of accel"
        ) from error
    weights = {name.removeprefix(_PREFIX): t for name, t in state.tensors.items() if name.startswith(_PREFIX)}
    try:
        _check_shapes(config, spec, weights)
        algorithm = make_algorithm(config, spec, torch.device("cpu"))
        algorithm.networks.load_state_dict(weights)
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"the checkpoint of {run.path} does not fit network {config.policy.network!r} of its config.toml: {error}"
        ) from error
    return TrainedRun(run.path, config, spec, algorithm, state.env_steps, version)


def _check_shapes(config: TrainConfig, spec: EnvSpec, weights: Mapping[str, torch.Tensor]) -> None:
    """Raise ValueError unless the weights are those of the networks, before memory is taken for them."""
    if parse_network(config.policy.network).is_factory:
        return  # not ours: it may need real tensors while it is built
    with torch.device("meta"):
        wanted = make_algorithm(config, spec, torch.device("meta")).networks.state_dict()
    for name in wanted.keys() | weights.keys():
        shapes = [
            (tensors[name].shape, tensors[name].dtype) if name in tensors else None for tensors in (wanted, weights)
        ]
        if shapes[0] != shapes[1]:
            raise ValueError(f"'{name}' is {shapes[1]} in the checkpoint and {shapes[0]} in the network")
