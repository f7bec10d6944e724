"""What stands for a layer and for a value in a graph of integer kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# How one layer computes under ``int8``: in integers with one scale or one per output, or in floats, from 4-bit weights.
LayerFormat = Literal["per_tensor", "per_channel", "float", "int4"]


@dataclass(frozen=True)
class IntegerLayer:
    """A layer with integer weights.

    Attributes:
        name: for messages.
        weight: the graph's parameter, and stem of the initializers ``:codes``, ``:scale``, ``:zero``.
        bias: the graph's parameter or "".
        bias_codes: initializer for the bias's codes, "" without bias.
        activation: the value read, whose scale the bias shares.
        stem: what the weight's initializers are called; differs per layer when layers share a weight.
        channel_axis: the weight's output axis, where each output has a scale of its own.
    """

    name: str
    weight: str
    bias: str
    bias_codes: str
    activation: str
    stem: str
    channel_axis: int | None


@dataclass(frozen=True)
class Codes:
    """A value as integer codes: its tensor, and the activation whose range gives scale and zero point."""

    tensor: str
    activation: str

    @property
    def parameters(self) -> tuple[str, str]:
        """Names of the scale's and the zero point's initializers."""
        return f"{self.activation}:scale", f"{self.activation}:zero"


@dataclass(frozen=True)
class SumOfCodes:
    """A sum of two values as codes, in codes.

    Attributes:
        module: whose forward adds.
        addends: what is added.
        made: the activation put out.
    """

    module: str
    addends: tuple[Codes, Codes]
    made: str
