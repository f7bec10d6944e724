"""A scheme as a Compressor: reductions that make the module smaller, then one format."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from accel.compressors.arrays import Array
from accel.compressors.artifact import Json
from accel.compressors.cpu import cpu_features
from accel.compressors.fp32 import Float32
from accel.compressors.graph.policy_graph import PolicyGraph, export_policy
from accel.compressors.method_arguments import check_order, parse_arguments
from accel.compressors.methods import Format, Method, Reduction
from accel.compressors.plan import Plan
from accel.compressors.scheme import METHODS, MethodText, Scheme, parse_scheme

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
        student_factory: for ``distill``: (size, policy) to a student with the policy's inputs and outputs.
        divergence: for ``distill``: (student's distribution parameters, policy's), both [N, P], to a scalar.

    Raises:
        SchemeError: malformed text, an unknown name, an argument out of range, methods that cannot be combined.
    """
    scheme = parse_scheme(text)
    features = cpu_features() if cpu is None else frozenset(cpu)
    context = {"cpu": features, "student_factory": student_factory, "divergence": divergence}
    return compose([_make(method, context) for method in scheme.methods], scheme)


def _make(method: MethodText, context: Mapping[str, object]) -> Method:
    """A method with its own arguments, and with what it takes of ``context``, by name."""
    module, _, name = METHODS[method.name].partition(":")
    kind = cast("Callable[..., Method]", getattr(importlib.import_module(module), name))
    taken = inspect.signature(kind).parameters.keys() & context.keys()
    return kind(*parse_arguments(method), **{name: context[name] for name in taken})


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
    check_order(scheme)
    return Compressor(scheme, tuple(reductions), formats[0] if formats else Float32())


@dataclass(frozen=True)
class Compressor:
    """A compression scheme, not yet bound to a policy.

    Attributes:
        parsed: the scheme.
        reductions: make the module smaller, in this order.
        format: stores and multiplies the numbers of what is left.
    """

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
        """Export, fuse and lay out a policy; slow, once per architecture.

        Args:
            module: the acting policy; its forward takes the inputs in order and returns the outputs in order.
            example_inputs: name to tensor [N, *shape], in the order of forward's arguments; N is any.
            calibration: name to array [N, *shape] of real inputs, for schemes with activation ranges.
            output_names: names of the outputs, in order.
            metadata: plain JSON carried by every artifact.
            graph: what ``export_policy`` makes of these, where it is there already; schemes that reduce the module
                export what they make of it.

        Raises:
            GraphError: the module cannot be exported so that its weights can be refreshed.
            UnsupportedLayerError: it has a layer that this scheme cannot compress.
            CalibrationError: the scheme needs calibration inputs and got none, or unusable ones.
        """
        smaller, bound = module, []
        for reduction in self.reductions:
            bound.append(reduction.reduce(smaller, example_inputs))
            smaller = bound[-1].module
        if graph is None or bound:
            graph = export_policy(smaller, example_inputs, output_names)
        plan = Plan(self.scheme, tuple(bound), graph, self.format.encoder(graph), dict(metadata or {}), module)
        if calibration is not None:
            plan.calibrate(calibration)
        return plan
