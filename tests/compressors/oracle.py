"""onnxruntime's own quantizer, as the oracle for ours: the same float graph, the same ranges.

What ours hands on as codes (flattening, pooling, a ReLU on codes) has the range of what it was handed. What the
oracle quantises and we compute in floats gets some range, which nothing that is compared depends on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.capi._pybind_state import quantize_matmul_4bits
from onnxruntime.quantization import CalibrationMethod, QuantType
from onnxruntime.quantization.calibrate import TensorsData
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from torch import nn

from accel.compressors.graph.policy_graph import OPSET
from accel.compressors.int8.integer_graph import IntegerLayer
from accel.compressors.int8.static import Int8Encoder
from accel.compressors.methods import Encoder
from accel.compressors.pipeline import make_compressor
from accel.compressors.plan import Plan
from tests.compressors.policies import Case

Arrays = dict[str, NDArray[np.generic]]
_HANDS_ON = ("Flatten", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "MaxPool", "Relu")
_QUANTISED = ["Gemm", "Conv", "Add", "Relu", "MaxPool", "Flatten", "Reshape"]
_UNUSED = (np.float32(-1.0), np.float32(1.0))
_PIXELS = (np.float32(0.0), np.float32(1.0))


def initializers(model: bytes) -> Arrays:
    """A serialised model's initializers by name."""
    return {t.name: numpy_helper.to_array(t) for t in onnx.load_from_string(model).graph.initializer}


def float_model(plan: Plan, module: nn.Module) -> onnx.ModelProto:
    """The policy, smaller if the plan makes it so, as a plain float ONNX model with its weights."""
    graph = plan.graph
    arrays = {**graph.constants, **plan.begin_update(module).parameters}
    values = [
        helper.make_tensor_value_info(s.name, helper.np_dtype_to_tensor_dtype(np.dtype(s.dtype)), ["b", *s.shape[1:]])
        for s in (*graph.inputs, *graph.outputs)
    ]
    count = len(graph.inputs)
    tensors = [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in arrays.items()]
    nodes = [made for node in graph.nodes for made in _in_floats(node)]
    body = helper.make_graph(nodes, "float", values[:count], values[count:], initializer=tensors)
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    model = onnx.shape_inference.infer_shapes(model)
    # the inference gives up at some joins of recurrent states; the oracle leaves out what has no type
    known = {value.name for value in (*model.graph.value_info, *model.graph.output)}
    made = [name for node in nodes for name in node.output if name not in known]
    model.graph.value_info.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in made)
    return model


def _in_floats(node: NodeProto) -> Iterator[NodeProto]:
    """The oracle would take pixels that are dequantised for codes of its own, unsigned whatever its variant."""
    if node.op_type != "DequantizeLinear":
        yield node
        return
    real = f"{node.output[0]}:real"
    yield helper.make_node("Cast", [node.input[0]], [real], to=TensorProto.FLOAT)
    yield helper.make_node("Mul", [real, node.input[1]], list(node.output))


def rounded_plan(case: Case, scheme: str, module: nn.Module) -> Plan:
    """As ``Case.bind``, of an ``int8`` whose steps and biases make up for nothing, as the oracle's."""
    compressor = make_compressor(scheme)
    made = cast("partial[Encoder]", compressor.format)
    rounded = replace(compressor, format=partial(made.func, *made.args[:-1], False, **made.keywords))
    return rounded.bind(module, case.examples(), case.inputs(128, seed=1), output_names=case.outputs)


def quantised_by_onnxruntime(plan: Plan, module: nn.Module) -> Arrays:
    """Initializers of the QDQ model at the ranges of an int8 plan, in its variant."""
    encoder = plan.encoder
    model = float_model(plan, module)
    every = {value.name: _UNUSED for value in (*model.graph.value_info, *model.graph.input, *model.graph.output)}
    known = {name: (np.float32(r.low), np.float32(r.high)) for name, r in encoder.ranges.items()}
    known.update({layer.activation: _PIXELS for layer in encoder.layers if layer.activation not in known})
    for node in model.graph.node:
        if node.op_type in _HANDS_ON and node.input[0] in known:
            known.setdefault(node.output[0], known[node.input[0]])
    quantizer = QDQQuantizer(
        model,
        per_channel=True,
        reduce_range=encoder.variant == "reduce_range",
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QInt8 if encoder.variant == "s8s8" else QuantType.QUInt8,
        tensors_range=TensorsData(CalibrationMethod.MinMax, {**every, **known}),
        nodes_to_quantize=[],
        nodes_to_exclude=[],
        op_types_to_quantize=_QUANTISED,
        extra_options={"WeightSymmetric": True, "ActivationSymmetric": False},
    )
    return initializers(quantizer.quantize_model().SerializeToString())


def four_bits(weight: NDArray[np.float32]) -> Arrays:
    """onnxruntime's own codes and scales of a matrix [N, K], filled up with zeros to whole blocks of 32."""
    outputs, blocks = len(weight), -(-weight.shape[1] // 32)
    whole = np.zeros((blocks * 32, outputs), np.float32)
    whole[: weight.shape[1]] = weight.T
    codes = np.zeros((outputs, blocks, 16), np.uint8)
    scales, zeros = np.zeros(outputs * blocks, np.float32), np.zeros(outputs * ((blocks + 1) // 2), np.uint8)
    quantize_matmul_4bits(codes, whole, scales, zeros, 32, outputs, len(whole), True)
    # ours is zero where a scale would be subnormal
    tiny = np.abs(scales) < np.finfo(np.float32).tiny
    scales[tiny] = 0.0
    codes.reshape(-1, 16)[tiny] = 0x88
    return {"codes": codes, "scale": scales}


def assert_layer_is_the_oracles(layer: IntegerLayer, found: Arrays, wanted: Arrays) -> None:
    """Codes, scales and zero points of a weight, and codes of its bias; where all weights of a scale are zero, ours is
    finer, and the bias what it is."""
    codes = found[f"{layer.stem}:codes"]
    same = codes.any(axis=tuple(d for d in range(codes.ndim) if d != layer.axis))
    for part, theirs in (("codes", "quantized"), ("scale", "scale"), ("zero", "zero_point")):
        ours, oracles = found[f"{layer.stem}:{part}"], wanted[f"{layer.weight}_{theirs}"]
        if part == "scale" and layer.bias:
            ours, oracles = np.where(same, ours, 1.0), np.where(same, oracles, 1.0)
        np.testing.assert_array_equal(ours, oracles, f"{part} of {layer.name}")
    if layer.bias:
        step = found[f"{layer.stem}:scale"] * found[f"{layer.activation}:scale"]
        their_step = wanted[f"{layer.weight}_scale"] * wanted[f"{layer.activation}_scale"]
        ours, oracles = found[layer.bias_codes], wanted[f"{layer.bias}_quantized"]
        np.testing.assert_array_equal(np.where(same, ours, 0), np.where(same, oracles, 0), f"bias of {layer.name}")
        error = np.abs(ours * np.float64(step) - oracles * np.float64(their_step))
        assert (error <= 0.51 * their_step).all(), f"bias of {layer.name}"


def assert_activations_are_the_oracles(encoder: Int8Encoder, found: Arrays, wanted: Arrays) -> None:
    """Scales and zero points of what integer layers read and put out; of what is always zero ours is the least code."""
    for name in {*encoder.ranges, *(layer.activation for layer in encoder.layers)}:
        np.testing.assert_array_equal(found[f"{name}:scale"], wanted[f"{name}_scale"], f"scale of {name}")
        known = encoder.ranges.get(name)
        empty = known is not None and known.low == known.high == 0.0
        zero = encoder.codes_of(name).minimum if empty else wanted[f"{name}_zero_point"]
        np.testing.assert_array_equal(found[f"{name}:zero"], zero, f"zero point of {name}")
