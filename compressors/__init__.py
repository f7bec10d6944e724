"""Compression-aware acting: a torch policy becomes a small ONNX artifact, refreshed often and run without torch.

Names resolve on first use, so that importing ``compressors.runtime`` on an actor never loads torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compressors.artifact import CompressedPolicy, TensorSpec
    from compressors.base import Compressor, Plan, PlanStatistics
    from compressors.cpu import cpu_features
    from compressors.distill import Distill
    from compressors.dynamic import DynamicInt8
    from compressors.errors import (
        ArtifactError,
        CalibrationError,
        CompressorError,
        GraphError,
        SchemeError,
        UnsupportedLayerError,
        VerificationError,
        WeightsError,
    )
    from compressors.float import Float32
    from compressors.half import Float16
    from compressors.inspection import float_kernels, integer_kernels, weight_only_layers
    from compressors.int4 import Int4
    from compressors.int8 import Int8
    from compressors.inventory import PolicyLayer, policy_layers
    from compressors.lowrank import LowRank
    from compressors.prune import Prune
    from compressors.qat import FakeQuantiser
    from compressors.runtime import PolicySession
    from compressors.scheme import Scheme, make_compressor, parse_scheme, scheme_names
    from compressors.study import StudyRow, quantisation_study
    from compressors.verify import Mismatch, verify_artifact

_HOMES = {
    "CompressedPolicy": "artifact",
    "TensorSpec": "artifact",
    "Compressor": "base",
    "Plan": "base",
    "PlanStatistics": "base",
    "cpu_features": "cpu",
    "Distill": "distill",
    "DynamicInt8": "dynamic",
    "ArtifactError": "errors",
    "CalibrationError": "errors",
    "CompressorError": "errors",
    "GraphError": "errors",
    "SchemeError": "errors",
    "UnsupportedLayerError": "errors",
    "VerificationError": "errors",
    "WeightsError": "errors",
    "Float32": "float",
    "Float16": "half",
    "float_kernels": "inspection",
    "integer_kernels": "inspection",
    "weight_only_layers": "inspection",
    "Int4": "int4",
    "Int8": "int8",
    "PolicyLayer": "inventory",
    "policy_layers": "inventory",
    "LowRank": "lowrank",
    "Prune": "prune",
    "FakeQuantiser": "qat",
    "PolicySession": "runtime",
    "Scheme": "scheme",
    "make_compressor": "scheme",
    "parse_scheme": "scheme",
    "scheme_names": "scheme",
    "StudyRow": "study",
    "quantisation_study": "study",
    "Mismatch": "verify",
    "verify_artifact": "verify",
}

__all__ = [
    "ArtifactError",
    "CalibrationError",
    "CompressedPolicy",
    "Compressor",
    "CompressorError",
    "Distill",
    "DynamicInt8",
    "FakeQuantiser",
    "Float16",
    "Float32",
    "GraphError",
    "Int4",
    "Int8",
    "LowRank",
    "Mismatch",
    "Plan",
    "PlanStatistics",
    "PolicyLayer",
    "PolicySession",
    "Prune",
    "Scheme",
    "SchemeError",
    "StudyRow",
    "TensorSpec",
    "UnsupportedLayerError",
    "VerificationError",
    "WeightsError",
    "cpu_features",
    "float_kernels",
    "integer_kernels",
    "make_compressor",
    "parse_scheme",
    "policy_layers",
    "quantisation_study",
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
