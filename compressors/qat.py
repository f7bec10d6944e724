"""Quantisation-aware training for ``int8``: the learner's forward sees the numbers that actors will compute with.

    ŵ = w + stop_gradient(s round(w / s) − w);   x̂ likewise, saturating at the ends of its range

The scales are those of the bound plan, by the same code: what the learner rounds to are the codes that the next refresh
writes. Biases stay whole (their 32-bit codes are exact to a fraction of a step), and so does an LSTM's hidden state.
Source: Jacob et al. 2018, arXiv:1712.05877, section 3; for the estimator Bengio et al. 2013, arXiv:1308.3432.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from compressors.base import Plan
from compressors.chain import PipelinePlan
from compressors.errors import CalibrationError, SchemeError, UnsupportedLayerError
from compressors.int8 import Int8Encoder
from compressors.quantise import scales_for_bias, scales_of


@dataclass(frozen=True)
class _Rounding:
    """A layer: the matrices that share its scale, its biases, the activation that it reads, its modules' names, and
    whether each output has a scale of its own."""

    weights: tuple[str, ...]
    biases: tuple[str, ...]
    activation: str
    modules: tuple[str, ...]
    per_channel: bool


class FakeQuantiser:
    """Rounds a module's weights and the inputs of its layers as a bound ``int8`` plan does.

    Use both in the learner's forward::

        quantiser = FakeQuantiser(plan)
        with quantiser.activations(policy):
            output = torch.func.functional_call(policy, quantiser.weights(policy), inputs)
    """

    def __init__(self, plan: Plan) -> None:
        """Follow a plan, its later calibrations included.

        Raises:
            SchemeError: the plan's scheme is not ``int8`` alone.
            UnsupportedLayerError: a scale for each channel is shared by several matrices.
        """
        encoder = plan.encoder if isinstance(plan, PipelinePlan) else None
        if not isinstance(plan, PipelinePlan) or not isinstance(encoder, Int8Encoder) or plan.has_reductions:
            raise SchemeError(f"quantisation-aware training follows int8 plans, not {plan.scheme!r}")
        self._encoder = encoder
        self._layers: list[_Rounding] = []
        for layer in encoder.layers:
            sources = plan.graph.sources(layer.weight)
            weights = tuple(name for name in sources if plan.graph.leaf_ranks[name] > 1)
            biases = plan.graph.sources(layer.bias) if layer.bias else ()
            per_channel = layer.channel_axis is not None
            if per_channel and (len(weights) > 1 or layer.channel_axis != 0):
                raise UnsupportedLayerError(
                    f"layer {layer.name!r} is made of {', '.join(weights)}, whose channels share scales; use int8 "
                    "without per_channel for quantisation-aware training"
                )
            modules = tuple(dict.fromkeys(name.rpartition(".")[0] for name in weights))
            self._layers.append(_Rounding(weights, biases, layer.activation, modules, per_channel))

    def weights(self, module: nn.Module) -> dict[str, Tensor]:
        """Rounded weights by name, through which gradients pass unchanged; for ``torch.func.functional_call``."""
        parameters = dict(module.named_parameters())
        rounded: dict[str, Tensor] = {}
        for layer in self._layers:
            scale = self._scale(layer, parameters)
            for name in layer.weights:
                weight = parameters[name]
                shaped = scale.to(weight).reshape(-1, *[1] * (weight.dim() - 1)) if scale.dim() else scale.to(weight)
                rounded[name] = _straight_through(weight, torch.round(weight.detach() / shaped) * shaped)
        return rounded

    @contextmanager
    def activations(self, module: nn.Module) -> Iterator[None]:
        """Within this context every quantised layer of the module rounds what it reads.

        Raises:
            CalibrationError: the plan has no ranges yet.
        """
        with ExitStack() as stack:
            for layer in self._layers:
                hook = self._hook(layer.activation)
                for name in layer.modules:
                    stack.enter_context(module.get_submodule(name).register_forward_pre_hook(hook))
            yield

    def _scale(self, layer: _Rounding, parameters: Mapping[str, Tensor]) -> Tensor:
        """[] or [channels]: the plan's formulae on the greatest magnitudes, which are all that they need."""
        with torch.no_grad():
            greatest = [
                parameters[name].abs().flatten(1).amax(1) if layer.per_channel else parameters[name].abs().max()
                for name in layer.weights
            ]
            magnitude = torch.stack(greatest).amax(0).cpu().numpy()
        scales = scales_of(magnitude, self._encoder.weight_codes)
        if layer.biases:
            with torch.no_grad():
                bias = self._bias(layer, parameters).cpu().numpy()
            scales = scales_for_bias(scales, self._input_parameters(layer.activation)[0], bias)
        return torch.from_numpy(np.array(scales))

    def _bias(self, layer: _Rounding, parameters: Mapping[str, Tensor]) -> Tensor:
        """The graph's bias: an LSTM's two are summed, merged heads' are side by side; of the rows that have a scale."""
        parts = [parameters[name].reshape(-1) for name in layer.biases]
        is_lstm = len(layer.weights) > 1 and len(layer.modules) == 1
        bias = torch.stack(parts).sum(0) if is_lstm else torch.cat(parts)
        return bias[: len(parameters[layer.weights[0]])] if layer.per_channel else bias

    def _input_parameters(self, activation: str) -> tuple[np.float32, int]:
        try:
            return self._encoder.activation(activation)
        except KeyError:
            raise CalibrationError("the int8 plan has no ranges yet; calibrate it before training against it") from None

    def _hook(self, activation: str) -> _Rounder:
        return _Rounder(*self._input_parameters(activation), *self._encoder.code_range)


class _Rounder:
    """A forward pre-hook that rounds a layer's first input."""

    def __init__(self, scale: np.float32, zero: int, minimum: int, maximum: int) -> None:
        self._scale = float(scale)
        self._zero = zero
        self._low, self._high = minimum, maximum

    def __call__(self, module: nn.Module, arguments: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(self._round(argument) if index == 0 else argument for index, argument in enumerate(arguments))

    def _round(self, value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        low, high = ((end - self._zero) * self._scale for end in (self._low, self._high))
        clipped = value.clamp(low, high)
        codes = torch.round(clipped.detach() / self._scale).clamp(self._low - self._zero, self._high - self._zero)
        return _straight_through(clipped, codes * self._scale)


def _straight_through(value: Tensor, rounded: Tensor) -> Tensor:
    """``rounded`` going forward, the identity going back."""
    return value + (rounded - value).detach()
