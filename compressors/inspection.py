"""What onnxruntime really runs for an artifact: the operators of the session's optimised graph."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import onnx
import onnxruntime as ort

from compressors.artifact import CompressedPolicy
from compressors.runtime import session_options

INTEGER_KERNELS = frozenset(
    {
        "QGemm",
        "QLinearConv",
        "QLinearAdd",
        "QLinearMatMul",
        "MatMulInteger",
        "ConvInteger",
        "DynamicQuantizeMatMul",
        "MatMulIntegerToFloat",
        "MatMulNBits",
        "QAttention",
    }
)
FLOAT_KERNELS = frozenset({"Gemm", "FusedGemm", "MatMul", "FusedMatMul", "Conv", "FusedConv", "LSTM", "GRU", "RNN"})


def operators(artifact: CompressedPolicy) -> Counter[str]:
    """How often each operator occurs in the graph that a session of this artifact executes."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "optimised.onnx"
        options = session_options(artifact.optimisation)
        options.optimized_model_filepath = str(path)
        options.log_severity_level = 4  # it warns that the file is for this kind of machine only
        ort.InferenceSession(artifact.model, options, providers=["CPUExecutionProvider"])
        return Counter(node.op_type for node in onnx.load(path).graph.node)


def integer_kernels(artifact: CompressedPolicy) -> Counter[str]:
    """The operators among them that multiply integers, with how often they occur."""
    return Counter({name: count for name, count in operators(artifact).items() if name in INTEGER_KERNELS})


def float_kernels(artifact: CompressedPolicy) -> Counter[str]:
    """The operators among them that multiply by weights in floating point: none are left in a quantised policy."""
    return Counter({name: count for name, count in operators(artifact).items() if name in FLOAT_KERNELS})
