"""The sizes of a graph's values, and what a graph computes from sizes: the exporter writes both for each call.

The model is run at two numbers of rows. A size that is the same in both is fixed, and so is a number that is computed
from sizes alone and is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto

from accel.compressors.arrays import Array
from accel.compressors.errors import GraphError
from accel.compressors.runtime import session_options

Shape = tuple[int | None, ...]


@dataclass
class Sizes:
    """What is known of a graph's values by name.

    Attributes:
        shapes: None where a size depends on the number of rows.
        fixed: values computed from sizes that are the same for any number of rows.
        computed: names of the values that are computed from sizes.
    """

    shapes: dict[str, Shape] = field(default_factory=dict)
    fixed: dict[str, Array] = field(default_factory=dict)
    computed: frozenset[str] = frozenset()


def read_sizes(model: ModelProto, examples: Mapping[str, Array]) -> Sizes:
    """The sizes for any number of rows, by running a model on the examples and on twice as many.

    Raises:
        GraphError: it does not run on other numbers of rows than the examples'.
    """
    probe = ModelProto()
    probe.CopyFrom(model)
    names = [name for node in model.graph.node for name in node.output if name]
    outputs = {value.name for value in model.graph.output}
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in outputs)
    runs = []
    try:
        session = ort.InferenceSession(probe.SerializeToString(), session_options(), ["CPUExecutionProvider"])
        for rows in (1, 2):
            feeds = {name: np.concatenate([array] * rows) for name, array in examples.items()}
            runs.append({**feeds, **dict(zip(names, session.run(names, feeds), strict=True))})
    except Exception as error:  # onnxruntime's errors share no base but Exception
        raise fails_at_another_batch(error) from error
    sizes = Sizes(computed=_computed_from_sizes(model))
    for name, (first, second) in ((name, (runs[0][name], runs[1][name])) for name in runs[0]):
        if first.ndim != second.ndim:
            continue
        pairs = zip(first.shape, second.shape, strict=True)
        sizes.shapes[name] = tuple(one if one == other else None for one, other in pairs)
        if name in sizes.computed and np.array_equal(first, second):
            sizes.fixed[name] = first
    return sizes


def fails_at_another_batch(error: Exception) -> GraphError:
    """The error for a policy whose graph takes the example's number of rows only."""
    return GraphError(
        f"the exported graph fails at another batch size than the example's ({error}); write the policy for any number "
        "of rows, with x.shape[0] in place of len(x)"
    )


def _computed_from_sizes(model: ModelProto) -> frozenset[str]:
    fixed = {tensor.name for tensor in model.graph.initializer} | {""}
    found: set[str] = set()
    for node in model.graph.node:
        read = set(node.input)
        if node.op_type == "Constant" or (read and read <= fixed):
            fixed.update(node.output)
        elif node.op_type == "Shape" or (read and read <= found | fixed):
            found.update(node.output)
    return frozenset(found)
