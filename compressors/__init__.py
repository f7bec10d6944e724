"""Compressed policies: a torch policy becomes a small ONNX artifact, refreshed often and run without torch.

Names resolve on first use, so that importing ``accel.compressors.runtime`` on an actor never loads torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accel.compressors.artifact import CompressedPolicy, TensorSpec
    from accel.compressors.checks.executed_kernels import float_kernels, integer_kernels, weight_only_layers
    from accel.compressors.checks.verify import OutputMismatch, verify_artifact
    from accel.compressors.cpu import cpu_features
    from accel.compressors.distill import Distill
    from accel.compressors.errors import (
        ArtifactError,
        CalibrationError,
        CompressorError,
        GraphError,
        SchemeError,
        UnsupportedLayerError,
        VerificationError,
        WeightsError,
    )
    from accel.compressors.fp16 import Float16
    from accel.compressors.fp32 import Float32
    from accel.compressors.int4 import Int4
    from accel.compressors.int8.static import Int8
    from accel.compressors.layer_inventory import PolicyLayer, policy_layers
    from accel.compressors.lowrank import LowRank
    from accel.compressors.pipeline import compose, make_compressor
    from accel.compressors.plan import Compressor, Plan, PlanStatistics
    from accel.compressors.prune.structured import Prune
    from accel.compressors.qat.fake_quantiser import FakeQuantiser
    from accel.compressors.runtime import PolicySession
    from accel.compressors.scheme import Scheme, parse_scheme, scheme_names

_HOMES = {
    "CompressedPolicy": "artifact",
    "TensorSpec": "artifact",
    "Compressor": "plan",
    "Plan": "plan",
    "PlanStatistics": "plan",
    "cpu_features": "cpu",
    "Distill": "distill",
    "ArtifactError": "errors",
    "CalibrationError": "errors",
    "CompressorError": "errors",
    "GraphError": "errors",
    "SchemeError": "errors",
    "UnsupportedLayerError": "errors",
    "VerificationError": "errors",
    "WeightsError": "errors",
    "Float32": "fp32",
    "Float16": "fp16",
    "float_kernels": "checks.executed_kernels",
    "integer_kernels": "checks.executed_kernels",
    "weight_only_layers": "checks.executed_kernels",
    "Int4": "int4",
    "Int8": "int8.static",
    "PolicyLayer": "layer_inventory",
    "policy_layers": "layer_inventory",
    "LowRank": "lowrank",
    "Prune": "prune.structured",
    "FakeQuantiser": "qat.fake_quantiser",
    "PolicySession": "runtime",
    "Scheme": "scheme",
    "compose": "pipeline",
    "make_compressor": "pipeline",
    "parse_scheme": "scheme",
    "scheme_names": "scheme",
    "OutputMismatch": "checks.verify",
    "verify_artifact": "checks.verify",
}

__all__ = [
    "ArtifactError",
    "CalibrationError",
    "CompressedPolicy",
    "Compressor",
    "CompressorError",
    "Distill",
    "FakeQuantiser",
    "Float16",
    "Float32",
    "GraphError",
    "Int4",
    "Int8",
    "LowRank",
    "OutputMismatch",
    "Plan",
    "PlanStatistics",
    "PolicyLayer",
    "PolicySession",
    "Prune",
    "Scheme",
    "SchemeError",
    "TensorSpec",
    "UnsupportedLayerError",
    "VerificationError",
    "WeightsError",
    "compose",
    "cpu_features",
    "float_kernels",
    "integer_kernels",
    "make_compressor",
    "parse_scheme",
    "policy_layers",
    "scheme_names",
    "verify_artifact",
    "weight_only_layers",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
