"""Compressed policies: a torch policy becomes a small ONNX artifact, refreshed often and run without torch.

Names resolve on first use, so that importing ``accel.compressors.runtime`` on an actor never loads torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accel.compressors.artifact import CompressedPolicy as CompressedPolicy
    from accel.compressors.artifact import TensorSpec as TensorSpec
    from accel.compressors.checks.executed_kernels import float_kernels as float_kernels
    from accel.compressors.checks.executed_kernels import integer_kernels as integer_kernels
    from accel.compressors.checks.executed_kernels import weight_only_layers as weight_only_layers
    from accel.compressors.checks.verify import verify_artifact as verify_artifact
    from accel.compressors.cpu import cpu_features as cpu_features
    from accel.compressors.errors import ArtifactError as ArtifactError
    from accel.compressors.errors import CalibrationError as CalibrationError
    from accel.compressors.errors import CompressorError as CompressorError
    from accel.compressors.errors import GraphError as GraphError
    from accel.compressors.errors import SchemeError as SchemeError
    from accel.compressors.errors import UnsupportedLayerError as UnsupportedLayerError
    from accel.compressors.errors import VerificationError as VerificationError
    from accel.compressors.errors import WeightsError as WeightsError
    from accel.compressors.pipeline import Compressor as Compressor
    from accel.compressors.pipeline import make_compressor as make_compressor
    from accel.compressors.plan import Plan as Plan
    from accel.compressors.qat.fake_quantiser import FakeQuantiser as FakeQuantiser
    from accel.compressors.runtime import PolicySession as PolicySession
    from accel.compressors.scheme import Scheme as Scheme
    from accel.compressors.scheme import parse_scheme as parse_scheme

_NAMES = {
    "artifact": ("CompressedPolicy", "TensorSpec"),
    "checks.executed_kernels": ("float_kernels", "integer_kernels", "weight_only_layers"),
    "checks.verify": ("verify_artifact",),
    "cpu": ("cpu_features",),
    "errors": (
        "ArtifactError",
        "CalibrationError",
        "CompressorError",
        "GraphError",
        "SchemeError",
        "UnsupportedLayerError",
        "VerificationError",
        "WeightsError",
    ),
    "pipeline": ("Compressor", "make_compressor"),
    "plan": ("Plan",),
    "qat.fake_quantiser": ("FakeQuantiser",),
    "runtime": ("PolicySession",),
    "scheme": ("Scheme", "parse_scheme"),
}
"""Names by the module that has them."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
