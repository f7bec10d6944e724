"""``openvino``: OpenVINO's intermediate representation, model.xml and model.bin, in single precision or int8."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import onnx

from accel.compressors.artifact import CompressedPolicy
from accel.display.progress import Progress
from accel.errors import BundleError, ExportError, MissingExtraError
from accel.exporting.formats.base import ExportFormat, Vectors, Written
from accel.exporting.run_policy import Array, Contract, empty_arrays
from accel.exporting.standard_operators import dequantised_products, operators
from accel.system.extras import install_command

XML, BIN = "model.xml", "model.bin"
# by default the CPU plug-in computes float32 in bfloat16 on CPUs that have it
SETTINGS = MappingProxyType(
    {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": "1", "NUM_STREAMS": "1"}
)


class OpenVinoSession:
    """A ``PolicySession`` on OpenVINO's CPU plug-in, one thread."""

    def __init__(self, directory: Path, contract: Contract, batch: int) -> None:
        import openvino

        self.inputs: Mapping[str, Array] = empty_arrays(contract["inputs"], batch)
        self.outputs: Mapping[str, Array] = empty_arrays(contract["outputs"], batch)
        if contract["target"].get("settings") != dict(SETTINGS):
            raise BundleError(f"the contract of {directory} has other settings of OpenVINO than an export writes")
        core = openvino.Core()
        try:
            model = core.read_model(directory / XML)
            model.reshape({name: list(array.shape) for name, array in self.inputs.items()})
            compiled = core.compile_model(model, "CPU", dict(SETTINGS))
            request = compiled.create_infer_request()
            for name, array in {**self.inputs, **self.outputs}.items():
                request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
        except (RuntimeError, ValueError) as error:
            raise BundleError(f"OpenVINO {openvino.__version__} cannot load {directory / XML}: {error}") from error
        self._infer = request.infer

    def run(self) -> None:
        """Read ``inputs``, fill ``outputs``. Raises BundleError."""
        try:
            self._infer()
        except RuntimeError as error:
            raise BundleError(f"OpenVINO cannot run the bundle's model: {error}") from error


class OpenVinoFormat(ExportFormat):
    """See ``ExportFormat``."""

    name = "openvino"
    session = OpenVinoSession

    def require(self, *, writing: bool) -> None:
        """Raise MissingExtraError without OpenVINO."""
        if importlib.util.find_spec("openvino") is None:
            raise MissingExtraError(f"format openvino needs OpenVINO: {install_command('openvino')}")

    def write(self, artifact: CompressedPolicy, directory: Path, vectors: Vectors, progress: Progress) -> Written:
        """See ``ExportFormat.write``."""
        import openvino

        model = dequantised_products(onnx.load_from_string(artifact.model))
        foreign = [name for name in operators(model) if "." in name]
        if foreign:
            raise ExportError(
                f"format openvino cannot take operator {foreign[0]} of scheme {artifact.scheme!r}: choose fp32, fp16 "
                "or int8, or format onnx or ort"
            )
        try:
            converted = openvino.Core().read_model(model.SerializeToString())
        except RuntimeError as error:
            raise ExportError(f"OpenVINO cannot take scheme {artifact.scheme!r}: {error}") from error
        openvino.save_model(converted, directory / XML, compress_to_fp16=False)
        size = (directory / XML).stat().st_size + (directory / BIN).stat().st_size
        facts = {"settings": dict(SETTINGS), "operators": operators(model), "openvino": openvino.__version__}
        return Written((XML, BIN), size, facts)
