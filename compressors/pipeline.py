"""A scheme as a Compressor: reductions that make the module smaller, then one format."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from accel.compressors.arrays import Array
from accel.compressors.artifact import Json
from accel.compressors.cpu import cpu_features
from accel.compressors.fp32 import FloatEncoder
from accel.compressors.graph.policy_graph import PolicyGraph, export_policy
from accel.compressors.method_arguments import check_scheme, parse_arguments
from accel.compressors.methods import Encoder, Reduction
from accel.compressors.plan import Plan
from accel.compressors.scheme import FORMATS, METHODS, MethodText

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
    scheme = check_scheme(text)
    features = cpu_features() if cpu is None else frozenset(cpu)
    context = {"cpu": features, "student_factory": student_factory, "divergence": divergence}
    reductions = [_bound(method, context) for method in scheme.methods if method.name not in FORMATS]
    formats = [_bound(method, context) for method in scheme.methods if method.name in FORMATS]
    return Compressor(str(scheme), tuple(reductions), formats[0] if formats else FloatEncoder)


def _bound(method: MethodText, context: Mapping[str, object]) -> Callable[..., Any]:
    """What binds a method to a policy, with the method's arguments and with what it takes of ``context``, by name."""
    module, _, name = METHODS[method.name].partition(":")
    bind = cast("Callable[..., object]", getattr(importlib.import_module(module), name))
    given = {**context, "scheme": str(method)}
    taken = inspect.signature(bind).parameters.keys() & given.keys()
    return partial(bind, *parse_arguments(method), **{name: given[name] for name in taken})


@dataclass(frozen=True)
class Compressor:
    """A compression scheme, not yet bound to a policy.

    Attributes:
        scheme: its text form.
        reductions: (module, example inputs) to a smaller module, in this order.
        format: stores and multiplies the numbers of what is left.
    """

    scheme: str
    reductions: tuple[Callable[[torch.nn.Module, Mapping[str, torch.Tensor]], Reduction], ...]
    format: Callable[[PolicyGraph], Encoder]

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
        smaller, bound = module, list[Reduction]()
        for reduce in self.reductions:
            bound.append(reduce(smaller, example_inputs))
            smaller = bound[-1].module
        if graph is None or bound:
            graph = export_policy(smaller, example_inputs, output_names)
        plan = Plan(self.scheme, tuple(bound), graph, self.format(graph), dict(metadata or {}), module)
        if calibration is not None:
            plan.calibrate(calibration)
        return plan
