"""``qat``: quantisation-aware training. Its artifact is the ``int8`` graph, and its options are those of ``int8``.

Scales and ranges are those of the bound plan: the learner computes with the weight and bias codes that the next refresh
writes, and adds them as integers, as the kernels do. ``prune(r)+qat`` prunes the learner's own weights: those of
removed units are set to zero and stay zero.
Source: Jacob et al. 2018, arXiv:1712.05877, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import torch
from onnx import NodeProto
from torch import Tensor, nn

from accel.compressors.errors import CalibrationError, SchemeError, UnsupportedLayerError
from accel.compressors.graph.wiring import layer_name
from accel.compressors.int8.integer_graph import IntegerLayer, SumOfCodes
from accel.compressors.int8.static import Int8Encoder
from accel.compressors.module_state import load_state, named_tensors, read_state
from accel.compressors.plan import Plan
from accel.compressors.qat.arithmetic import Scaled
from accel.compressors.qat.forward_pass import QuantisationRules, QuantisedLayer, QuantisedPass
from accel.compressors.scheme import parse_scheme

NAME = "qat"


class FakeQuantiser:
    """Computes a policy as the int8 graph of a bound plan does, with gradients for the policy's own weights.

    ::

        quantiser = FakeQuantiser(plan)
        output = quantiser(policy, observations)

    Attributes:
        rules: the layers and additions that are quantised.
    """

    def __init__(self, plan: Plan, policy: nn.Module) -> None:
        """Use a plan's scales, including those of later calibrations.

        Args:
            plan: of a scheme that ends in ``qat`` or ``int8``.
            policy: the module that it is bound to.
        Raises:
            SchemeError: the scheme has another format, or replaces the policy's layers.
            UnsupportedLayerError: a layer cannot be fake-quantised; names it and the remedy.
        """
        encoder = plan.encoder
        if not isinstance(encoder, Int8Encoder):
            raise SchemeError(f"quantisation-aware training follows int8 plans, not {plan.scheme!r}")
        if len(plan.reductions) > 1 or any(reduction.zero_filled({}, {}) is None for reduction in plan.reductions):
            raise SchemeError(
                f"quantisation-aware training computes with the policy's own layers, which {plan.scheme!r} replaces; "
                f"use {NAME} alone or after prune"
            )
        self._plan = plan
        self._encoder = encoder
        self._masks: dict[str, Tensor] = {}
        layers = tuple(self._layer(layer, policy) for layer in encoder.layers)
        self.rules = QuantisationRules(layers, tuple(encoder.sums), self._coding, encoder.weight_codes)
        _check_rules(self.rules, policy, plan.graph.nodes)

    def __call__(self, module: nn.Module, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The module's outputs as the int8 graph computes them.

        Args:
            module: the acting policy.
            inputs: [N, *shape], in the order of its forward.
        Raises:
            CalibrationError: the plan has no ranges yet.
        """
        result = self.start(dict(module.named_parameters())).call("", module, *inputs)
        return result if isinstance(result, tuple) else (cast("Tensor", result),)

    def start(self, tensors: Mapping[str, Tensor]) -> QuantisedPass:
        """A pass over the policy with these parameters by name; see ``QuantisedPass``. Raises as ``__call__``."""
        masked = {name: tensors[name] * mask for name, mask in self._masks.items()}
        return QuantisedPass(self.rules, {**tensors, **masked})

    def prune(self, module: nn.Module) -> None:
        """Prune the module itself: set the parameters of removed channels to zero and apply the compensation.

        A later selection then selects the same channels. Calibrate the plan afterwards, so that it does not compensate
        twice. Nothing to do without ``prune``.
        """
        if not self._plan.reductions:
            return
        reduction = self._plan.reductions[0]
        state = read_state(module)
        projected = reduction.project(state)
        pruned = reduction.zero_filled(projected, state) or {}
        ones = reduction.zero_filled({name: np.ones_like(array) for name, array in projected.items()}, state) or {}
        parameters = dict(module.named_parameters())
        self._masks = {
            name: torch.from_numpy(np.array(ones[name])).to(parameter)
            for name, parameter in parameters.items()
            if name in ones and not ones[name].all()
        }
        load_state(module, {name: pruned[name] for name in parameters})

    def apply_masks(self, module: nn.Module) -> None:
        """Set pruned parameters to zero again after an optimiser step, whose momentum may have moved them."""
        with torch.no_grad():
            for name, mask in self._masks.items():
                module.get_parameter(name).mul_(mask)

    def _layer(self, layer: IntegerLayer, policy: nn.Module) -> QuantisedLayer:
        sources, tensors = self._plan.graph.prologue.sources, named_tensors(policy)
        weights = tuple(name for name in sources(layer.weight) if tensors[name].dim() > 1)
        modules = tuple(dict.fromkeys(name.rpartition(".")[0] for name in weights))
        return QuantisedLayer(
            modules=modules,
            weights=weights,
            biases=sources(layer.bias) if layer.bias else (),
            activation=layer.activation,
            made=self._encoder.coded.get(modules[0]) if len(modules) == 1 else None,
            is_lstm=len(weights) > 1 and len(modules) == 1,
        )

    def _coding(self, activation: str) -> Scaled:
        try:
            scale, zero = self._encoder.activation(activation)
        except KeyError:
            raise CalibrationError("the int8 plan has no ranges yet; calibrate it before training against it") from None
        return Scaled.of(scale, zero, self._encoder.codes_of(activation))


class FakeQuantisedPolicy(nn.Module):
    """An acting policy that computes as its int8 graph does; shares the policy's parameters."""

    def __init__(self, quantiser: FakeQuantiser, policy: nn.Module) -> None:
        super().__init__()
        self.policy = policy
        self._quantiser = quantiser

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """See ``FakeQuantiser``."""
        return self._quantiser(self.policy, *inputs)


def is_quantisation_aware(scheme: str) -> bool:
    """Whether the learner trains with fake quantisation under this scheme."""
    return parse_scheme(scheme).methods[-1].name == NAME


_KINDS: tuple[type[nn.Module], ...] = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LSTM)


def _check_rules(rules: QuantisationRules, policy: nn.Module, nodes: Sequence[NodeProto]) -> None:
    """Check that the layers and additions of a plan can be fake-quantised; ``nodes`` are the unfused graph."""
    seen: set[str] = set()
    for name in (name for layer in rules.layers for name in layer.modules):
        part = policy.get_submodule(name)
        if not any(isinstance(part, kind) and type(part).forward is kind.forward for kind in _KINDS):
            raise UnsupportedLayerError(
                f"layer {name!r} is a {type(part).__name__}, which qat does not support: build it from torch's Linear, "
                f"Conv or LSTM, keep it in floats with qat({name}=float), or use int8"
            )
        if name in seen:
            raise UnsupportedLayerError(
                f"layer {name!r} is called more than once, with a range each, but qat has one range per module: "
                f"use a module for each call, qat({name}=float), or int8"
            )
        seen.add(name)
    modules = dict(policy.named_modules())
    for total in rules.sums:
        if total.module not in modules or not _ends(total, rules.sums, nodes):
            raise UnsupportedLayerError(
                f"{total.module!r} computes on after an addition in 8 bits: qat needs the addition at the end of a "
                "module, as in a residual block; move it there, or use int8"
            )


def _ends(total: SumOfCodes, sums: Sequence[SumOfCodes], nodes: Sequence[NodeProto]) -> bool:
    """Whether an addition is the last operation of its module."""
    inside = f"{total.module}."
    readers = [layer_name(node) for node in nodes if total.made in node.input]
    alone = sum(other.module == total.module for other in sums) == 1
    return alone and not any(name == total.module or name.startswith(inside) for name in readers)
