"""Compression-aware acting: a torch policy becomes a small ONNX artifact, refreshed often and run without torch.

Names resolve on first use, so that importing ``compressors.runtime`` on an actor never loads torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compressors.artifact import CompressedPolicy, TensorSpec
    from compressors.base import Compressor, Plan
    from compressors.cpu import cpu_features
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
    from compressors.int8 import Int8
    from compressors.runtime import PolicySession
    from compressors.scheme import Scheme, make_compressor, parse_scheme, scheme_names

_HOMES = {
    "CompressedPolicy": "artifact",
    "TensorSpec": "artifact",
    "Compressor": "base",
    "Plan": "base",
    "cpu_features": "cpu",
    "ArtifactError": "errors",
    "CalibrationError": "errors",
    "CompressorError": "errors",
    "GraphError": "errors",
    "SchemeError": "errors",
    "UnsupportedLayerError": "errors",
    "VerificationError": "errors",
    "WeightsError": "errors",
    "Float32": "float",
    "Int8": "int8",
    "PolicySession": "runtime",
    "Scheme": "scheme",
    "make_compressor": "scheme",
    "parse_scheme": "scheme",
    "scheme_names": "scheme",
}

__all__ = [
    "ArtifactError",
    "CalibrationError",
    "CompressedPolicy",
    "Compressor",
    "CompressorError",
    "Float32",
    "GraphError",
    "Int8",
    "Plan",
    "PolicySession",
    "Scheme",
    "SchemeError",
    "TensorSpec",
    "UnsupportedLayerError",
    "VerificationError",
    "WeightsError",
    "cpu_features",
    "make_compressor",
    "parse_scheme",
    "scheme_names",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
