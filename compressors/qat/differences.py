"""Compare the activation codes of quantisation-aware training with those of a session of its artifact.

Weights and biases have the same codes by construction, and sums of codes are integers, equal on both sides. Floats
between layers (a normaliser, tanh, an LSTM's gates) may differ in the last bit: a value on the boundary between two
codes then rounds differently, which changes the following values by at most the effect of one code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from onnx import NodeProto, ValueInfoProto
from torch import nn

from accel.compressors.arrays import Array
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.errors import GraphError
from accel.compressors.qat.fake_quantiser import FakeQuantiser
from accel.compressors.runtime import session_options

Codes = NDArray[np.int64]
_ADDENDS, _SUM_SCALE = (0, 3), 6  # inputs of QLinearAdd


@dataclass(frozen=True)
class CodeDifferences:
    """Differences between the codes that layers read, and that layers and additions output.

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
    """Run both on the same inputs and compare every quantised activation.

    Args:
        quantiser: follows the plan that made the artifact.
        artifact: of the module's present weights.
        module: the acting policy.
        inputs: [N, *shape] by name.
    Raises:
        GraphError: the artifact is of another plan.
    """
    learner = _learner_codes(quantiser, module, inputs)
    session = _session_codes(quantiser, artifact, inputs)
    different, greatest, compared = 0, 0, 0
    for name, theirs in session.items():
        gap = np.abs(learner[name].reshape(theirs.shape) - theirs)  # rows of rows are rows in the graph
        different += int(np.count_nonzero(gap))
        greatest = max(greatest, int(gap.max(initial=0)))
        compared += gap.size
    return CodeDifferences(different / max(compared, 1), greatest, compared)


def _learner_codes(quantiser: FakeQuantiser, module: nn.Module, inputs: Mapping[str, Array]) -> dict[str, Codes]:
    """Codes of the quantised forward pass, without pruned channels, by the layer's stem or the output activation."""
    record: dict[str, torch.Tensor] = {}
    device = next(module.parameters()).device
    tensors = [torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in inputs.values()]
    with torch.no_grad():
        quantiser(module, *tensors, record=record)
    found = {name: codes.cpu().numpy().astype(np.int64) for name, codes in record.items()}
    return {name: codes[:, quantiser.kept[name]] if name in quantiser.kept else codes for name, codes in found.items()}


def _session_codes(
    quantiser: FakeQuantiser, artifact: CompressedPolicy, inputs: Mapping[str, Array]
) -> dict[str, Codes]:
    """Codes that the kernels read and output, by the same names and in the same layout."""
    model = onnx.load_from_string(artifact.model)
    places = _places(quantiser, list(model.graph.node))
    given = {spec.name for spec in artifact.inputs}
    wanted = list(dict.fromkeys(tensor for tensor, _ in places.values() if tensor not in given))
    model.graph.output.extend(ValueInfoProto(name=name) for name in wanted)
    session = ort.InferenceSession(
        model.SerializeToString(), session_options(artifact.optimisation), providers=["CPUExecutionProvider"]
    )
    feeds = {name: np.ascontiguousarray(array) for name, array in inputs.items() if name in given}
    results = dict(zip(wanted, session.run(wanted, feeds), strict=True)) | feeds
    found = {name: np.asarray(results[tensor]).astype(np.int64) for name, (tensor, _) in places.items()}
    return {name: np.moveaxis(codes, -1, 1) if places[name][1] else codes for name, codes in found.items()}


def _places(quantiser: FakeQuantiser, nodes: Sequence[NodeProto]) -> dict[str, tuple[str, bool]]:
    """For every name its tensor in the graph, and whether that is channels-last."""
    places: dict[str, tuple[str, bool]] = {}
    for layer in quantiser.rules.layers:
        kernel = _reader(nodes, f"{layer.stem}:codes")
        is_last = _channels_last(kernel)
        places[layer.stem] = kernel.input[0], is_last
        if layer.made is not None:
            places[layer.made] = kernel.output[0], is_last
    tensors = dict(places.values())
    for total in quantiser.rules.sums:
        kernel = _reader(nodes, f"{total.made}:scale", "QLinearAdd", _SUM_SCALE)
        is_last = any(tensors.get(kernel.input[index], False) for index in _ADDENDS)
        tensors[kernel.output[0]] = is_last
        places[total.made] = kernel.output[0], is_last
    return places


def _reader(nodes: Sequence[NodeProto], name: str, operator: str = "", index: int | None = None) -> NodeProto:
    for node in nodes:
        if name in node.input and (not operator or node.op_type == operator):
            if index is None or node.input[index] == name:
                return node
    raise GraphError(
        f"the artifact has no kernel that reads {name}: another plan made it; pass the quantiser of its own plan"
    )


def _channels_last(kernel: NodeProto) -> bool:
    return any(attribute.name == "channels_last" and attribute.i for attribute in kernel.attribute)
