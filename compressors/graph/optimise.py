"""Apply onnxruntime's optimisations once, on the learner, if they leave every initializer unchanged."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import NodeProto

from accel.compressors.graph.payload import Payload
from accel.compressors.runtime import session_options


def optimised_nodes(payload: Payload, written: Collection[str]) -> Sequence[NodeProto] | None:
    """The payload's nodes after all of onnxruntime's optimisations, such as channels-last pooling of codes.

    Overwrites the payload's initializers, so pass one that is not used afterwards.

    Returns:
        None unless the optimised model has every initializer that is written at refreshes and none of another name or
        content: weights are written by name.
    """
    # onnxruntime merges small equal initializers: give each scale and bias a distinct value
    for index, view in enumerate(payload.views.values()):
        if view.dtype == np.float32:
            view[...] = 1.0 + index / len(payload.views)
        elif view.dtype == np.int32:
            view[...] = 1 + index
    model = payload.to_bytes()
    optimised = optimised_graph(model, "all")
    before, after = _initializers(onnx.load_from_string(model).graph), _initializers(optimised)
    if not after.items() <= before.items() or not set(written) <= after.keys():
        return None
    return list(optimised.node)


def optimised_graph(model: bytes, level: str) -> onnx.GraphProto:
    """What onnxruntime executes for a model, after the optimisations of a level."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "optimised.onnx"
        options = session_options(level)
        options.optimized_model_filepath = str(path)
        ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return onnx.load(path).graph


def _initializers(graph: onnx.GraphProto) -> dict[str, tuple[int, tuple[int, ...], bytes]]:
    return {
        tensor.name: (tensor.data_type, tuple(tensor.dims), onnx.numpy_helper.to_array(tensor).tobytes())
        for tensor in graph.initializer
    }
