"""Check an artifact against the policy that it was made from, before it is published."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from accel.compressors.arrays import Array
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.errors import ArtifactError, VerificationError
from accel.compressors.runtime import PolicySession

if TYPE_CHECKING:
    import torch


_ROUNDING = float(np.finfo(np.float32).eps)


def verify_artifact(
    artifact: CompressedPolicy,
    reference: torch.nn.Module,
    inputs: Mapping[str, Array],
    bound: float | None,
    *,
    measure: Callable[[Array, Array], float] | None = None,
) -> float:
    """Decode an artifact from its own bytes, load it, run it, and compare its outputs with the policy's.

    Args:
        artifact: the one to be published.
        reference: the acting policy with the weights that the artifact was made from.
        inputs: real inputs by name, [N, *shape], N ≥ 1.
        bound: greatest mismatch allowed; None: only shapes and finiteness are checked.
        measure: (the policy's parameters, the artifact's), both [N, P], to a mismatch, such as a divergence of the
            distributions that they describe; None: ``relative_error``.
    Returns:
        The mismatch of the first output.
    Raises:
        VerificationError: it cannot be decoded or loaded, an input has a wrong shape or type, an output has another
            shape than the policy's or is not finite, or the mismatch exceeds the bound.
    """
    device = next(reference.parameters()).device
    found, wanted = run_artifact(artifact, inputs), reference_outputs(artifact, reference, inputs, device)
    check_outputs(artifact, found, wanted)
    mismatch = relative_error(found[0], wanted[0]) if measure is None else measure(wanted[0], found[0])
    if bound is not None and not mismatch <= bound:
        raise VerificationError(
            f"policy {artifact.scheme!r} differs from the learner's by {mismatch:.3g}, over the bound of "
            f"{bound:g}; calibrate, reselect, or use a scheme that compresses less"
        )
    return mismatch


def reference_outputs(
    artifact: CompressedPolicy, reference: torch.nn.Module, inputs: Mapping[str, Array], device: torch.device
) -> list[Array]:
    """The policy's own outputs, computed on its device, for inputs by name, [N, *shape]; in the artifact's order."""
    import torch

    return module_outputs(reference, (torch.from_numpy(inputs[spec.name]).to(device) for spec in artifact.inputs))


def module_outputs(module: torch.nn.Module, inputs: Iterable[torch.Tensor]) -> list[Array]:
    """What a policy's module gives, one array for each output."""
    import torch

    with torch.no_grad():
        result = module(*inputs)
    return [tensor.cpu().numpy() for tensor in ((result,) if isinstance(result, torch.Tensor) else result)]


def check_outputs(artifact: CompressedPolicy, found: Sequence[Array], wanted: Sequence[Array]) -> None:
    """Check an artifact's outputs: the policy's shapes, and finite values.

    Raises:
        VerificationError: an output has another shape than the policy's or is not finite.
    """
    if [a.shape for a in found] != [a.shape for a in wanted]:
        raise VerificationError(
            f"policy {artifact.scheme!r} returns shapes {[a.shape for a in found]}, but the module returns "
            f"{[a.shape for a in wanted]}; bind the scheme to the module again"
        )
    for spec, array in zip(artifact.outputs, found, strict=True):
        if not np.isfinite(array).all():
            raise VerificationError(
                f"output {spec.name!r} of policy {artifact.scheme!r} is not finite; do not publish it"
            )


def run_artifact(artifact: CompressedPolicy, inputs: Mapping[str, Array]) -> list[Array]:
    """Outputs of an artifact, decoded from its own bytes and run on onnxruntime. Raises VerificationError."""
    missing = [spec.name for spec in artifact.inputs if spec.name not in inputs]
    if missing:
        raise VerificationError(f"input {missing[0]!r} is missing; give {[spec.name for spec in artifact.inputs]}")
    rows = len(inputs[artifact.inputs[0].name])
    for spec in artifact.inputs:
        array = inputs[spec.name]
        if rows < 1 or array.shape != spec.with_batch(rows) or array.dtype != np.dtype(spec.dtype):
            raise VerificationError(
                f"input {spec.name!r} is {array.dtype} of shape {array.shape}; the policy takes {spec.dtype} of shape "
                f"{spec.with_batch(max(rows, 1))}"
            )
    try:
        session = PolicySession(CompressedPolicy.from_bytes(artifact.to_bytes()), batch=rows, runtime="onnxruntime")
    except ArtifactError as error:
        raise VerificationError(str(error)) from error
    for name, array in session.inputs.items():
        array[...] = inputs[name]
    try:
        session.run()
    except Exception as error:  # onnxruntime's errors share no base but Exception
        raise VerificationError(f"policy {artifact.scheme!r} fails when it runs: {error}") from error
    return [output.copy() for output in session.outputs.values()]


def relative_error(found: Array, wanted: Array) -> float:
    """Root mean square difference of [N, ...] over the root mean square deviation of ``wanted`` from its mean row.

    Over the root mean square of ``wanted`` where all its rows are the same but for rounding, one row included; the
    difference itself where it is all zero.
    """
    theirs: NDArray[np.float64] = wanted.astype(np.float64)
    difference = found.astype(np.float64) - theirs
    deviation, size, error = (_root_mean_square(part) for part in (theirs - theirs.mean(axis=0), theirs, difference))
    return error / ((deviation if deviation > _ROUNDING * size else size) or 1.0)


def _root_mean_square(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
