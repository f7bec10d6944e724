"""The policies that a benchmark measures: weights, real or random inputs, and their plans under compression schemes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from accel.acting.torch_policy import serialise_module
from accel.algorithms.catalogue import make_algorithm
from accel.bench.checks import check_networks
from accel.bench.rows import FULL_PRECISION, Notify, Row
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.errors import CompressorError
from accel.compressors.kernels.chain import make_chain
from accel.compressors.plan import Plan
from accel.compressors.runtime import PolicySession
from accel.config import TrainConfig
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.errors import ConfigError
from accel.monitor.divergence import divergences
from accel.networks import parse_network
from accel.runs.finishing import MIXED, finish
from accel.runs.loading import TrainedRun, load_run
from accel.runs.playing import collect_inputs, held_out
from accel.runs.quality import calibration_inputs, compare_actions, judged_inputs
from accel.runs.trained_policy import TrainedPolicy, make_env

Inputs = Mapping[str, npt.NDArray[np.generic]]

_NO_MISMATCH: Row = {"kl": None, "ess": None, "greedy_agreement": None, "action_error": None, "holds": None}
_SEED = 0
_COLLECTING_STEPS = 256
_FLAT = EnvSpec((17,), "float32", ActionSpec("gaussian", (6,), (-1.0,) * 6, (1.0,) * 6))
_IMAGES = EnvSpec((4, 84, 84), "uint8", ActionSpec("categorical", (6,)))


@dataclass(frozen=True)
class Policies:
    """Which policies a benchmark measures: networks with random weights, or a trained one.

    Attributes:
        networks: network texts. ``run`` has its own.
        config: a configuration whose environment provides layout and inputs, with its network options; without it
            inputs are random numbers, and the layout is ``default_spec``'s.
        activation: of mlp torsos, without ``config``.
        run: a run's directory or a trained policy: its environment, network and weights; excludes the others.
    Raises:
        ConfigError: an unknown network, none, or a run together with another environment.
    """

    networks: Sequence[str] = ("mlp:64x2",)
    config: TrainConfig | None = None
    activation: str = "tanh"
    run: Path | TrainedPolicy | None = None

    def __post_init__(self) -> None:
        if self.run is None:
            object.__setattr__(self, "networks", check_networks(self.networks))
        elif self.config is not None:
            raise ConfigError("a run brings its own environment and network: leave out the others")

    def __len__(self) -> int:
        return 1 if self.run is not None else len(self.networks)

    def in_environment(self) -> Policies:
        """Such as can be played: in CartPole-v1 where nothing else is given. Raises ConfigError: recorded rows."""
        if self.run is None:
            return replace(self, config=self.config or TrainConfig.create())
        if isinstance(self.run, TrainedPolicy) and self.run.recorded is not None:
            raise ConfigError("recorded observations cannot be played: give --env in place of --observations")
        return self

    def __iter__(self) -> Iterator[MeasuredPolicy]:
        """Each policy with inputs.

        Raises:
            CheckpointError, RunDirectoryError: the run cannot be read. EnvError, MissingExtraError: the environment
                cannot be made. ConfigError: the network does not take the observations.
        """
        if self.run is not None:
            yield _trained(load_run(self.run) if isinstance(self.run, Path) else self.run)
            return
        for network in self.networks:
            if self.config is not None:
                config = self.config.replace(network=network)
                yield _played(_untrained(config, environment_spec(config)))
                continue
            config = TrainConfig.create(network=network, activation=self.activation)
            try:
                yield _on_random_inputs(config, default_spec(network))
            except ConfigError as error:
                raise ConfigError(f"{error}; give --env") from error


@dataclass(frozen=True, eq=False)
class Variant:
    """A policy on one runtime under one scheme.

    Attributes:
        payload: the serialised policy.
        mismatch: see ``MeasuredPolicy.mismatch_of``; None throughout for torch, against which it is measured.
        artifact: None for torch.
    """

    runtime: str
    scheme: str
    payload: bytes
    mismatch: Row
    artifact: CompressedPolicy | None = None


@dataclass(frozen=True)
class MeasuredPolicy:
    """One policy under measurement.

    Attributes:
        run: network, configuration and layout; for random weights, a run without a directory.
        weights: ``random`` or ``trained``.
        source: of the inputs: ``environment``, ``recorded observations`` or ``random numbers``.
        calibration: inputs for activation ranges, [N, *shape] by name.
        held_out: other inputs, for measuring mismatch.
    """

    run: TrainedPolicy
    weights: str
    source: str
    calibration: Inputs
    held_out: Inputs

    @property
    def network(self) -> str:
        """The network's text."""
        return self.run.architecture

    def first_inputs(self, rows: int) -> Inputs:
        """So many of the held-out inputs, again from the first where they are fewer."""
        return {name: np.resize(values, (rows, *values.shape[1:])) for name, values in self.held_out.items()}

    def bind(self, scheme: str) -> Plan:
        """Bind a scheme to this policy. Raises CompressorError."""
        plan = self.run.bind(scheme, self.calibration)
        if self.weights == "random" and "distill" in scheme:
            plan.calibrate(self.calibration)  # nobody teaches its student
        return plan

    def mismatch_of(self, artifact: CompressedPolicy) -> Row:
        """The policy as actors have it beside the torch policy, on the held-out inputs.

        ``kl`` (fp32‖artifact, nats), ``ess`` and ``greedy_agreement``, means; the mean ``action_error`` and whether the
        actions are within the bar (``accel.runs.quality``). A policy that acts greedily has no ``kl`` and ``ess``.
        """
        with torch.inference_mode():
            full = self.run.policy(*map(torch.from_numpy, self.held_out.values()))[0].numpy()
        session = PolicySession(artifact, batch=len(full))
        for name, array in session.inputs.items():
            array[...] = self.held_out[name]
        session.run()
        behaviour = session.outputs["params"].astype(np.float32)
        found = divergences(
            self.run.spec.action, *(self.run.rule.action_params(out, None) for out in (full, behaviour))
        )
        acted = compare_actions(self.run, full, behaviour, self.source)
        has_distribution = self.run.has_distribution
        return {
            "kl": float(found.kl.mean(dtype=np.float64)) if has_distribution else None,
            "ess": float(found.ess.mean(dtype=np.float64)) if has_distribution else None,
            "greedy_agreement": float(found.greedy_agrees.mean(dtype=np.float64)),
            "action_error": acted.mean_error,
            "holds": acted.holds,
        }

    def teach(self, plan: Plan) -> None:
        """Distil into the plan's student, if it has one and the policy is trained."""
        if self.weights == "trained":
            self.run.teach(plan, self.calibration)

    def variants(self, schemes: Sequence[str], runtimes: Sequence[str], notify: Notify) -> list[Variant]:
        """What is to be measured: torch eager, every scheme on onnxruntime, and on compiled kernels what they run.

        Args:
            schemes: full precision is always measured too.
            notify: gets a message about each scheme that the network or the kernels refuse, with the reason.
        Raises:
            CompressorError: full precision itself is refused, so that there is nothing to compare with.
            ConfigError: kernels alone are asked for, and run none of it.
        """
        found = []
        if "torch" in runtimes:
            found.append(
                Variant("torch", FULL_PRECISION, serialise_module(self.run.policy, self.run.spec), _NO_MISMATCH)
            )
        if {*runtimes} == {"torch"}:
            return found
        native, messages = [], []
        for scheme, artifact in self._artifacts(schemes, notify).items():
            variant = Variant("onnxruntime", scheme, artifact.to_bytes(), self.mismatch_of(artifact), artifact)
            found += [variant] if "onnxruntime" in runtimes else []
            if isinstance(reason := make_chain(artifact), str):
                messages.append(f"no row for compiled kernels, {scheme}: {reason}")
            else:
                native.append(replace(variant, runtime="native"))
        if "native" not in runtimes:
            return found
        if not found and not native:
            raise ConfigError("; ".join(messages))
        for message in messages:
            notify(message)
        return found + native

    def _artifacts(self, schemes: Sequence[str], notify: Notify) -> dict[str, CompressedPolicy]:
        """The policy under every scheme that takes it; full precision leads."""
        made = {FULL_PRECISION: self.bind(FULL_PRECISION).refresh(self.run.policy, 1)}
        for scheme in schemes:
            if scheme in made:
                continue
            try:
                made[scheme] = self._artifact(scheme)
                PolicySession(made[scheme], batch=1)
                if MIXED in made[scheme].metadata:
                    notify(f"{scheme}: {made[scheme].metadata[MIXED]}")
            except CompressorError as error:
                made.pop(scheme, None)
                notify(refusal(scheme, self.network, error))
        return made

    def _artifact(self, scheme: str) -> CompressedPolicy:
        """As ``accel compress`` makes it of a trained policy, and as a publication does of random weights."""
        if self.weights == "trained" and "distill" not in scheme:
            return finish(self.run, scheme, self.calibration).artifact
        plan = self.bind(scheme)
        self.teach(plan)
        return plan.refresh(self.run.policy, 1)


def refusal(scheme: str, network: str, error: CompressorError) -> str:
    """The message about a scheme that a network cannot take."""
    return f"refused: {scheme} for {network}: {error}"


def default_spec(network: str) -> EnvSpec:
    """The default layout for a network: four 84×84 frames and 6 choices, or 17 numbers and 6 Box actions."""
    return _IMAGES if parse_network(network).is_cnn else _FLAT


def environment_spec(config: TrainConfig) -> EnvSpec:
    """The layout of a configuration's environment. Raises EnvError, MissingExtraError."""
    environment = make_env(config, 1)
    environment.close()
    return environment.spec


def _untrained(config: TrainConfig, spec: EnvSpec) -> TrainedRun:
    algorithm = make_algorithm(config.replace(seed=_SEED), spec, torch.device("cpu"))
    return TrainedRun.of(algorithm, Path(), config, spec, 0, 0)


def _on_random_inputs(config: TrainConfig, spec: EnvSpec) -> MeasuredPolicy:
    run = _untrained(config, spec)
    rng = np.random.default_rng(_SEED)
    shapes = {"observations": spec.observation_shape}
    shapes |= {f"state_{i}": shape for i, shape in enumerate(run.policy.state_shapes)}

    def draw(name: str, rows: int) -> npt.NDArray[np.generic]:
        shape = (rows, *shapes[name])
        if name == "observations" and spec.observation_dtype == "uint8":
            return rng.integers(0, 256, shape, np.uint8)
        drawn = rng.standard_normal(shape, np.float32)
        return drawn if name == "observations" else np.tanh(drawn)

    calibration, measured = ({name: draw(name, rows) for name in shapes} for rows in _row_counts(spec))
    return MeasuredPolicy(run, "random", "random numbers", calibration, measured)


def _trained(run: TrainedPolicy) -> MeasuredPolicy:
    """On the rows that the bar is on."""
    judged = judged_inputs(run, _SEED)
    measured = {name: np.concatenate([rows[name] for rows in judged.values()]) for name in run.example_inputs}
    source = "environment" if run.recorded is None else "recorded observations"
    return MeasuredPolicy(run, "trained", source, calibration_inputs(run, FULL_PRECISION, _SEED), measured)


def _played(run: TrainedPolicy) -> MeasuredPolicy:
    """On inputs from playing it."""
    calibration_rows, held_out_rows = _row_counts(run.spec)
    rows = calibration_rows + held_out_rows
    inputs = collect_inputs(run, rows, _SEED, policy=run.compress(FULL_PRECISION), steps=_COLLECTING_STEPS)
    measured, calibration = held_out(inputs, held_out_rows)
    return MeasuredPolicy(run, "random", "environment", calibration, measured)


def _row_counts(spec: EnvSpec) -> tuple[int, int]:
    """Rows for calibration and for mismatch; fewer for images, which take memory."""
    return (128, 128) if spec.has_images else (512, 512)
