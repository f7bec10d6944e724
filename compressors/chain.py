"""Compose a scheme: reductions that make the module smaller, then one format that says how its numbers are stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compressors.artifact import CompressedPolicy, Json, Optimisation
from compressors.base import Array, Compressor, Plan, PlanStatistics, State
from compressors.errors import SchemeError
from compressors.graph import PolicyGraph, export_policy
from compressors.ranges import check_inputs
from compressors.scheme import MethodText, Scheme
from compressors.state import read_gradients, read_state

if TYPE_CHECKING:
    import torch


class Encoder(ABC):
    """A bound format: writes a graph's parameters into the bytes of a model."""

    optimisation: Optimisation = "none"
    cpu_features: tuple[str, ...] = ()

    @abstractmethod
    def encode(self, parameters: Mapping[str, Array]) -> bytes:
        """The serialised model; raises WeightsError when a parameter is not finite."""

    def calibrate(
        self, parameters: Mapping[str, Array], inputs: Mapping[str, Array], only_on_drift: bool = False
    ) -> int:
        """Take recent inputs into the activation ranges; returns how many activations had left theirs."""
        return 0

    @property
    def statistics(self) -> PlanStatistics:
        """See ``Plan.statistics``."""
        return PlanStatistics()


class Method(ABC):
    """One part of a scheme; also a Compressor by itself."""

    @property
    @abstractmethod
    def method(self) -> MethodText:
        """Name and arguments in the scheme."""

    @property
    def scheme(self) -> str:
        """The scheme's text form."""
        return str(self.method)

    def bind(
        self,
        module: torch.nn.Module,
        example_inputs: Mapping[str, torch.Tensor],
        calibration: Mapping[str, Array] | None = None,
        *,
        output_names: Sequence[str],
        metadata: Mapping[str, Json] | None = None,
    ) -> Plan:
        """See ``Compressor.bind``."""
        whole = compose(Scheme((self.method,)), [self])
        return whole.bind(module, example_inputs, calibration, output_names=output_names, metadata=metadata)


class Format(Method):
    """How numbers are stored and multiplied: ``fp32``, ``int8``…"""

    @abstractmethod
    def encoder(self, graph: PolicyGraph) -> Encoder:
        """Lay out the model of a graph. Raises UnsupportedLayerError."""


class Reduction(Method):
    """A smaller module in place of the policy: ``prune``, ``lowrank``, ``distill``."""

    @abstractmethod
    def reduce(self, module: torch.nn.Module, example_inputs: Mapping[str, torch.Tensor]) -> BoundReduction:
        """Build the smaller module. Raises UnsupportedLayerError."""


class BoundReduction(ABC):
    """A policy's smaller module, and how its numbers follow from the policy's.

    Attributes:
        module: the smaller module, exported once; its own weights do not matter.
    """

    module: torch.nn.Module

    @abstractmethod
    def project(self, state: State) -> State:
        """The smaller module's parameters and buffers for those of the policy; fast."""

    def rechoose(self, state: State, gradients: State) -> None:  # noqa: B027 - not every reduction chooses
        """Choose again for the policy's present numbers and, where there are any, their gradients."""

    def observe(self, state: State, inputs: Mapping[str, Array]) -> None:  # noqa: B027 - not every reduction looks
        """Look at recent real inputs ([N, *shape] by name) and the policy's present numbers."""

    def train_step(self, module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> float | None:
        """See ``Plan.train_step``."""
        return None


@dataclass(frozen=True)
class Pipeline:
    """A whole scheme as one Compressor."""

    parsed: Scheme
    reductions: tuple[Reduction, ...]
    format: Format

    @property
    def scheme(self) -> str:
        """The scheme's text form."""
        return str(self.parsed)

    def bind(
        self,
        module: torch.nn.Module,
        example_inputs: Mapping[str, torch.Tensor],
        calibration: Mapping[str, Array] | None = None,
        *,
        output_names: Sequence[str],
        metadata: Mapping[str, Json] | None = None,
    ) -> Plan:
        """See ``Compressor.bind``."""
        smaller, bound = module, []
        for reduction in self.reductions:
            bound.append(reduction.reduce(smaller, example_inputs))
            smaller = bound[-1].module
        graph = export_policy(smaller, example_inputs, output_names)
        plan = PipelinePlan(self.scheme, tuple(bound), graph, self.format.encoder(graph), dict(metadata or {}))
        plan.load(module)
        if calibration is not None:
            plan.calibrate(calibration)
        return plan


class PipelinePlan:
    """A bound pipeline.

    Attributes:
        graph: what was exported.
        encoder: the bound format.
    """

    def __init__(
        self,
        scheme: str,
        reductions: tuple[BoundReduction, ...],
        graph: PolicyGraph,
        encoder: Encoder,
        metadata: Mapping[str, Json],
    ) -> None:
        self._scheme = scheme
        self._reductions = reductions
        self._metadata = metadata
        self._parameters: Mapping[str, Array] = {}
        self._states: list[State] = []
        self.graph = graph
        self.encoder = encoder

    @property
    def scheme(self) -> str:
        """See ``Plan.scheme``."""
        return self._scheme

    @property
    def statistics(self) -> PlanStatistics:
        """See ``Plan.statistics``."""
        return self.encoder.statistics

    @property
    def has_reductions(self) -> bool:
        """Whether the graph's parameters are other than the module's own."""
        return bool(self._reductions)

    def load(self, module: torch.nn.Module) -> None:
        """Take the module's present weights for calibration, without an artifact."""
        self._parameters = self.graph.read(self._state(module))

    def refresh(self, module: torch.nn.Module, version: int) -> CompressedPolicy:
        """See ``Plan.refresh``."""
        self.load(module)
        return CompressedPolicy(
            scheme=self._scheme,
            version=version,
            inputs=self.graph.inputs,
            outputs=self.graph.outputs,
            metadata=self._metadata,
            cpu_features=self.encoder.cpu_features,
            model=self.encoder.encode(self._parameters),
            optimisation=self.encoder.optimisation,
        )

    def calibrate(self, inputs: Mapping[str, Array]) -> None:
        """See ``Plan.calibrate``; activations are those of the weights last refreshed."""
        self._observe(inputs)
        self.encoder.calibrate(self._parameters, inputs)

    def recalibrate_on_drift(self, inputs: Mapping[str, Array]) -> int:
        """See ``Plan.recalibrate_on_drift``."""
        return self.encoder.calibrate(self._parameters, inputs, only_on_drift=True)

    def rechoose(self, module: torch.nn.Module) -> None:
        """See ``Plan.rechoose``."""
        if self._reductions:
            state: State = read_state(module)
            gradients: State = read_gradients(module)
            for reduction in self._reductions:
                reduction.rechoose(state, gradients)
                state, gradients = reduction.project(state), {}
        self.load(module)

    def train_step(self, module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> float | None:
        """See ``Plan.train_step``."""
        losses = [reduction.train_step(module, inputs) for reduction in self._reductions]
        return next((loss for loss in losses if loss is not None), None)

    def _state(self, module: torch.nn.Module) -> State:
        if not self._reductions:
            return read_state(module, self.graph.leaves)
        state: State = read_state(module)
        self._states = []
        for reduction in self._reductions:
            self._states.append(state)
            state = reduction.project(state)
        return state

    def _observe(self, inputs: Mapping[str, Array]) -> None:
        """Show inputs to the reductions, each behind the ones before it, and take over what they learn."""
        if not self._reductions:
            return
        check_inputs(self.graph.inputs, inputs)
        state = self._states[0]
        for reduction in self._reductions:
            reduction.observe(state, inputs)
            state = reduction.project(state)
        self._parameters = self.graph.read(state)


def compose(scheme: Scheme, methods: Sequence[Method]) -> Compressor:
    """Chain methods in the scheme's order; without a format the numbers stay ``fp32``.

    Raises:
        SchemeError: more than one format, one that is not last, or a ``distill`` that is not first.
    """
    from compressors.float import Float32

    reductions = [method for method in methods if isinstance(method, Reduction)]
    formats = [method for method in methods if isinstance(method, Format)]
    if len(formats) > 1:
        raise SchemeError(f"scheme {str(scheme)!r} has {len(formats)} number formats; keep one, at its end")
    if formats and methods[-1] is not formats[0]:
        raise SchemeError(f"in scheme {str(scheme)!r} {formats[0].scheme!r} must come last")
    names = [reduction.method.name for reduction in reductions]
    if "distill" in names[1:]:
        raise SchemeError(f"in scheme {str(scheme)!r} distill replaces the whole policy and must come first")
    if len(set(names)) < len(names):
        raise SchemeError(f"scheme {str(scheme)!r} has a method twice")
    return Pipeline(scheme, tuple(reductions), formats[0] if formats else Float32())
