"""``ort``: onnxruntime's own file format, which its reduced builds for mobile and edge devices load."""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort

from accel.compressors.artifact import CompressedPolicy
from accel.compressors.runtime import session_options
from accel.display.progress import Progress
from accel.errors import ExportError
from accel.exporting.formats.base import Vectors, Written
from accel.exporting.formats.onnx import OnnxFormat

MODEL = "model.ort"


class OrtFormat(OnnxFormat):
    """See ``ExportFormat``. The file contains the optimisations that are valid on any CPU."""

    name = "ort"

    def write(self, artifact: CompressedPolicy, directory: Path, vectors: Vectors, progress: Progress) -> Written:
        """See ``ExportFormat.write``."""
        options = session_options(artifact.optimisation)
        if artifact.optimisation == "all":
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(directory / MODEL)
        options.add_session_config_entry("session.save_model_format", "ORT")
        try:
            # constant folding would turn 16-bit weights into 32-bit ones
            ort.InferenceSession(
                artifact.model, options, providers=["CPUExecutionProvider"], disabled_optimizers=["ConstantFolding"]
            )
        except Exception as error:  # onnxruntime's errors share no base but Exception
            raise ExportError(f"onnxruntime cannot write {artifact.scheme!r} as .ort: {error}") from error
        return Written((MODEL,), (directory / MODEL).stat().st_size)
