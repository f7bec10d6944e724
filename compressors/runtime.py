"""PolicySession: an artifact, ready to act on one thread. Imports numpy and onnxruntime, never torch or onnx."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from compressors.artifact import CompressedPolicy, TensorSpec
from compressors.cpu import cpu_features
from compressors.errors import ArtifactError

Array = NDArray[np.generic]

_LEVELS = {
    "none": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_NOTHING = 4  # every error is raised as well, with the same words
# as onnxruntime calls the types that an artifact's header may name
_TYPES = {
    "float32": "tensor(float)",
    "float16": "tensor(float16)",
    **{name: f"tensor({name})" for name in ("uint8", "int8", "int32", "int64", "bool")},
}


def session_options(optimisation: str = "none") -> ort.SessionOptions:
    """Options of every session here: one thread, no spinning, nothing in the log."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = _LEVELS[optimisation]
    options.log_severity_level = _NOTHING
    # fold weights that arrive as 16 or 4 bits to single precision instead of looking for float layers to quantise
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    return options


class PolicySession:
    """A policy loaded for a fixed batch: write ``inputs``, call ``run``, read ``outputs``.

    The arrays are allocated once and bound to the session, so that a call neither allocates nor copies.

    Attributes:
        artifact: what was loaded.
        batch: rows in every input and output.
        inputs: name to array; observations [batch, *shape] first, then recurrent state (zero at first).
        outputs: name to array; distribution parameters [batch, P] first, then the next recurrent state.
    """

    def __init__(self, artifact: CompressedPolicy, *, batch: int) -> None:
        """Load an artifact.

        Raises:
            ArtifactError: the CPU lacks a feature that the artifact needs, its model cannot be loaded, or that is not
                the model of its header.
            ValueError: the batch is not positive.
        """
        if batch < 1:
            raise ValueError(f"batch is {batch}; a session needs at least one row")
        missing = [feature for feature in artifact.cpu_features if feature not in cpu_features()]
        if missing:
            raise ArtifactError(
                f"policy {artifact.scheme!r} needs a CPU with {', '.join(missing)}, which this one lacks; ask for a "
                f"policy for this machine's features ({', '.join(sorted(cpu_features())) or 'none'})"
            )
        self.artifact = artifact
        self.batch = batch
        self._session = _load(artifact)
        _check_tensors(artifact, "inputs", artifact.inputs, self._session.get_inputs(), batch)
        _check_tensors(artifact, "outputs", artifact.outputs, self._session.get_outputs(), batch)
        self._binding = self._session.io_binding()
        self.inputs: Mapping[str, Array] = {spec.name: self._bind_input(spec) for spec in artifact.inputs}
        self.outputs: Mapping[str, Array] = {spec.name: self._bind_output(spec) for spec in artifact.outputs}

    def run(self) -> None:
        """Read ``inputs``, fill ``outputs``.

        Raises:
            ArtifactError: the model does not compute what its header says, for this batch.
        """
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:  # onnxruntime's errors share no base but Exception
            raise ArtifactError(
                f"policy {self.artifact.scheme!r} version {self.artifact.version} fails on {self.batch} rows: {error}; "
                "discard it and wait for the next version"
            ) from error

    def _bind_input(self, spec: TensorSpec) -> Array:
        array = np.zeros(spec.with_batch(self.batch), dtype=spec.dtype)
        self._binding.bind_input(spec.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        return array

    def _bind_output(self, spec: TensorSpec) -> Array:
        array = np.zeros(spec.with_batch(self.batch), dtype=spec.dtype)
        self._binding.bind_output(spec.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        return array


def _load(artifact: CompressedPolicy) -> ort.InferenceSession:
    try:
        return ort.InferenceSession(
            artifact.model,
            session_options(artifact.optimisation),
            providers=["CPUExecutionProvider"],
            enable_fallback=0,  # to the same provider, with a banner on stdout
        )
    except Exception as error:  # onnxruntime's errors share no base but Exception
        raise ArtifactError(
            f"policy {artifact.scheme!r} version {artifact.version} cannot be loaded: {error}"
        ) from error


def _check_tensors(
    artifact: CompressedPolicy, what: str, specs: tuple[TensorSpec, ...], found: Sequence[ort.NodeArg], batch: int
) -> None:
    """Hold the model's tensors against the header's: the same names, types and sizes, any batch or this one."""
    by_name = {node.name: node for node in found}
    if by_name.keys() != {spec.name for spec in specs}:
        announced = ", ".join(spec.name for spec in specs)
        _refuse(artifact, f"its header announces the {what} {announced}, its model has {', '.join(by_name)}")
    for spec in specs:
        node = by_name[spec.name]
        fits = len(node.shape) == len(spec.shape) and all(
            ours == theirs or (ours is None and (theirs == batch or not isinstance(theirs, int)))
            for ours, theirs in zip(spec.shape, node.shape, strict=True)
        )
        if not fits or node.type != _TYPES[spec.dtype]:
            _refuse(
                artifact,
                f"its header announces {what} {spec.name!r} as {_TYPES[spec.dtype]} {list(spec.shape)}, its model has "
                f"{node.type} {node.shape} (None: any number of rows, here {batch})",
            )


def _refuse(artifact: CompressedPolicy, reason: str) -> NoReturn:
    raise ArtifactError(
        f"policy {artifact.scheme!r} version {artifact.version} is not what it says: {reason}; discard it and wait for "
        "the next version"
    )
