"""How often quantisation-aware training and its artifact disagree: the learner's activation codes and the session's.

Weights and biases have the same codes by construction. Activations are the same numbers computed by other kernels in
another order, so what lies on the edge between two codes may round either way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from onnx import NodeProto, ValueInfoProto
from torch import nn

from compressors.artifact import CompressedPolicy
from compressors.base import Array
from compressors.errors import GraphError
from compressors.qat import FakeQuantiser
from compressors.runtime import session_options

Codes = NDArray[np.int64]


@dataclass(frozen=True)
class CodeDifferences:
    """Codes that layers read, compared.

    Attributes:
        rate: share of codes that differ, in [0, 1].
        greatest: greatest difference, in codes (LSB).
        compared: how many codes were compared.
    """

    rate: float
    greatest: int
    compared: int


def code_differences(
    quantiser: FakeQuantiser, artifact: CompressedPolicy, module: nn.Module, inputs: Mapping[str, Array]
) -> CodeDifferences:
    """Run both on the same inputs and compare what every quantised layer reads.

    Args:
        quantiser: follows the plan that made the artifact.
        artifact: of the module's present weights.
        module: the acting policy.
        inputs: [N, *shape] by name.
    Raises:
        GraphError: a layer's input is laid out in a way that the comparison does not know.
    """
    learner = _learner_codes(quantiser, module, inputs)
    session = _session_codes(quantiser, artifact, inputs)
    different, greatest, compared = 0, 0, 0
    for stem, ours in learner.items():
        theirs = _aligned(stem, session[stem], ours.shape)
        gap = np.abs(ours - theirs)
        different += int(np.count_nonzero(gap))
        greatest = max(greatest, int(gap.max(initial=0)))
        compared += gap.size
    return CodeDifferences(different / max(compared, 1), greatest, compared)


def _learner_codes(quantiser: FakeQuantiser, module: nn.Module, inputs: Mapping[str, Array]) -> dict[str, Codes]:
    """What each layer of the rounded forward pass reads, as codes by the layer's stem."""
    seen: dict[str, Codes] = {}
    tensors = tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in inputs.values())
    device = next(module.parameters()).device
    with torch.no_grad(), quantiser.activations(module), _recording(quantiser, module, seen):
        torch.func.functional_call(module, quantiser.weights(module), tuple(t.to(device) for t in tensors))
    return seen


@contextmanager
def _recording(quantiser: FakeQuantiser, module: nn.Module, seen: dict[str, Codes]) -> Iterator[None]:
    handles = []
    for stem, name, (scale, zero) in quantiser.readers():

        def record(
            layer: nn.Module, arguments: tuple[object, ...], stem: str = stem, scale: float = scale, zero: int = zero
        ) -> None:
            value = arguments[0]
            if isinstance(value, torch.Tensor):
                rows = value.detach().flatten(0, value.dim() - 2) if isinstance(layer, nn.LSTM) else value.detach()
                seen[stem] = np.rint(rows.cpu().numpy() / np.float32(scale)).astype(np.int64) + zero

        handles.append(module.get_submodule(name).register_forward_pre_hook(record))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _session_codes(
    quantiser: FakeQuantiser, artifact: CompressedPolicy, inputs: Mapping[str, Array]
) -> dict[str, tuple[Codes, bool]]:
    """What each layer's kernel reads, and whether its channels are last, by the layer's stem."""
    model = onnx.load_from_string(artifact.model)
    kernels = {stem: _kernel(model, stem) for stem, _, _ in quantiser.readers()}
    given = {spec.name for spec in artifact.inputs}
    wanted = list(dict.fromkeys(k.input[0] for k in kernels.values() if k.input[0] not in given))
    model.graph.output.extend(ValueInfoProto(name=name) for name in wanted)
    session = ort.InferenceSession(
        model.SerializeToString(), session_options(artifact.optimisation), providers=["CPUExecutionProvider"]
    )
    feeds = {name: np.ascontiguousarray(array) for name, array in inputs.items() if name in given}
    results = dict(zip(wanted, session.run(wanted, feeds), strict=True)) | feeds
    return {
        stem: (np.asarray(results[kernel.input[0]]).astype(np.int64), _channels_last(kernel))
        for stem, kernel in kernels.items()
    }


def _kernel(model: onnx.ModelProto, stem: str) -> NodeProto:
    for node in model.graph.node:
        if f"{stem}:codes" in node.input:
            return node
    raise GraphError(f"the artifact has no kernel that reads {stem}:codes; it was made by another plan")


def _channels_last(kernel: NodeProto) -> bool:
    return any(attribute.name == "channels_last" and attribute.i for attribute in kernel.attribute)


def _aligned(stem: str, found: tuple[Codes, bool], shape: tuple[int, ...]) -> Codes:
    """The kernel's codes in the layer's own layout; an LSTM's kernel reads the state behind the input."""
    codes, channels_last = found
    if channels_last:
        codes = np.moveaxis(codes, -1, 1)
    if codes.ndim == 2 and len(shape) == 2 and codes.shape[1] > shape[1]:
        codes = codes[:, : shape[1]]
    if codes.shape != shape:
        raise GraphError(f"{stem} reads codes of shape {codes.shape} where the layer reads {shape}")
    return codes
