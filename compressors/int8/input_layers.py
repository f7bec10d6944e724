"""What reads a policy's observations: by default ``int8`` computes the small layers that do in single precision.

Eight bits with one scale for all features are too few for observations: most of what int8 changes in a policy comes
from there (``results/evidence/input-layers``). A small layer costs next to nothing in floats; a large one is quantised
all the same.
"""

from __future__ import annotations

from functools import partial

from onnx import NodeProto

from accel.compressors.graph.policy_graph import PolicyGraph
from accel.compressors.layer_choices import weight_layer

SMALL_WEIGHTS = 2**14
SMALL_SHARE = 1 / 64
"""Of all weights: single precision takes up to eight times int8's time for a layer."""


def observed_values(graph: PolicyGraph) -> frozenset[str]:
    """Names of the floats that are computed from observations alone, without a layer."""
    fixed = graph.parameters.keys() | graph.constants.keys() | {""}
    states = len(graph.outputs) - 1
    observed = {spec.name for spec in graph.inputs[: len(graph.inputs) - states] if spec.dtype.startswith("float")}
    for node in graph.nodes:
        if not _is_layer(graph, node) and observed.issuperset(set(node.input) - fixed):
            observed.update(node.output)
    return frozenset(observed)


def input_layers(graph: PolicyGraph) -> frozenset[str]:
    """Names of the linear layers that read nothing but floats of observations."""
    observed = observed_values(graph)
    layers = [node for node in graph.nodes if node.op_type == "Gemm" and _is_layer(graph, node)]
    return frozenset(weight_layer(graph, node.input[1]) for node in layers if node.input[0] in observed)


def small_input_layers(graph: PolicyGraph) -> frozenset[str]:
    """The ``input_layers`` that have few weights."""
    every = sum(array.size for array in graph.parameters.values() if array.ndim > 1)
    limit = max(SMALL_WEIGHTS, SMALL_SHARE * every)
    observed = observed_values(graph)
    small, others = set[str](), set[str]()
    for node in filter(partial(_is_layer, graph), graph.nodes):
        is_small = graph.parameters[node.input[1]].size <= limit
        found = small if node.op_type == "Gemm" and node.input[0] in observed and is_small else others
        found.add(weight_layer(graph, node.input[1]))
    # an LSTM cell is two products of one name; a policy of nothing else is still to be quantised
    return frozenset(small - others if others else ())


def _is_layer(graph: PolicyGraph, node: NodeProto) -> bool:
    return node.op_type in ("Gemm", "Conv") and node.input[1] in graph.parameters
