"""Rewrite a float graph to integer kernels: QGemm, QLinearConv, QLinearAdd, and operators that only move codes.

Every value is computed in the form that its readers need: codes between integer layers, floats before tanh and at the
outputs. A layer with weights but without an integer kernel is an error, unless float or int4 was chosen for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import prod
from typing import NoReturn

import numpy as np
from onnx import NodeProto, TensorProto, helper

from accel.compressors.errors import UnsupportedLayerError
from accel.compressors.graph.optimise import optimised_nodes
from accel.compressors.graph.payload import MICROSOFT, Payload, Slot
from accel.compressors.graph.policy_graph import OPSET, PolicyGraph
from accel.compressors.graph.simplify import fuse_activations
from accel.compressors.graph.wiring import (
    WITHOUT_PRODUCTS,
    Wiring,
    int_attribute,
    is_plain_gemm,
    layer_name,
    optional_input,
)
from accel.compressors.layer_choices import weight_layer
from accel.compressors.method_arguments import LayerFormat
from accel.compressors.quantisation.affine import IntegerType
from accel.compressors.quantisation.nibbles import replace_layer


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
class IntegerLayer:
    """A layer with integer or 4-bit weights.

    Attributes:
        name: its name in messages.
        weight: the graph's parameter.
        bias: the graph's parameter or "".
        codes: the layer's input: codes, or the high and the low ones of two bytes; none of a layer with 4-bit weights.
        inputs: how many products each of its sums has.
        source, output: the graph's values that it reads and computes. axis: the weight's output axis, with a scale for
            each index.
    """

    name: str
    weight: str
    bias: str
    codes: tuple[Codes, ...]
    inputs: int
    source: str
    output: str
    axis: int

    @property
    def stem(self) -> str:
        """Prefix of the weight's initializers; layers that share a weight have different ones."""
        return f"{self.output}:weight"

    @property
    def bias_codes(self) -> str:
        """The initializer for the bias's codes, "" without bias."""
        return f"{self.output}:bias:codes" if self.bias else ""

    @property
    def activation(self) -> str:
        """The input, whose scale the bias uses."""
        return self.codes[-1].activation

    @property
    def wide(self) -> bool:
        """Whether the input is codes of two bytes."""
        return len(self.codes) > 1


@dataclass(frozen=True)
class SumOfCodes:
    """An addition of two values, both and the sum as codes.

    Attributes:
        module: the module whose forward adds.
        addends: the two values.
        made: the activation that is the sum.
    """

    module: str
    addends: tuple[Codes, Codes]
    made: str


# Operators that move codes and keep their scale.
_PASS_THROUGH = frozenset({"Flatten", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "MaxPool", "Relu"})


class IntegerGraph:
    """The rewritten graph.

    Attributes:
        nodes: in topological order.
        layers: the ones with integer weights.
        int4_layers: the ones with 4-bit weights, computed in floats.
        names: the names of all layers.
        measured: activations that need a calibrated range.
        coded: module (``torso.0``) to its output activation, for layers that output codes.
        sums: additions of codes.
        fixed: activation to scale, for inputs that are codes already (images).
        clipped: activations that are clipped to the slots ``:least`` and ``:greatest`` before they are quantised.
        wide: the ones that become codes of two bytes, ``:high`` and ``:low``.
        slots: initializers written at calibration or refresh: scales and codes.
        floats, constants: the parameters that stay in single precision, and the graph constants in use.
    """

    def __init__(
        self,
        graph: PolicyGraph,
        codes: IntegerType,
        choose: Callable[[str], LayerFormat],
        to_clip: AbstractSet[str] = frozenset(),
    ) -> None:
        """Rewrite; ``to_clip``: floats whose codes saturate before their type does."""
        self._graph = graph
        self._codes = codes
        self._to_clip = to_clip
        self.clipped: list[str] = []
        self.wide: dict[str, tuple[Codes, Codes]] = {}
        self._formats: dict[str, LayerFormat] = {}
        self.names: list[str] = []
        for node in graph.nodes:
            if node.op_type in ("Gemm", "Conv") and node.input[1] in graph.parameters:
                self.names.append(weight_layer(graph, node.input[1]))
                self._formats[node.output[0]] = choose(self.names[-1])
        self._wiring = Wiring(graph.nodes, [spec.name for spec in graph.outputs])
        self._as_codes: dict[str, Codes] = {}
        self._as_float: dict[str, str] = {spec.name: spec.name for spec in graph.inputs}
        self.nodes: list[NodeProto] = []
        self.layers: list[IntegerLayer] = []
        self.int4_layers: list[IntegerLayer] = []
        self.measured: list[str] = []
        self.coded: dict[str, str] = {}
        self.sums: list[SumOfCodes] = []
        self.fixed: dict[str, np.float32] = {}
        self.slots: dict[str, Slot] = {}
        rules: dict[str, Callable[[NodeProto], None]] = {
            "Gemm": self._gemm, "Conv": self._conv, "Add": self._add,
            "DequantizeLinear": self._image, "Clip": self._clip, **dict.fromkeys(_PASS_THROUGH, self._pass),
        }  # fmt: skip
        for node in graph.nodes:
            if not self._is_integer(node):
                self._float_layer(node)
            elif node.output[0] not in self._as_codes:  # a ReLU may be in the codes of what it reads
                rules.get(node.op_type, self._float)(node)
        for spec in graph.outputs:
            if self._float_of(spec.name) != spec.name:
                raise UnsupportedLayerError(f"output {spec.name!r} is an input passed on; return a computed tensor")
        used = {name for node in self.nodes for name in node.input}
        self.floats = tuple(name for name in graph.parameters if name in used)
        self.constants = tuple(name for name in graph.constants if name in used)

    def _gemm(self, node: NodeProto) -> None:
        if not is_plain_gemm(node) or node.input[1] not in self._graph.parameters:
            self._refuse(node, "its Gemm has factors, a transposed input or a computed weight")
        transposed = int_attribute(node, "transB", 0)
        if self._formats[node.output[0]] == "x16":
            self._wide_gemm(node, transposed)
            return
        x = self._codes_of(node.input[0])
        layer = self._layer(node, x, axis=0 if transposed else 1)
        result = self._through_relu(node.output[0])
        inputs = [x.tensor, *x.parameters, *self._weight_inputs(layer), layer.bias_codes]
        if self._wants_codes(result):
            made = self._new_codes(result, node)
            inputs, output = [*inputs, *made.parameters], made.tensor
        else:
            output = self._new_float(node.output[0])
        self.nodes.append(
            helper.make_node("QGemm", inputs, [output], name=node.name, domain=MICROSOFT, transB=transposed)
        )

    def _wide_gemm(self, node: NodeProto, transposed: int) -> None:
        """The products of the high and of the low bytes with one weight, and their sum in floats."""
        high, low = self._wide_of(node.input[0])
        layer = self._layer(node, high, low, axis=0 if transposed else 1)
        output = self._new_float(node.output[0])
        parts = {f"{output}:{name}": codes for name, codes in (("high", high), ("low", low))}
        for name, codes in parts.items():
            inputs = [codes.tensor, *codes.parameters, *self._weight_inputs(layer)]
            inputs += [layer.bias_codes] if codes is low and layer.bias_codes else []
            product = helper.make_node("QGemm", inputs, [name], name=f"{node.name}/{name}", domain=MICROSOFT)
            product.attribute.append(helper.make_attribute("transB", transposed))
            self.nodes.append(product)
        self.nodes.append(helper.make_node("Add", list(parts), [output], name=node.name))

    def _conv(self, node: NodeProto) -> None:
        if node.input[1] not in self._graph.parameters:
            self._refuse(node, "its kernel is computed")
        x = self._codes_of(node.input[0])
        layer = self._layer(node, x, axis=0)
        made = self._new_codes(self._through_relu(node.output[0]), node)
        inputs = [x.tensor, *x.parameters, *self._weight_inputs(layer), *made.parameters]
        if layer.bias_codes:
            inputs.append(layer.bias_codes)
        conv = helper.make_node("QLinearConv", inputs, [made.tensor], name=node.name)
        conv.attribute.extend(node.attribute)
        self.nodes.append(conv)

    def _add(self, node: NodeProto) -> None:
        parameters = [name for name in node.input if self._is_fixed(name)]
        result = self._through_relu(node.output[0])
        coded = any(name in self._as_codes for name in node.input)
        if parameters or not coded or not self._wants_codes(result):
            self._float(node)
            return
        a, b = (self._codes_of(name) for name in node.input)
        made = self._new_codes(result)
        self.sums.append(SumOfCodes(layer_name(node), (a, b), result))
        inputs = [a.tensor, *a.parameters, b.tensor, *b.parameters, *made.parameters]
        self.nodes.append(helper.make_node("QLinearAdd", inputs, [made.tensor], name=node.name, domain=MICROSOFT))

    def _pass(self, node: NodeProto) -> None:
        """On codes of the same scale; a ReLU clips them below at the zero point."""
        x = self._as_codes.get(node.input[0])
        if x is None:
            self._float(node)
            return
        made = Codes(f"{node.output[0]}:codes", x.activation)
        self._as_codes[node.output[0]] = made
        is_relu = node.op_type == "Relu"
        operator, others = ("Clip", [x.parameters[1]]) if is_relu else (node.op_type, node.input[1:])
        passed = helper.make_node(operator, [x.tensor, *others], [made.tensor], name=node.name)
        passed.attribute.extend(node.attribute)
        self.nodes.append(passed)

    def _image(self, node: NodeProto) -> None:
        """Pixels are codes already, with scale 1/255 and zero point 0."""
        scale = self._graph.constants.get(node.input[1])
        if scale is None or len(node.input) > 2 or self._codes.minimum < 0:
            self._float(node)
            return
        value = node.output[0]
        self.fixed[value] = np.float32(scale)
        self._as_codes[value] = Codes(node.input[0], value)
        self._declare(value)

    def _clip(self, node: NodeProto) -> None:
        """Redundant in front of integer layers: codes saturate at the range measured after the clip."""
        bounds = [float(self._graph.constants[name]) for name in node.input[1:] if name in self._graph.constants]
        spans_zero = len(bounds) == 2 and bounds[0] <= 0.0 <= bounds[1]
        if spans_zero and self._wants_codes(node.output[0]) and node.input[0] in self._as_float:
            self._as_float[node.output[0]] = self._as_float[node.input[0]]
            return
        self._float(node)

    def _float(self, node: NodeProto) -> None:
        """A node without weights computes in float."""
        for name in () if node.op_type in WITHOUT_PRODUCTS else node.input:
            array = self._graph.parameters.get(name)
            if array is not None and array.ndim > 1 and array.dtype.kind == "f":
                self._refuse(node, f"operator {node.op_type} has no static integer kernel")
        self.nodes.append(self._on_floats(node))

    def _float_layer(self, node: NodeProto) -> None:
        """A layer that was chosen to compute in floats."""
        copy = self._on_floats(node)
        if self._formats[node.output[0]] == "float":
            self.nodes.append(copy)
            return
        if node.op_type == "Gemm" and not is_plain_gemm(node):
            self._refuse(node, "its Gemm has factors or a transposed input")
        layer = self._described(node, axis=1 if node.op_type == "Gemm" and not int_attribute(node, "transB", 0) else 0)
        nodes, slots = replace_layer(copy, layer.stem, self._graph.parameters[layer.weight].shape)
        self.nodes += nodes
        self.slots.update(slots)
        self.int4_layers.append(layer)

    def _on_floats(self, node: NodeProto) -> NodeProto:
        """A copy of the node that reads and computes floats."""
        copy = NodeProto()
        copy.CopyFrom(node)
        for index, name in enumerate(node.input):
            copy.input[index] = self._float_of(name)
        for name in node.output:
            self._as_float[name] = name
        return copy

    def _layer(self, node: NodeProto, *codes: Codes, axis: int) -> IntegerLayer:
        layer = self._described(node, *codes, axis=axis)
        if layer.bias and layer.bias not in self._graph.parameters:
            self._refuse(node, "its bias is computed")
        shape = self._graph.parameters[layer.weight].shape
        channels = (shape[axis],)
        self.slots[f"{layer.stem}:codes"] = Slot(shape, TensorProto.INT8)
        self.slots[f"{layer.stem}:scale"] = Slot(channels)
        self.slots[f"{layer.stem}:zero"] = Slot(channels, TensorProto.INT8)
        if layer.bias:
            self.slots[layer.bias_codes] = Slot(self._graph.parameters[layer.bias].shape, TensorProto.INT32)
        self.layers.append(layer)
        return layer

    def _described(self, node: NodeProto, *codes: Codes, axis: int) -> IntegerLayer:
        shape = self._graph.parameters[node.input[1]].shape
        inputs = prod(shape) // shape[axis]
        values = (node.input[0], node.output[0])
        return IntegerLayer(layer_name(node), node.input[1], optional_input(node, 2), codes, inputs, *values, axis)

    def _weight_inputs(self, layer: IntegerLayer) -> list[str]:
        return [f"{layer.stem}:{part}" for part in ("codes", "scale", "zero")]

    def _codes_of(self, value: str) -> Codes:
        """A value as codes, quantised here unless it is already."""
        found = self._as_codes.get(value)
        if found is None:
            found = self._new_codes(value)
            floats = self._as_float[value]
            if value in self._to_clip:
                self.clipped.append(value)
                floats = self._clipped(value, floats)
            self.nodes.append(helper.make_node("QuantizeLinear", [floats, *found.parameters], [found.tensor]))
        return found

    def _wide_of(self, value: str) -> tuple[Codes, Codes]:
        """A value as codes of two bytes: the quotient by a coarse step, and by a fine one what that leaves."""
        if value in self.wide:
            return self.wide[value]
        floats = self._clipped(value, self._float_of(value))
        high, low = (Codes(f"{value}:{part}:codes", f"{value}:{part}") for part in ("high", "low"))
        self.wide[value] = high, low
        self.measured.append(value)
        for codes in (high, low):
            self._declare(codes.activation)
        back, rest = f"{value}:high:floats", f"{value}:rest"
        for operator, inputs, output in (
            ("QuantizeLinear", [floats, *high.parameters], high.tensor),
            ("DequantizeLinear", [high.tensor, *high.parameters], back),
            ("Sub", [floats, back], rest),
            ("QuantizeLinear", [rest, *low.parameters], low.tensor),
        ):
            self.nodes.append(helper.make_node(operator, inputs, [output]))
        return high, low

    def _clipped(self, value: str, floats: str) -> str:
        bounds, name = [f"{value}:least", f"{value}:greatest"], f"{value}:clipped"
        self.slots.update(dict.fromkeys(bounds, Slot(())))
        self.nodes.append(helper.make_node("Clip", [floats, *bounds], [name]))
        return name

    def _float_of(self, value: str) -> str:
        """A value as floats, dequantised here unless it is already."""
        if value not in self._as_codes or value in self._as_float:
            return self._as_float.get(value, value)
        codes = self._as_codes[value]
        name = self._new_float(value)
        self.nodes.append(helper.make_node("DequantizeLinear", [codes.tensor, *codes.parameters], [name]))
        return name

    def _new_codes(self, value: str, maker: NodeProto | None = None) -> Codes:
        """A value as codes with a scale of its own; ``maker`` is the layer that outputs it, if one does."""
        self._as_codes[value] = codes = Codes(f"{value}:codes", value)
        self.measured.append(value)
        self._declare(value)
        if maker is not None:
            self.coded[layer_name(maker)] = value
        return codes

    def _new_float(self, value: str) -> str:
        self._as_float[value] = value
        return value

    def _declare(self, activation: str) -> None:
        element = helper.np_dtype_to_tensor_dtype(self._codes.dtype)
        self.slots[f"{activation}:scale"] = Slot(())
        self.slots[f"{activation}:zero"] = Slot((), element)

    def _through_relu(self, value: str) -> str:
        """The output of a ReLU that is the value's only reader: codes that saturate at zero compute the ReLU."""
        reader = self._wiring.only_consumer(value)
        if reader is None or reader.op_type != "Relu":
            return value
        return reader.output[0]

    def _wants_codes(self, value: str) -> bool:
        """Whether every reader of a value is an integer layer, or forwards codes to integer layers only."""
        readers = self._wiring.consumers[value]
        inside = bool(readers) and not self._wiring.is_output(value)
        return inside and all(self._reads_codes(reader, value) for reader in readers)

    def _reads_codes(self, node: NodeProto, value: str) -> bool:
        if node.op_type in ("Gemm", "Conv"):
            return node.input[0] == value and self._formats.get(node.output[0]) == "int8"
        if node.op_type == "Add":
            return not any(self._is_fixed(name) for name in node.input) and self._wants_codes(node.output[0])
        if node.op_type in _PASS_THROUGH:
            return node.input[0] == value and self._wants_codes(node.output[0])
        return False

    def _is_integer(self, node: NodeProto) -> bool:
        """False for layers chosen to compute in floats."""
        return self._formats.get(node.output[0], "int8") in ("int8", "x16")

    def _is_fixed(self, name: str) -> bool:
        return name in self._graph.parameters or name in self._graph.constants

    def _refuse(self, node: NodeProto, reason: str) -> NoReturn:
        raise UnsupportedLayerError(
            f"layer {layer_name(node)!r} cannot be quantised statically: {reason}; use fp16 or fp32"
        )


def lay_out(integer: IntegerGraph, graph: PolicyGraph) -> Payload:
    """The bytes of the rewritten graph's model."""
    slots = {**integer.slots, **{name: Slot.like(graph.parameters[name]) for name in integer.floats}}
    constants = {name: graph.constants[name] for name in integer.constants}
    outputs = [spec.name for spec in graph.outputs]
    nodes: Sequence[NodeProto] = integer.nodes
    if not any(node.op_type == "Conv" for node in nodes):
        nodes = fuse_activations(nodes, outputs)
    payload = Payload(nodes, graph.inputs, graph.outputs, slots, constants, OPSET)
    if any(node.op_type == "MaxPool" for node in nodes) and not any(node.op_type == "Conv" for node in nodes):
        # onnxruntime's channels-last pooling of codes is thirty times faster
        nodes = optimised_nodes(payload, slots) or nodes
        return Payload(nodes, graph.inputs, graph.outputs, slots, constants, OPSET)
    return payload
