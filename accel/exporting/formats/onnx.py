"""``onnx``: the model that actors run, in standard operators."""

from __future__ import annotations

from pathlib import Path

from accel.compressors.artifact import CompressedPolicy
from accel.display.progress import Progress
from accel.exporting.formats.base import ExportFormat, Vectors, Written
from accel.exporting.run_policy import OnnxSession

MODEL = "model.onnx"


class OnnxFormat(ExportFormat):
    """See ``ExportFormat``."""

    name = "onnx"
    runs_onnx = True
    session = OnnxSession

    def formed(self, artifact: CompressedPolicy) -> CompressedPolicy:
        """See ``ExportFormat.formed``."""
        from accel.exporting.standard_operators import standard_artifact  # needs onnx, which a device's runtime has not

        return standard_artifact(artifact)

    def write(self, artifact: CompressedPolicy, directory: Path, vectors: Vectors, progress: Progress) -> Written:
        """See ``ExportFormat.write``."""
        (directory / MODEL).write_bytes(artifact.model)
        return Written((MODEL,), len(artifact.model))
