"""A finished or running training run, loaded to be played: configuration, environment layout and network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, cast

import torch

from accel.algorithms.base import Algorithm, make_divergence
from accel.algorithms.catalogue import make_algorithm
from accel.algorithms.distributions import ActionDistribution, PolicyDivergence
from accel.config import TrainConfig
from accel.envs.spaces import EnvSpec
from accel.errors import CheckpointError
from accel.networks import parse_network
from accel.runs.directory import RunDirectory, Which
from accel.runs.summary import Summary
from accel.runs.trained_policy import TrainedPolicy
from accel.tuning.choice import FULL_PRECISION, parse_choice

PREFIX = "network."


@dataclass(frozen=True, kw_only=True)
class TrainedRun(TrainedPolicy):
    """The policy of a run; ``algorithm`` has the checkpoint's weights, on the CPU."""

    algorithm: Algorithm = field(repr=False)
    which: Which

    @classmethod
    def of(
        cls,
        algorithm: Algorithm,
        path: Path,
        config: TrainConfig,
        spec: EnvSpec,
        env_steps: int,
        version: int,
        which: Which = "newest",
    ) -> Self:
        """What acts of an algorithm's network, which is for evaluation from now on."""
        return cls(
            path=path,
            config=config,
            spec=spec,
            env_steps=env_steps,
            version=version,
            policy=algorithm.network.eval().requires_grad_(False).acting_module().eval(),
            rule_spec=algorithm.rule,
            architecture=config.policy.network,
            arguments=(str(path), *(("--which", which) if which != "newest" else ())),
            algorithm=algorithm,
            which=which,
        )

    @property
    def identity(self) -> dict[str, str | int]:
        """See ``TrainedPolicy.identity``."""
        return {"run": str(self.path), "policy_version": self.version}

    @property
    def divergence(self) -> PolicyDivergence:
        """See ``TrainedPolicy.divergence``."""
        return make_divergence(self.algorithm)

    @property
    def normalisation(self) -> str:
        """See ``TrainedPolicy.normalisation``."""
        images, numbers = "divided by 255", "(x - mean) / deviation over training, clipped to [-10, 10]"
        normalises = self.algorithm.network.normaliser is not None
        if not self.spec.has_images:
            return numbers if normalises else "none"
        if not self.spec.parts:
            return images
        return f"images {images}, others {numbers}" if normalises else f"images {images}"

    @property
    def scheme(self) -> str:
        """The compression scheme of the actors at the end of training, also if it was tuned."""
        level, *others = parse_choice(self.config.compression.compressor).levels
        if not others:
            return level
        try:
            return Summary.read(self.path).scheme
        except CheckpointError:
            return FULL_PRECISION

    def distribution(self, outputs: torch.Tensor) -> ActionDistribution:
        """See ``TrainedPolicy.distribution``."""
        return self.algorithm.distribution(outputs, None)


def load_run(path: Path, *, which: Which = "newest") -> TrainedRun:
    """Read a run's configuration and its newest checkpoint.

        run = load_run(Path("results/cartpole"))
        artifact = run.compress("fp32")

    Args:
        path: a run directory, such as ``results/NAME``; it may still be running.
        which: ``best``: the policy of the best evaluation while it trained (``--evaluate-every``).
    Raises:
        RunDirectoryError: the path is no run directory.
        ConfigError: its configuration is not valid for this version of accel.
        CheckpointError: it holds no checkpoint, or a damaged one, or one of another network.

    Files are checked before anything acts on them, but modules that the configuration names are imported: a network or
    environment of the user's own is code, so load only runs whose configuration you trust.
    """
    run = RunDirectory.open(path, read_only=True)
    config = TrainConfig.from_json(run.read_config())
    state = run.load_checkpoint(which)
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
    weights = {name.removeprefix(PREFIX): t for name, t in state.tensors.items() if name.startswith(PREFIX)}
    try:
        _check_shapes(config, spec, weights)
        algorithm = make_algorithm(config, spec, torch.device("cpu"))
        algorithm.networks.load_state_dict(weights)
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"the checkpoint of {run.path} does not fit network {config.policy.network!r} of its config.toml: {error}"
        ) from error
    return TrainedRun.of(algorithm, run.path, config, spec, state.env_steps, version, which)


def _check_shapes(config: TrainConfig, spec: EnvSpec, weights: Mapping[str, torch.Tensor]) -> None:
    """Raise ValueError unless the weights are those of the networks, before memory is taken for them."""
    if parse_network(config.policy.network).is_factory:
        return  # not ours: it may need real tensors while it is built
    with torch.device("meta"):
        networks = make_algorithm(config, spec, torch.device("meta")).networks
    wanted, found = (
        {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        for tensors in (networks.state_dict(), weights)
    )
    for name in wanted.keys() | found.keys():
        if wanted.get(name) != found.get(name):
            raise ValueError(f"'{name}' is {found.get(name)} in the checkpoint and {wanted.get(name)} in the network")
