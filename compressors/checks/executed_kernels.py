"""The kernels that onnxruntime executes for an artifact: which layers multiply integers, and which are weight-only."""

from __future__ import annotations

from collections import Counter

import onnx
from onnx import NodeProto

from accel.compressors.artifact import CompressedPolicy
from accel.compressors.graph.optimise import optimised_graph
from accel.compressors.graph.wiring import int_attribute, layer_name

INTEGER_KERNELS = frozenset({"QGemm", "QLinearConv", "QLinearAdd"})
FLOAT_KERNELS = frozenset({"Gemm", "FusedGemm", "MatMul", "FusedMatMul", "Conv", "FusedConv", "LSTM", "GRU", "RNN"})
_NIBBLES, _INT8_ACTIVATIONS = "MatMulNBits", 4
_WIDENING = frozenset({"DequantizeLinear", "Cast"})


def operators(artifact: CompressedPolicy) -> Counter[str]:
    """How often each operator occurs in the graph that a session of this artifact executes (after optimisation)."""
    return Counter(node.op_type for node in _executed(artifact))


def integer_kernels(artifact: CompressedPolicy) -> Counter[str]:
    """Executed operators that multiply integers, with their counts.

    MatMulNBits counts where it is set to round activations to 8 bits: onnxruntime then multiplies integers on CPUs with
    AVX2, AVX-512 or ARM's dot products, and floats elsewhere.
    """
    return Counter(node.op_type for node in _executed(artifact) if _is_integer(node))


def float_kernels(artifact: CompressedPolicy) -> Counter[str]:
    """Executed operators that multiply by weights in floating point; an ``int8`` policy has none."""
    floats = FLOAT_KERNELS | {_NIBBLES}
    return Counter(n.op_type for n in _executed(artifact) if n.op_type in floats and not _is_integer(n))


def weight_only_layers(artifact: CompressedPolicy) -> tuple[str, ...]:
    """Layers whose weights are stored in fewer bits and dequantised for a float kernel."""
    graph = onnx.load_from_string(artifact.model).graph
    weights = {tensor.name for tensor in graph.initializer}
    widened = {n.output[0] for n in graph.node if n.op_type in _WIDENING and n.input[0] in weights}
    found = [n for n in graph.node if n.op_type in FLOAT_KERNELS and not widened.isdisjoint(n.input[1:])]
    return tuple(map(layer_name, found))


def _is_integer(node: NodeProto) -> bool:
    if node.op_type == _NIBBLES:
        return int_attribute(node, "accuracy_level", 0) == _INT8_ACTIVATIONS
    return node.op_type in INTEGER_KERNELS


def _executed(artifact: CompressedPolicy) -> list[NodeProto]:
    return list(optimised_graph(artifact.model, artifact.optimisation).node)
