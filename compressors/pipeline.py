"""Compose a scheme: reductions that make the module smaller, then one format that says how its numbers are stored."""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from compressors.arrays import Array, State
from compressors.artifact import CompressedPolicy, Json, Optimisation
from compressors.errors import SchemeError
from compressors.graph.policy_graph import PolicyGraph, export_policy
from compressors.plan import Compressor, Plan, PlanStatistics
from compressors.quantisation.ranges import Range
from compressors.revision import Revision, follow
from compressors.scheme import MethodText, Scheme

if TYPE_CHECKING:
    import torch


class Encoder(ABC):
    """A bound format: writes a graph's parameters into the bytes of a model."""

    optimisation: Optimisation = "none"
    cpu_features: tuple[str, ...] = ()
    variant: str = ""

    @abstractmethod
    def encode(self, parameters: Mapping[str, Array]) -> bytes:
        """The serialised model; raises WeightsError when a parameter is not finite."""

    def measure(self, parameters: Mapping[str, Array], inputs: Mapping[str, Array]) -> Mapping[str, Range]:
        """Ranges of activations on recent inputs; changes nothing, so that any thread may measure.

        Raises:
            CalibrationError: see ``Plan.calibrate``.
        """
        return {}

    def drifted(self, seen: Mapping[str, Range]) -> int:
        """How many activations left their running range by more than is tolerated."""
        return 0

    def covering(self, seen: Mapping[str, Range]) -> Mapping[str, Range]:
        """Measured ranges together with the running ones: taken in, they widen what drifted and narrow nothing."""
        return seen

    def widen(self, seen: Mapping[str, Range]) -> None:  # noqa: B027 - not every format has ranges
        """Take measured ranges into the running ones."""

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

    def check_chain(self, reductions: Sequence[Reduction]) -> None:
        """Whether the format can follow these reductions. Raises SchemeError: names one that it cannot follow."""


class Reduction(Method):
    """A smaller module in place of the policy: ``prune``, ``lowrank``, ``distill``."""

    @abstractmethod
    def reduce(self, module: torch.nn.Module, example_inputs: Mapping[str, torch.Tensor]) -> BoundReduction:
        """Build the smaller module. Raises UnsupportedLayerError."""


class BoundReduction(ABC):
    """A policy's smaller module, and how its numbers follow from the policy's.

    Attributes:
        module: the smaller module, exported once; its own weights do not matter.
        prefix: what names of the policy's own layers begin with in the smaller module.
        learns: whether it has a student to train.
    """

    module: torch.nn.Module
    learns: bool = False
    prefix: str = ""

    @abstractmethod
    def project(self, state: State) -> State:
        """The smaller module's parameters and buffers for those of the policy; fast."""

    def copy(self) -> Self:
        """Another one, to be worked on in another thread while this one projects."""
        return copy.deepcopy(self)

    def rechoose(self, state: State, gradients: State) -> None:  # noqa: B027 - not every reduction chooses
        """Choose again for the policy's present numbers and, where there are any, their gradients."""

    def observe(self, state: State, inputs: Mapping[str, Array]) -> bool:
        """Look at recent real inputs ([N, *shape] by name) and the policy's present numbers; not every reduction does.

        Returns:
            Whether it has chosen anew by them, as the first inputs may make it.
        """
        return False

    def follow(self, state: State, inputs: Mapping[str, Array]) -> None:  # noqa: B027 - not every reduction looks
        """Like ``observe``, for what must keep up with the weights between choices; without it nothing is due."""

    def train_step(self, module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> float | None:
        """See ``Plan.train_step``."""
        return None

    def whole(self, projected: State, state: State) -> State | None:
        """The policy's own numbers, ``state``, made such that it computes what the smaller module does with
        ``projected``: zeros for what is gone. None where the smaller module's layers are not the policy's."""
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
        plan = PipelinePlan(self.scheme, tuple(bound), graph, self.format.encoder(graph), dict(metadata or {}), module)
        if calibration is not None:
            plan.calibrate(calibration)
        return plan


class PipelinePlan:
    """A bound pipeline.

    Attributes:
        graph: what was exported.
        encoder: the bound format.
        copying: held while a revision copies reductions, or one changes in place.
    """

    def __init__(
        self,
        scheme: str,
        reductions: tuple[BoundReduction, ...],
        graph: PolicyGraph,
        encoder: Encoder,
        metadata: Mapping[str, Json],
        module: torch.nn.Module,
    ) -> None:
        self._scheme = scheme
        self._reductions = reductions
        self._module = module
        self.graph = graph
        self.encoder = encoder
        contract = (graph.inputs, graph.outputs, metadata, encoder.cpu_features)
        self._contract = CompressedPolicy(scheme, 0, *contract, b"", encoder.optimisation, encoder.variant)
        self.copying = threading.Lock()

    @property
    def scheme(self) -> str:
        """See ``Plan.scheme``."""
        return self._scheme

    @property
    def statistics(self) -> PlanStatistics:
        """See ``Plan.statistics``."""
        return self.encoder.statistics

    @property
    def reductions(self) -> tuple[BoundReduction, ...]:
        """What makes the graph's parameters from the module's own, in order."""
        return self._reductions

    def refresh(self, module: torch.nn.Module, version: int) -> CompressedPolicy:
        """See ``Plan.refresh``."""
        self._module = module
        return self._contract.with_model(self.encoder.encode(self.revise(module).parameters), version)

    def calibrate(self, inputs: Mapping[str, Array]) -> None:
        """See ``Plan.calibrate``."""
        revision = self.revise(self._module)
        revision.calibrate(inputs)
        self.adopt(revision)

    def recalibrate_on_drift(self, inputs: Mapping[str, Array]) -> int:
        """See ``Plan.recalibrate_on_drift``."""
        revision = self.revise(self._module)
        drifted = revision.recalibrate_on_drift(inputs)
        self.adopt(revision)
        return drifted

    def follow(self, module: torch.nn.Module, inputs: Mapping[str, Array]) -> None:
        """See ``Plan.follow``."""
        with self.copying:
            follow(self, module, inputs)

    def rechoose(self, module: torch.nn.Module) -> None:
        """See ``Plan.rechoose``."""
        self._module = module
        revision = self.revise(module)
        revision.rechoose()
        self.adopt(revision)

    def train_step(self, module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> float | None:
        """See ``Plan.train_step``."""
        revision = self.revise(module)
        loss = revision.train_step(inputs)
        self.adopt(revision)
        return loss

    def revise(self, module: torch.nn.Module) -> Revision:
        """See ``Plan.revise``."""
        return Revision(self, module)

    def adopt(self, revision: Revision) -> None:
        """See ``Plan.adopt``."""
        self._reductions = revision.reductions
        for seen in revision.ranges:
            self.encoder.widen(seen)


def compose(scheme: Scheme, methods: Sequence[Method]) -> Compressor:
    """Chain methods in the scheme's order; without a format the numbers stay ``fp32``.

    Raises:
        SchemeError: more than one format, one that is not last, or a ``distill`` that is not first.
    """
    from compressors.fp32 import Float32

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
    if formats:
        formats[0].check_chain(reductions)
    return Pipeline(scheme, tuple(reductions), formats[0] if formats else Float32())
