"""``int8``: weights and activations in 8 bits, ranges of activations known beforehand, layers in integer kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from compressors.base import Array, FloatArray
from compressors.chain import Encoder, Format
from compressors.errors import CalibrationError, SchemeError, WeightsError
from compressors.graph import OPSET, PolicyGraph
from compressors.integer import IntegerGraph, IntegerLayer
from compressors.optimise import rearranged_nodes
from compressors.payload import Payload, Slot
from compressors.quantise import (
    UINT8,
    WEIGHT_INT8,
    activation_parameters,
    bias_codes,
    quantise_into,
    scales_for_bias,
    weight_scales,
)
from compressors.ranges import Range, RangeObserver
from compressors.scheme import MethodText


@dataclass(frozen=True)
class Int8(Format):
    """Static int8: unsigned activations, signed symmetric weights."""

    @property
    def method(self) -> MethodText:
        """``int8`` with its options."""
        return MethodText("int8")

    def encoder(self, graph: PolicyGraph, calibration: Mapping[str, Array] | None) -> Encoder:
        """See ``Format.encoder``."""
        return Int8Encoder(graph)


class Int8Encoder(Encoder):
    """Requantises weights at each refresh, at scales that follow the running ranges of activations."""

    def __init__(self, graph: PolicyGraph) -> None:
        self._codes = UINT8
        self._weight_codes = WEIGHT_INT8
        self._per_channel = False
        integer = IntegerGraph(graph, self._codes, self._per_channel)
        self.layers = integer.layers
        self._floats = integer.floats
        self._measured = integer.measured
        self._observer = RangeObserver(graph, integer.measured)
        self._ranges: dict[str, Range] = {}
        self._scales: dict[str, np.float32] = {}
        self._payload = _lay_out(integer, graph)
        for name, scale in integer.fixed.items():
            self._set_activation(name, scale, 0)
        largest = max((graph.parameters[layer.weight].size for layer in self.layers), default=0)
        self._scratch = np.empty(largest, dtype=np.float32)

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The running ranges by activation."""
        return dict(self._ranges)

    def calibrate(self, parameters: Mapping[str, Array], inputs: Mapping[str, Array]) -> None:
        """See ``Encoder.calibrate``."""
        seen = self._observer.measure(parameters, inputs)
        for name, now in seen.items():
            before = self._ranges.get(name)
            self._ranges[name] = now if before is None else before.after(now)
            self._set_activation(
                name, *activation_parameters(self._ranges[name].low, self._ranges[name].high, self._codes)
            )

    def encode(self, parameters: Mapping[str, Array]) -> bytes:
        """See ``Encoder.encode``."""
        missing = [name for name in self._measured if name not in self._ranges]
        if missing:
            raise CalibrationError(
                f"int8 has no range for {len(missing)} activations; calibrate it on real observations first, and "
                "publish fp32 until then"
            )
        for layer in self.layers:
            self._encode_layer(layer, parameters)
        for name in self._floats:
            self._payload.views[name][...] = parameters[name]
        return self._payload.to_bytes()

    def _encode_layer(self, layer: IntegerLayer, parameters: Mapping[str, Array]) -> None:
        weight: FloatArray = parameters[layer.weight].astype(np.float32, copy=False)
        axis = layer.channel_axis if self._per_channel else None
        scales = weight_scales(weight, self._weight_codes, axis)
        if not np.isfinite(scales).all():
            raise WeightsError(f"weight of {layer.name!r} is not finite; do not publish a policy that has diverged")
        views = self._payload.views
        if layer.bias:
            bias: FloatArray = parameters[layer.bias].astype(np.float32, copy=False)
            if not np.isfinite(bias).all():
                raise WeightsError(f"bias of {layer.name!r} is not finite; do not publish a policy that has diverged")
            scales = scales_for_bias(scales, self._scales[layer.activation], bias)
            views[layer.bias_codes][...] = bias_codes(bias, self._scales[layer.activation], scales)
        scratch = self._scratch[: weight.size].reshape(weight.shape)
        quantise_into(views[f"{layer.stem}:codes"], weight, scales, axis, scratch)
        views[f"{layer.stem}:scale"][...] = scales

    def _set_activation(self, name: str, scale: np.float32, zero: int) -> None:
        self._scales[name] = scale
        self._payload.views[f"{name}:scale"][...] = scale
        self._payload.views[f"{name}:zero"][...] = zero


def _lay_out(integer: IntegerGraph, graph: PolicyGraph) -> Payload:
    slots = {**integer.slots, **{name: Slot.like(graph.parameters[name]) for name in integer.floats}}
    constants = {name: graph.constants[name] for name in integer.constants}
    payload = Payload(integer.nodes, graph.inputs, graph.outputs, slots, constants, OPSET)
    if any(node.op_type == "MaxPool" for node in integer.nodes):
        # pooling codes is thirty times faster channels-last, into which onnxruntime turns the graph
        nodes = rearranged_nodes(payload) or integer.nodes
        return Payload(nodes, graph.inputs, graph.outputs, slots, constants, OPSET)
    return payload


def make_int8(arguments: tuple[str, ...], cpu: frozenset[str]) -> Int8:
    """The ``int8`` method."""
    if arguments:
        raise SchemeError(f"int8 takes no arguments, but got {', '.join(arguments)}")
    return Int8()
