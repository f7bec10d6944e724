"""Quantisation-aware training for ``int8``: the learner's forward sees the numbers that actors will compute with.

    ŵ = w + stop_gradient(s round(w / s) − w);   x̂ likewise, saturating at the ends of its range

The scales are those of the bound plan, by the same code: what the learner rounds to are the codes that the next refresh
writes, of weights and of biases. An LSTM's hidden state stays whole, as torch runs it over time in one call.
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
    stem: str

    @property
    def is_lstm(self) -> bool:
        """Whether two matrices of one module share the layer."""
        return len(self.weights) > 1 and len(self.modules) == 1


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
            self._layers.append(_Rounding(weights, biases, layer.activation, modules, per_channel, layer.stem))

    def weights(self, module: nn.Module) -> dict[str, Tensor]:
        """Rounded weights and biases by name, through which gradients pass; for ``torch.func.functional_call``."""
        parameters = dict(module.named_parameters())
        rounded: dict[str, Tensor] = {}
        for layer in self._layers:
            scale = self._scale(layer, parameters)
            for name in layer.weights:
                weight = parameters[name]
                shaped = scale.to(weight).reshape(-1, *[1] * (weight.dim() - 1)) if scale.dim() else scale.to(weight)
                rounded[name] = _straight_through(weight, torch.round(weight.detach() / shaped) * shaped)
            rounded.update(self._rounded_biases(layer, parameters, scale))
        return rounded

    @contextmanager
    def activations(self, module: nn.Module) -> Iterator[None]:
        """Within this context every quantised layer of the module rounds what it reads, and what it puts out as codes;
        so does a module that ends in a sum of codes, such as a residual block.

        Raises:
            CalibrationError: the plan has no ranges yet.
        """
        with ExitStack() as stack:
            for layer in self._layers:
                hook = self._hook(layer.activation)
                for name in layer.modules:
                    stack.enter_context(module.get_submodule(name).register_forward_pre_hook(hook))
            for name, part in module.named_modules():
                if name in self._encoder.coded:
                    rounder = self._hook(self._encoder.coded[name])
                    stack.enter_context(part.register_forward_hook(rounder.round_output))
            yield

    def round_input(self, module_name: str, value: Tensor) -> Tensor:
        """What a quantised layer reads when it is given this value; the value itself where the layer is not quantised.

        For layers whose module is not called, such as an LSTM that runs over time in another way.

        Raises:
            CalibrationError: the plan has no ranges yet.
        """
        for layer in self._layers:
            if module_name in layer.modules:
                return self._hook(layer.activation).round(value)
        return value

    def readers(self) -> Iterator[tuple[str, str, tuple[float, int]]]:
        """For every quantised layer that reads what one module is given first: its stem in the graph, the module's
        name, and the scale and zero point of that input."""
        for layer in self._layers:
            if len(layer.modules) == 1 and not layer.weights[0].rpartition(".")[2].startswith("weight_hh"):
                scale, zero = self._input_parameters(layer.activation)
                yield layer.stem, layer.modules[0], (float(scale), zero)

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

    def _rounded_biases(
        self, layer: _Rounding, parameters: Mapping[str, Tensor], scale: Tensor
    ) -> Iterator[tuple[str, Tensor]]:
        """To multiples of s_x·s_w, as the 32-bit codes are. Of an LSTM's two biases one takes the whole rounding, as
        only their sum is in the graph; what a merged head has beside the rows of the weight has weights of zero there,
        whose scale is 1 where every output has its own."""
        if not layer.biases:
            return
        input_scale = self._input_parameters(layer.activation)[0]
        step = torch.from_numpy(np.asarray(input_scale * scale.numpy(), np.float64))
        if layer.is_lstm:
            first, second = (parameters[name] for name in layer.biases)
            whole = (first + second).detach()
            yield layer.biases[0], first + (_to_multiples(whole, step) - whole)
            return
        for name in layer.biases:
            bias = parameters[name]
            yield name, _straight_through(bias, _to_multiples(bias.detach(), step))
            if layer.per_channel:
                step = torch.tensor(float(input_scale), dtype=torch.float64)

    def _bias(self, layer: _Rounding, parameters: Mapping[str, Tensor]) -> Tensor:
        """The graph's bias: an LSTM's two are summed, merged heads' are side by side; of the rows that have a scale."""
        parts = [parameters[name].reshape(-1) for name in layer.biases]
        bias = torch.stack(parts).sum(0) if layer.is_lstm else torch.cat(parts)
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
        first, *rest = arguments
        return (self.round(first) if isinstance(first, Tensor) else first, *rest)

    def round_output(self, module: nn.Module, arguments: tuple[object, ...], output: object) -> object:
        """A forward hook that rounds what a layer puts out."""
        return self.round(output) if isinstance(output, Tensor) else output

    def round(self, value: Tensor) -> Tensor:
        """To the codes of the range, saturating at its ends."""
        low, high = ((end - self._zero) * self._scale for end in (self._low, self._high))
        clipped = value.clamp(low, high)
        codes = torch.round(clipped.detach() / self._scale).clamp(self._low - self._zero, self._high - self._zero)
        return _straight_through(clipped, codes * self._scale)


def _to_multiples(bias: Tensor, step: Tensor) -> Tensor:
    """In double precision, as codes have 32 bits."""
    step = step.to(bias.device)
    return (torch.round(bias.double() / step) * step).to(bias)


def _straight_through(value: Tensor, rounded: Tensor) -> Tensor:
    """``rounded`` going forward, the identity going back."""
    return value + (rounded - value).detach()
