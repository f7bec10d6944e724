"""One forward pass of a policy in the arithmetic of its int8 graph: integer codes and sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from accel.compressors.int8.integer_graph import SumOfCodes
from accel.compressors.qat import arithmetic
from accel.compressors.qat.arithmetic import Scaled
from accel.compressors.quantisation.affine import IntegerType

Forward = Callable[..., object]


@dataclass(frozen=True)
class QuantisedLayer:
    """A layer of the int8 graph, in terms of the policy.

    Attributes:
        modules: the modules that compute it; several where heads over one input are merged.
        weights, biases: parameters, in the graph's order. An LSTM has two of each; its biases are added.
        activation: its input.
        made: the activation that it outputs as codes; None where it outputs floats.
        is_lstm: whether its one module is an LSTM.
    """

    modules: tuple[str, ...]
    weights: tuple[str, ...]
    biases: tuple[str, ...]
    activation: str
    made: str | None
    is_lstm: bool


@dataclass(frozen=True)
class QuantisationRules:
    """What the passes of a plan share.

    Attributes:
        layers, sums: layers and additions of the int8 graph.
        coding: the present quantisation of an activation.
        weight_codes: integer type of weight codes.
    """

    layers: tuple[QuantisedLayer, ...]
    sums: tuple[SumOfCodes, ...]
    coding: Callable[[str], Scaled]
    weight_codes: IntegerType


class QuantisedPass:
    """Weights quantised once, for one forward pass, with straight-through gradients.

    Args:
        rules: those of the plan.
        tensors: the policy's parameters, and its buffers if they differ from the module's own.
    Attributes:
        codes: codes of weights and biases by name; an LSTM's summed bias has the name of the first.
    """

    def __init__(self, rules: QuantisationRules, tensors: Mapping[str, Tensor]) -> None:
        self._rules = rules
        self._others = dict(tensors)
        self._made: dict[str, Tensor] = {}
        self._steps: dict[str, Tensor] = {}
        self.codes: dict[str, Tensor] = {}
        for layer in rules.layers:
            self._quantise_layer(layer, tensors)

    def call(self, name: str, part: nn.Module, *arguments: object) -> object:
        """Call a module of the policy by its dotted name ("": the policy itself)."""
        prefix = f"{name}." if name else ""
        others = {n.removeprefix(prefix): t for n, t in self._others.items() if n.startswith(prefix)}
        with self._in_place(part, name):
            return functional_call(part, others, arguments)

    def quantises(self, module: str) -> bool:
        """Whether the module of this name computes with codes."""
        return module in self._steps

    def lstm(
        self, name: str, x: Tensor, keep: Tensor | None, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run an LSTM of the policy over time; the hidden state is quantised at every step, as in actors.

        Args:
            name: name of its module.
            x: [T, N, F].
            keep: [T, N, 1], 0 where the state is reset before a row, else 1; None: no resets.
            state: h and c before row 0, each [N, H].
        Returns:
            h of every row [T, N, H], and (h, c) after the last.
        """
        layer = next(layer for layer in self._rules.layers if layer.is_lstm and layer.modules == (name,))
        how, step = self._rules.coding(layer.activation), self._steps[name]
        w_input, w_hidden = (self.codes[weight] for weight in layer.weights)
        x_codes = arithmetic.quantise(x, how)
        totals = F.linear(x_codes, w_input, self.codes[layer.biases[0]] if layer.biases else None)
        hidden, cell = state
        rows = []
        for t, total in enumerate(totals):
            if keep is not None:
                hidden, cell = hidden * keep[t], cell * keep[t]
            i, f, g, o = ((total + F.linear(arithmetic.quantise(hidden, how), w_hidden)) * step).chunk(4, 1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
            rows.append(hidden)
        return torch.stack(rows), (hidden, cell)

    def _quantise_layer(self, layer: QuantisedLayer, tensors: Mapping[str, Tensor]) -> None:
        weights = [tensors[name] for name in layer.weights]
        rows = [0] if layer.is_lstm else list(accumulate((len(weight) for weight in weights), initial=0))
        input_scale = self._rules.coding(layer.activation).scale
        with torch.no_grad():
            greatest = _greatest(layer, weights)
            scales = arithmetic.weight_scales(greatest, self._rules.weight_codes)
            if layer.biases:
                biases = self._greatest_bias(layer, tensors, scales)
                scales = arithmetic.scales_for_bias(scales, input_scale, biases, greatest)
            steps = scales * input_scale
        for index, (name, weight) in enumerate(zip(layer.weights, weights, strict=True)):
            module = name.rpartition(".")[0]
            own = slice(None) if layer.is_lstm else slice(rows[index], rows[index + 1])
            self._steps[module] = steps[own]
            self.codes[name] = arithmetic.round_through(weight / scales[own].view(-1, *[1] * (weight.dim() - 1)))
            del self._others[name]
        self._quantise_biases(layer, tensors, steps)

    def _quantise_biases(self, layer: QuantisedLayer, tensors: Mapping[str, Tensor], steps: Tensor) -> None:
        """Quantise biases to 32-bit codes. A parameter that a merged head repeats for each row stays a parameter of its
        module: its weights are zeros, so that its codes are as fine as floats."""
        if layer.is_lstm and layer.biases:
            first, second = layer.biases
            self.codes[first] = _bias_codes(tensors[first] + tensors[second], steps)
            del self._others[first], self._others[second]
            return
        for name in layer.biases:
            module = name.rpartition(".")[0]
            if module in layer.modules:
                self.codes[name] = _bias_codes(tensors[name], self._steps[module])
                del self._others[name]

    def _greatest_bias(self, layer: QuantisedLayer, tensors: Mapping[str, Tensor], scales: Tensor) -> Tensor:
        """Magnitudes of the graph's bias, [outputs]."""
        if layer.is_lstm:
            first, second = layer.biases
            return (tensors[first] + tensors[second]).abs()
        rows = []
        for weight in layer.weights:
            bias_name = f"{weight.removesuffix('weight')}bias"
            given = tensors[bias_name] if bias_name in layer.biases else scales.new_zeros(len(tensors[weight]))
            rows.append(given.abs())
        return torch.cat(rows)

    @contextmanager
    def _in_place(self, part: nn.Module, name: str) -> Iterator[None]:
        """Within this context the layers of the module of that name compute with codes."""
        with ExitStack() as stack:
            for layer in self._rules.layers:
                for own in layer.modules:
                    module = _inside(part, name, own)
                    if module is not None:
                        stack.enter_context(_computing(module, self._forward(layer, own, module)))
            for total in self._rules.sums:
                module = _inside(part, name, total.module)
                if module is not None:
                    stack.enter_context(_computing(module, self._sum(total, module.forward)))
            yield

    def _forward(self, layer: QuantisedLayer, name: str, module: nn.Module) -> Forward:
        if isinstance(module, nn.LSTM):
            return self._lstm_forward(name, module)
        how = self._rules.coding(layer.activation)
        made = None if layer.made is None else self._rules.coding(layer.made)
        prefix = f"{name}." if name else ""
        weight, bias, step = self.codes[f"{prefix}weight"], self.codes.get(f"{prefix}bias"), self._steps[name]
        factor = step if made is None else step / made.scale
        factor = factor.view(-1, *[1] * (weight.dim() - 2))

        def forward(x: Tensor) -> Tensor:
            codes = arithmetic.quantise(x, how)
            if isinstance(module, nn.Linear):
                total = F.linear(codes, weight, bias)
            else:
                total = module._conv_forward(codes, weight, bias)  # type: ignore[operator, unused-ignore]
            if made is None or layer.made is None:
                return total * factor
            return self._output(layer.made, arithmetic.requantise(total, factor, made), made)

        return forward

    def _lstm_forward(self, name: str, module: nn.LSTM) -> Forward:
        def forward(x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            steps = x.transpose(0, 1) if module.batch_first else x
            rows, (hidden, cell) = self.lstm(name, steps, None, (state[0][0], state[1][0]))
            return rows.transpose(0, 1) if module.batch_first else rows, (hidden[None], cell[None])

        return forward

    def _sum(self, total: SumOfCodes, original: Forward) -> Forward:
        """The codes of an addend that a layer or addition has output are known; the other's follow from the sum."""
        how, of = self._rules.coding(total.made), [self._rules.coding(codes.activation) for codes in total.addends]
        own = [i for i, c in enumerate(total.addends) if c.tensor == f"{c.activation}:codes"]

        def forward(*arguments: object) -> object:
            value = original(*arguments)
            if not isinstance(value, Tensor):
                return value
            known = next((i for i in own if total.addends[i].activation in self._made), None)
            if known is None:
                return self._output(total.made, arithmetic.quantise(value, how), how)
            given = self._made[total.addends[known].activation].detach()
            other = of[1 - known]
            rest = ((value.detach() - given * of[known].scale) / other.scale).round()
            rest = rest.clamp(other.least, other.greatest)  # observations beyond their range
            a, b = (given, rest) if known == 0 else (rest, given)
            return self._output(total.made, arithmetic.add(value, a, b, of[0], of[1], how), how)

        return forward

    def _output(self, activation: str, codes: Tensor, how: Scaled) -> Tensor:
        self._made[activation] = codes
        return codes * how.scale


def _inside(part: nn.Module, name: str, wanted: str) -> nn.Module | None:
    """The policy's module of the name ``wanted``, if it is ``part``, whose name is ``name``, or inside it."""
    if name and wanted != name and not wanted.startswith(f"{name}."):
        return None
    return part.get_submodule(wanted.removeprefix(name).removeprefix("."))


@contextmanager
def _computing(module: nn.Module, forward: Forward) -> Iterator[None]:
    """Within this context the module has this forward."""
    setattr(module, "forward", forward)  # noqa: B010 - mypy knows no assignment to a method
    try:
        yield
    finally:
        delattr(module, "forward")


def _greatest(layer: QuantisedLayer, weights: list[Tensor]) -> Tensor:
    """Greatest magnitudes of the weights that share a scale, [outputs]; torch's infinite norm is far slower."""
    rows = [weight.flatten(1).abs().amax(1) for weight in weights]
    return torch.stack(rows).amax(0) if layer.is_lstm else torch.cat(rows)


def _bias_codes(bias: Tensor, step: Tensor) -> Tensor:
    """Codes of a bias, divided in double precision as they have 32 bits."""
    return arithmetic.round_through(bias.double() / step.double()).float()
