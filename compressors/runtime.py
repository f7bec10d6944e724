"""PolicySession: a loaded artifact that acts on one thread. Imports numpy, never torch or onnx.

A policy of dense layers, recurrent ones included, runs in one call of a compiled kernel (``kernels``) where the CPU has
one, anything else on onnxruntime, which is imported then: a device whose policies are such does without it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NoReturn

import numpy as np

from accel.compressors.arrays import Array
from accel.compressors.artifact import CompressedPolicy, TensorSpec
from accel.compressors.cpu import cpu_features
from accel.compressors.errors import ArtifactError
from accel.compressors.kernels.chain import make_chain

if TYPE_CHECKING:
    import onnxruntime as ort

Runtime = Literal["native", "onnxruntime"]

_LEVELS = {"none": "ORT_DISABLE_ALL", "basic": "ORT_ENABLE_BASIC", "all": "ORT_ENABLE_ALL"}
_FATAL_ONLY = 4  # log level: errors are raised with the same message
_NOWHERE = "/dev/null/nowhere"
# onnxruntime's names of the types that an artifact's header may have
_TYPES = {
    "float32": "tensor(float)",
    "float16": "tensor(float16)",
    **{name: f"tensor({name})" for name in ("uint8", "int8", "int32", "int64", "bool")},
}


def session_options(optimisation: str = "none") -> ort.SessionOptions:
    """Options of every session: one thread, no spinning, no log."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, _LEVELS[optimisation])
    options.log_severity_level = _FATAL_ONLY
    # fold 16- and 4-bit weights to single precision instead of fusing them into quantised layers
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    # an artifact holds all of its weights: none are read from files, whose paths would begin here
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", _NOWHERE)
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    return options


class PolicySession:
    """A policy loaded for a fixed batch: write ``inputs``, call ``run``, read ``outputs``.

    The arrays are allocated once and bound to the session: a call neither allocates nor copies.

    Attributes:
        artifact: the one loaded.
        batch: rows in every input and output.
        runtime: what runs it: ``native`` or ``onnxruntime``.
        ran_on: the same, and why the compiled kernels do not run it, where they were asked to.
        inputs: name to array; observations [batch, *shape] first, then recurrent state (zero at first).
        outputs: name to array; distribution parameters [batch, P] first, then the next recurrent state.
        run: computes ``outputs`` from ``inputs``. Raises ArtifactError: the model fails on this batch.
    """

    run: Callable[[], None]

    def __init__(self, artifact: CompressedPolicy, *, batch: int, runtime: Runtime = "native") -> None:
        """Load an artifact.

        Args:
            artifact: of any scheme.
            batch: rows.
            runtime: ``native``: on a compiled kernel if it is made of dense layers and this CPU has one for it, else
                on onnxruntime; ``onnxruntime``: there in any case.
        Raises:
            ArtifactError: the CPU lacks a feature that the artifact needs, its model cannot be loaded or has other
                inputs or outputs than its header, or it runs on onnxruntime and that is not installed.
            ValueError: the batch is not positive.
        """
        if batch < 1:
            raise ValueError(f"batch is {batch}; give at least 1 row")
        missing = [feature for feature in artifact.cpu_features if feature not in cpu_features()]
        if missing:
            raise ArtifactError(
                f"policy {artifact.scheme!r} needs a CPU with {', '.join(missing)}, which this machine lacks; request "
                f"a policy for this machine's features ({', '.join(sorted(cpu_features())) or 'none'})"
            )
        self.artifact = artifact
        made = make_chain(artifact) if runtime == "native" else ""
        self._kernel = None if isinstance(made, str) else made
        self.runtime: Runtime = "onnxruntime" if self._kernel is None else "native"
        self.ran_on = self.runtime if self.runtime == runtime else f"{self.runtime} ({made})"
        self._session = _load(artifact, self.ran_on) if self._kernel is None else None
        self._bind(batch)

    def with_batch(self, batch: int) -> PolicySession:
        """The loaded model for another number of rows, with arrays of its own. Raises ArtifactError."""
        other = copy.copy(self)
        other._bind(batch)
        return other

    def _bind(self, batch: int) -> None:
        artifact = self.artifact
        self.batch = batch
        self.inputs: Mapping[str, Array] = {spec.name: _zeros(spec, batch) for spec in artifact.inputs}
        self.outputs: Mapping[str, Array] = {spec.name: _zeros(spec, batch) for spec in artifact.outputs}
        if self._kernel is not None:
            self.run = self._kernel.bind((*self.inputs.values(), *self.outputs.values()))
        elif self._session is not None:
            self._bind_session(self._session)

    def _bind_session(self, session: ort.InferenceSession) -> None:
        artifact, batch = self.artifact, self.batch
        try:
            _check_tensors(artifact, "inputs", artifact.inputs, session.get_inputs(), batch)
            _check_tensors(artifact, "outputs", artifact.outputs, session.get_outputs(), batch)
        except UnicodeDecodeError as error:  # onnxruntime hands names on as they are
            _refuse(artifact, f"its model has names that are no text ({error})")
        binding = session.io_binding()
        for name, array in self.inputs.items():
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        for name, array in self.outputs.items():
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        run = session.run_with_iobinding

        def run_session() -> None:
            try:
                run(binding)
            except Exception as error:  # onnxruntime's errors share no base but Exception
                raise ArtifactError(
                    f"policy {artifact.scheme!r} version {artifact.version} fails on {batch} rows: {error}; discard it "
                    "and wait for the next version"
                ) from error

        self.run = run_session


def _zeros(spec: TensorSpec, batch: int) -> Array:
    return np.zeros(spec.with_batch(batch), dtype=spec.dtype)


def _load(artifact: CompressedPolicy, ran_on: str) -> ort.InferenceSession:
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise ArtifactError(
            f"policy {artifact.scheme!r} runs on {ran_on}, which is not installed: pip install onnxruntime"
        ) from error
    try:
        return ort.InferenceSession(
            artifact.model,
            session_options(artifact.optimisation),
            providers=["CPUExecutionProvider"],
            enable_fallback=0,  # it would retry with the same provider and print a banner
        )
    except Exception as error:  # onnxruntime's errors share no base but Exception
        raise ArtifactError(
            f"policy {artifact.scheme!r} version {artifact.version} cannot be loaded: {error}; discard it and wait "
            "for the next version"
        ) from error


def _check_tensors(
    artifact: CompressedPolicy, what: str, specs: tuple[TensorSpec, ...], found: Sequence[ort.NodeArg], batch: int
) -> None:
    """Check that the model has the header's tensors: the same names, types and sizes, for any batch or this one."""
    by_name = {node.name: node for node in found}
    if by_name.keys() != {spec.name for spec in specs}:
        announced = ", ".join(spec.name for spec in specs)
        _refuse(artifact, f"its header declares the {what} {announced}, but its model has {', '.join(by_name)}")
    for spec in specs:
        node = by_name[spec.name]
        fits = len(node.shape) == len(spec.shape) and all(
            ours == theirs or (ours is None and (theirs == batch or not isinstance(theirs, int)))
            for ours, theirs in zip(spec.shape, node.shape, strict=True)
        )
        if not fits or node.type != _TYPES[spec.dtype]:
            _refuse(
                artifact,
                f"its header declares {what} {spec.name!r} as {_TYPES[spec.dtype]} {list(spec.shape)}, but its model "
                f"has {node.type} {node.shape} (None: any number of rows, here {batch})",
            )


def _refuse(artifact: CompressedPolicy, reason: str) -> NoReturn:
    raise ArtifactError(
        f"policy {artifact.scheme!r} version {artifact.version} is inconsistent: {reason}; discard it and wait for the "
        "next version"
    )
