"""Run a part of an ONNX graph on the learner: prologue, checks, calibration. Actors use ``PolicySession``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import onnxruntime as ort
from onnx import NodeProto, ValueInfoProto, helper, numpy_helper

from accel.compressors.arrays import Array
from accel.compressors.graph.payload import IR_VERSION, opset_imports
from accel.compressors.runtime import session_options


class Subgraph:
    """Nodes as a function of named arrays; loaded once, called often.

    Args:
        nodes: in topological order.
        inputs: name to dtype and shape (None: any size) of the arrays that each call provides.
        constants: fixed arrays.
        wanted: names of the values to return.
        opset: version of the default operator set.
    """

    def __init__(
        self,
        nodes: Sequence[NodeProto],
        inputs: Mapping[str, tuple[np.dtype[np.generic], Sequence[int | None]]],
        constants: Mapping[str, Array],
        wanted: Sequence[str],
        opset: int,
    ) -> None:
        used = {name for node in nodes for name in node.input}
        graph = helper.make_graph(
            nodes,
            "subgraph",
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)
                for name, (dtype, shape) in inputs.items()
            ],
            [ValueInfoProto(name=name) for name in wanted],
            initializer=[numpy_helper.from_array(a, name) for name, a in constants.items() if name in used],
        )
        model = helper.make_model(graph, opset_imports=opset_imports(nodes, opset), ir_version=IR_VERSION)
        self._session = ort.InferenceSession(
            model.SerializeToString(), session_options(), providers=["CPUExecutionProvider"]
        )
        self._inputs, self._wanted = list(inputs), list(wanted)

    def __call__(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The wanted values by name; of what is fed, the inputs are read."""
        if not self._wanted:
            return {}
        contiguous = {name: np.ascontiguousarray(feeds[name]) for name in self._inputs}
        results = cast("list[Array]", self._session.run(self._wanted, contiguous))
        return dict(zip(self._wanted, results, strict=True))
