"""A scheme as a Compressor: reductions that make the module smaller, then one format; and the plan bound by it."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from accel.compressors.arrays import Array, State
from accel.compressors.artifact import CompressedPolicy, Json
from accel.compressors.cpu import cpu_features
from accel.compressors.fp32 import Float32
from accel.compressors.graph.policy_graph import PolicyGraph, export_policy
from accel.compressors.method_arguments import check_order
from accel.compressors.methods import BoundReduction, Encoder, Format, Method, Reduction
from accel.compressors.module_state import read_state
from accel.compressors.plan import Compressor, Plan, PlanStatistics
from accel.compressors.quantisation.ranges import Range, check_inputs
from accel.compressors.scheme import METHODS, Context, Scheme, parse_scheme

if TYPE_CHECKING:
    import torch

    from accel.compressors.scheme import Divergence, StudentFactory


def make_compressor(
    text: str,
    *,
    cpu: Iterable[str] | None = None,
    student_factory: StudentFactory | None = None,
    divergence: Divergence | None = None,
) -> Compressor:
    """The Compressor of a scheme's text.

    Args:
        text: the scheme.
        cpu: features of the CPU that will act (``accel.compressors.cpu``), which choose between variants of int8; this
            machine's when None.
        student_factory: see ``Context``; only ``distill`` needs it.
        divergence: see ``Context``; only ``distill`` needs it.

    Raises:
        SchemeError: malformed text, an unknown name, an argument out of range, methods that cannot be combined.
    """
    scheme = parse_scheme(text)
    context = Context(cpu_features() if cpu is None else frozenset(cpu), student_factory, divergence)
    return compose([_factory(method.name)(method.arguments, context) for method in scheme.methods], scheme)


def _factory(name: str) -> Callable[[tuple[str, ...], Context], Method]:
    module, _, attribute = METHODS[name].partition(":")
    return cast("Callable[[tuple[str, ...], Context], Method]", getattr(importlib.import_module(module), attribute))


def compose(methods: Sequence[Method], scheme: Scheme | None = None) -> Compressor:
    """Chain methods in their order; without a format the numbers stay ``fp32``.

    Args:
        methods: such as ``[Prune(0.5), Int8()]``.
        scheme: the text form that artifacts carry; that of the methods when None.

    Raises:
        SchemeError: see ``check_order``.
    """
    scheme = Scheme(tuple(method.method for method in methods)) if scheme is None else scheme
    reductions = [method for method in methods if isinstance(method, Reduction)]
    formats = [method for method in methods if isinstance(method, Format)]
    check_order(scheme, {method.method.name for method in formats})
    return Pipeline(scheme, tuple(reductions), formats[0] if formats else Float32())


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
        graph: PolicyGraph | None = None,
    ) -> Plan:
        """See ``Compressor.bind``."""
        smaller, bound = module, []
        for reduction in self.reductions:
            bound.append(reduction.reduce(smaller, example_inputs))
            smaller = bound[-1].module
        if graph is None or bound:
            graph = export_policy(smaller, example_inputs, output_names)
        plan = PipelinePlan(self.scheme, tuple(bound), graph, self.format.encoder(graph), dict(metadata or {}), module)
        if calibration is not None:
            plan.calibrate(calibration)
        return plan


class PipelinePlan:
    """A bound pipeline; see ``Plan``.

    Attributes:
        graph: the exported policy.
        encoder: the bound format.
        reductions: compute the graph's parameters from the module's own, in order.
        reductions_lock: held while an update copies reductions, and while ``refit`` changes them in place.
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
        self._module = module
        self.reductions = reductions
        self.graph = graph
        self.encoder = encoder
        contract = (graph.inputs, graph.outputs, metadata, encoder.cpu_features)
        self._contract = CompressedPolicy(scheme, 0, *contract, b"", encoder.optimisation, encoder.variant)
        self.reductions_lock = threading.Lock()

    @property
    def scheme(self) -> str:
        """See ``Plan.scheme``."""
        return self._scheme

    @property
    def statistics(self) -> PlanStatistics:
        """See ``Plan.statistics``."""
        return self.encoder.statistics

    def refresh(self, module: torch.nn.Module, version: int) -> CompressedPolicy:
        """See ``Plan.refresh``."""
        self._module = module
        return self._contract.with_model(self.encoder.encode(self.begin_update(module).parameters), version)

    def fit(self, module: torch.nn.Module, inputs: Mapping[str, Array], version: int) -> CompressedPolicy:
        """See ``Plan.fit``."""
        self._module = module
        return self._contract.with_model(self.encoder.fit(self.begin_update(module).parameters, inputs), version)

    def calibrate(self, inputs: Mapping[str, Array]) -> None:
        """See ``Plan.calibrate``."""
        update = self.begin_update(self._module)
        update.calibrate(inputs)
        update.commit()

    def recalibrate_on_drift(self, inputs: Mapping[str, Array]) -> int:
        """See ``Plan.recalibrate_on_drift``."""
        update = self.begin_update(self._module)
        drifted = update.recalibrate_on_drift(inputs)
        update.commit()
        return drifted

    def refit(self, module: torch.nn.Module, inputs: Mapping[str, Array]) -> None:
        """See ``Plan.refit``."""
        with self.reductions_lock:
            if self.reductions:
                check_inputs(self.graph.inputs, inputs)
                state: State = read_state(module)
                for reduction in self.reductions:
                    reduction.refit(state, inputs)
                    state = reduction.project(state)

    def reselect(self, module: torch.nn.Module) -> None:
        """See ``Plan.reselect``."""
        self._module = module
        update = self.begin_update(module)
        update.reselect()
        update.commit()

    def distill_step(self, module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> float | None:
        """See ``Plan.distill_step``."""
        update = self.begin_update(module)
        loss = update.distill_step(inputs)
        update.commit()
        return loss

    def begin_update(self, module: torch.nn.Module) -> PipelineUpdate:
        """See ``Plan.begin_update``."""
        return PipelineUpdate(self, module)


class PipelineUpdate:
    """See ``PlanUpdate``; works on copies of the plan's reductions.

    Attributes:
        changed: see ``PlanUpdate``.
    """

    def __init__(self, plan: PipelinePlan, module: torch.nn.Module) -> None:
        self.changed = False
        self._plan = plan
        self._module = module
        self._reductions = list(plan.reductions)
        self._ranges: list[Mapping[str, Range]] = []
        self._copied: set[int] = set()
        self._state: State | None = None
        self._parameters: Mapping[str, Array] | None = None

    @property
    def reductions(self) -> tuple[BoundReduction, ...]:
        """The plan's reductions; the changed ones are copies."""
        return tuple(self._reductions)

    @property
    def parameters(self) -> Mapping[str, Array]:
        """The parameters of the plan's graph, with this update's changes."""
        if self._parameters is None:
            state = self._policy_state()
            for reduction in self._reductions:
                state = reduction.project(state)
            self._parameters = self._plan.graph.read(state)
        return self._parameters

    def distill_step(self, inputs: Mapping[str, torch.Tensor]) -> float | None:
        """See ``Plan.distill_step``."""
        loss: float | None = None
        for index, reduction in enumerate(self._reductions):
            if reduction.has_student:
                loss, self._parameters = self._own(index).distill_step(self._module, inputs), None
        return loss

    def reselect(self) -> None:
        """See ``Plan.reselect``."""
        self._parameters = None
        if not self._reductions:
            return
        state = self._policy_state()
        for index in range(len(self._reductions)):
            reduction = self._own(index)
            reduction.reselect(state)
            state = reduction.project(state)
        self._parameters = self._plan.graph.read(state)
        self.changed = True

    def calibrate(
        self, inputs: Mapping[str, Array], *, reselect: bool = False, between: Callable[[], object] = lambda: None
    ) -> None:
        """See ``PlanUpdate.calibrate``."""
        if self._reductions:
            check_inputs(self._plan.graph.inputs, inputs)
            state = self._policy_state()
            for index in range(len(self._reductions)):
                reduction = self._own(index)
                has_selected = reduction.observe(state, inputs)
                if reselect and not has_selected:
                    between()
                    reduction.reselect(state)
                state = reduction.project(state)
                between()
            self._parameters = self._plan.graph.read(state)
            self.changed = True
        self._add_ranges(self._plan.encoder.measure(self.parameters, inputs))

    def recalibrate_on_drift(self, inputs: Mapping[str, Array]) -> int:
        """See ``Plan.recalibrate_on_drift``."""
        encoder = self._plan.encoder
        measured = encoder.measure(self.parameters, inputs, quick=True)
        drifted = encoder.drifted(measured)
        if drifted or not encoder.statistics.calibrations:
            # a few rows show what has to be covered, not what no longer occurs
            self._add_ranges(encoder.covering(measured))
        return drifted

    def commit(self) -> None:
        """See ``PlanUpdate.commit``."""
        self._plan.reductions = self.reductions
        for measured in self._ranges:
            self._plan.encoder.merge_ranges(measured)

    def _add_ranges(self, measured: Mapping[str, Range]) -> None:
        self._ranges.append(measured)
        self.changed |= bool(measured)

    def _policy_state(self) -> State:
        if self._state is None:
            self._state = read_state(self._module, None if self._reductions else self._plan.graph.leaves)
        return self._state

    def _own(self, index: int) -> BoundReduction:
        """A reduction's copy, made on first use."""
        if index not in self._copied:
            with self._plan.reductions_lock:
                self._reductions[index] = self._reductions[index].copy()
            self._copied.add(index)
        return self._reductions[index]
