"""Compression-aware acting: a torch policy becomes a small ONNX artifact, refreshed often and run without torch.

Names resolve on first use, so that importing ``compressors.runtime`` on an actor never loads torch.
"""

from __future__ import annotations

import importlib

_HOMES = {
    "CompressedPolicy": "artifact",
    "TensorSpec": "artifact",
    "Compressor": "base",
    "Plan": "base",
    "Float32": "float",
    "Int8": "int8",
    "PolicySession": "runtime",
    "Scheme": "scheme",
    "make_compressor": "scheme",
    "parse_scheme": "scheme",
    "scheme_names": "scheme",
    "cpu_features": "cpu",
    "ArtifactError": "errors",
    "CalibrationError": "errors",
    "CompressorError": "errors",
    "GraphError": "errors",
    "SchemeError": "errors",
    "UnsupportedLayerError": "errors",
    "VerificationError": "errors",
    "WeightsError": "errors",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
