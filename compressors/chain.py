"""Compose a scheme: reductions that make the module smaller, then one format that says how its numbers are stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from compressors.artifact import CompressedPolicy, Json, Optimisation
from compressors.base import Array, Compressor, Plan, State
from compressors.errors import SchemeError
from compressors.graph import PolicyGraph, export_policy
from compressors.scheme import MethodText, Scheme
from compressors.state import read_state

if TYPE_CHECKING:
    import torch


class Encoder(ABC):
    """A bound format: writes a graph's parameters into the bytes of a model."""

    optimisation: Optimisation = "none"
    cpu_features: tuple[str, ...] = ()

    @abstractmethod
    def encode(self, parameters: Mapping[str, Array]) -> bytes:
        """The serialised model; raises WeightsError when a parameter is not finite."""

    def calibrate(self, parameters: Mapping[str, Array], inputs: Mapping[str, Array]) -> None:  # noqa: B027
        """Take recent inputs into the activation ranges; a format without ranges has nothing to do."""


class Format(ABC):
    """How numbers are stored and multiplied: ``fp32``, ``int8``…; also a Compressor by itself."""

    @property
    @abstractmethod
    def method(self) -> MethodText:
        """Name and arguments in the scheme."""

    @abstractmethod
    def encoder(self, graph: PolicyGraph, calibration: Mapping[str, Array] | None) -> Encoder:
        """Lay out the model of a graph. Raises UnsupportedLayerError, CalibrationError."""

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
        pipeline = Pipeline(Scheme((self.method,)), self)
        return pipeline.bind(module, example_inputs, calibration, output_names=output_names, metadata=metadata)


Method = Format


@dataclass(frozen=True)
class Pipeline:
    """A whole scheme as one Compressor."""

    parsed: Scheme
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
        graph = export_policy(module, example_inputs, output_names)
        parameters = graph.read(read_state(module, graph.leaves))
        encoder = self.format.encoder(graph, None)
        if calibration is not None:
            encoder.calibrate(parameters, calibration)
        return PipelinePlan(self.scheme, graph, encoder, parameters, dict(metadata or {}))


@dataclass
class PipelinePlan:
    """A bound pipeline."""

    scheme: str
    graph: PolicyGraph
    encoder: Encoder
    _parameters: Mapping[str, Array]
    metadata: Mapping[str, Json] = field(default_factory=dict)

    def refresh(self, module: torch.nn.Module, version: int) -> CompressedPolicy:
        """See ``Plan.refresh``."""
        self._parameters = self.graph.read(self._state(module))
        return CompressedPolicy(
            scheme=self.scheme,
            version=version,
            inputs=self.graph.inputs,
            outputs=self.graph.outputs,
            metadata=self.metadata,
            cpu_features=self.encoder.cpu_features,
            model=self.encoder.encode(self._parameters),
            optimisation=self.encoder.optimisation,
        )

    def calibrate(self, inputs: Mapping[str, Array]) -> None:
        """See ``Plan.calibrate``; activations are those of the weights last refreshed."""
        self.encoder.calibrate(self._parameters, inputs)

    def _state(self, module: torch.nn.Module) -> State:
        return read_state(module, self.graph.leaves)


def compose(scheme: Scheme, methods: Sequence[Method]) -> Compressor:
    """Chain methods in the scheme's order.

    Raises:
        SchemeError: more than one format.
    """
    formats = [method for method in methods if isinstance(method, Format)]
    if len(formats) != 1:
        raise SchemeError(f"scheme {str(scheme)!r} has {len(formats)} number formats; it needs exactly one, at its end")
    return Pipeline(scheme, formats[0])
