"""``onnx``: the model that actors run, in standard operators."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel.compressors.artifact import CompressedPolicy
from accel.display.progress import Progress
from accel.errors import BundleError
from accel.exporting import run_policy
from accel.exporting.formats.base import ExportFormat, Vectors, Written

if TYPE_CHECKING:  # which a device's runtime has not
    from accel.acting.policy import InPlaceSession

MODEL = "model.onnx"


class OnnxFormat(ExportFormat):
    """See ``ExportFormat``."""

    name = "onnx"
    runs_onnx = True

    def formed(self, artifact: CompressedPolicy) -> CompressedPolicy:
        """See ``ExportFormat.formed``."""
        from accel.exporting.standard_operators import standard_artifact  # needs onnx, which a device's runtime has not

        return standard_artifact(artifact)

    def write(self, artifact: CompressedPolicy, directory: Path, vectors: Vectors, progress: Progress) -> Written:
        """See ``ExportFormat.write``."""
        (directory / MODEL).write_bytes(artifact.model)
        return Written((MODEL,), len(artifact.model))

    def session(self, directory: Path, contract: Mapping[str, Any], batch: int) -> InPlaceSession:
        """See ``ExportFormat.session``."""
        try:
            return run_policy.OnnxSession(directory, dict(contract), batch)
        except run_policy.BundleError as error:
            raise BundleError(str(error)) from error
