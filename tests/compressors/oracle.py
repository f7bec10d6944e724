"""onnxruntime's own quantizer, as the oracle for ours: the same float graph, the same ranges."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationMethod, QuantType
from onnxruntime.quantization.calibrate import TensorsData
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from torch import nn

from compressors.graph import OPSET, export_policy
from compressors.int8 import Int8Encoder
from compressors.state import read_state
from tests.compressors.policies import Case


def initializers(model: bytes) -> dict[str, NDArray[np.generic]]:
    """A serialised model's initializers by name."""
    return {t.name: numpy_helper.to_array(t) for t in onnx.load_from_string(model).graph.initializer}


def float_model(case: Case, module: nn.Module) -> onnx.ModelProto:
    """The policy as a plain float ONNX model with its weights."""
    graph = export_policy(module, case.examples(), case.outputs)
    arrays = {**graph.constants, **graph.read(read_state(module, graph.leaves))}
    values = [
        helper.make_tensor_value_info(s.name, helper.np_dtype_to_tensor_dtype(np.dtype(s.dtype)), ["b", *s.shape[1:]])
        for s in (*graph.inputs, *graph.outputs)
    ]
    count = len(graph.inputs)
    tensors = [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in arrays.items()]
    body = helper.make_graph(graph.nodes, "float", values[:count], values[count:], initializer=tensors)
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def inputs_of_layers(model: onnx.ModelProto) -> dict[str, str]:
    """What the layer of each weight reads."""
    return {node.input[1]: node.input[0] for node in model.graph.node if node.op_type in ("Gemm", "Conv")}


def quantised_by_onnxruntime(case: Case, module: nn.Module, encoder: Int8Encoder) -> dict[str, NDArray[np.generic]]:
    """Initializers of the QDQ model at the encoder's ranges, in its variant."""
    model = float_model(case, module)
    one = (np.float32(-1.0), np.float32(1.0))
    every = {value.name: one for value in (*model.graph.value_info, *model.graph.input, *model.graph.output)}
    every.update({name: (np.float32(r.low), np.float32(r.high)) for name, r in encoder.ranges.items()})
    read = inputs_of_layers(model)
    for layer in encoder.layers:
        if layer.activation in encoder.ranges:  # ours passes codes through flattening, pooling and ReLU as they are
            every[read[layer.weight]] = every[layer.activation]
    quantizer = QDQQuantizer(
        model,
        per_channel=encoder.per_channel,
        reduce_range=encoder.variant == "reduce_range",
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QInt8 if encoder.variant == "s8s8" else QuantType.QUInt8,
        tensors_range=TensorsData(CalibrationMethod.MinMax, every),
        nodes_to_quantize=[],
        nodes_to_exclude=[],
        op_types_to_quantize=["Gemm", "Conv"],
        extra_options={"WeightSymmetric": True, "ActivationSymmetric": False},
    )
    return initializers(quantizer.quantize_model().SerializeToString())
