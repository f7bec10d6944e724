"""Steps per feature: codes of one scale that stand for features of different ranges.

A feature k with range r_k and greatest weight w_k gets a step ∝ r_k^a w_k^(a−1): the row that makes it is divided by
the step and the columns that read it are multiplied, which changes no answer where what lies between commutes with
positive factors (ReLU, LeakyReLU, nothing). Of integer layers the division is one of scales: codes stay what they are.
Source: Nagel et al. 2019, arXiv:1906.04721, where a is ½.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from accel.compressors.arrays import Array, FloatArray
from accel.compressors.graph.policy_graph import PolicyGraph
from accel.compressors.graph.wiring import Wiring, int_attribute, is_plain_gemm, optional_input

# a: small for activations of two bytes, large for those of one; this serves both
EXPONENT = 0.3
# of the greatest range: a feature that calibration hardly saw keeps a step
LEAST_RANGE = 0.05
_COMMUTING = ("Relu", "LeakyRelu")


@dataclass(frozen=True)
class Fold:
    """Features that a layer makes and others read, between which factors may be moved.

    Attributes:
        weight, bias: of the layer that makes them; their axis of features is ``axis`` and 0.
        value: what the readers read.
        readers: weights of the readers, each with its axis of features.
    """

    weight: str
    bias: str
    axis: int
    value: str
    readers: tuple[tuple[str, int], ...]

    @property
    def parameters(self) -> Iterator[tuple[str, int, bool]]:
        """Each parameter with its axis of features, and whether it reads them."""
        yield self.weight, self.axis, False
        if self.bias:
            yield self.bias, 0, False
        for name, axis in self.readers:
            yield name, axis, True


def folds(graph: PolicyGraph, readers_of: Sequence[str]) -> tuple[Fold, ...]:
    """The folds of the values ``readers_of`` that integer layers read."""
    wiring = Wiring(graph.nodes, [spec.name for spec in graph.outputs])
    uses = [name for node in graph.nodes for name in node.input]
    found = []
    for value in readers_of:
        maker = wiring.producer.get(value)
        while maker is not None and maker.op_type in _COMMUTING and wiring.only_consumer(maker.input[0]) is not None:
            maker = wiring.producer.get(maker.input[0])
        readers = wiring.consumers[value]
        if maker is None or wiring.is_output(value) or wiring.is_output(maker.output[0]):
            continue
        if wiring.only_consumer(maker.output[0]) is None and maker.output[0] != value:
            continue
        if not all(_is_layer(graph, node, uses) for node in (maker, *readers)) or any(
            n.input[0] != value for n in readers
        ):
            continue
        columns = tuple((node.input[1], 1 - _outputs_axis(node)) for node in readers)
        found.append(Fold(maker.input[1], optional_input(maker, 2), _outputs_axis(maker), value, columns))
    return tuple(found)


def feature_steps(reach: FloatArray, weights: FloatArray) -> FloatArray:
    """Steps [k] with a geometric mean of 1, for the greatest magnitudes of features and of the weights they meet."""
    ranges, greatest = (np.maximum(found, LEAST_RANGE * max(float(found.max()), 1e-12)) for found in (reach, weights))
    logs = EXPONENT * np.log(ranges) + (EXPONENT - 1.0) * np.log(greatest)
    return np.asarray(np.exp(logs - logs.mean()), np.float32)


def largest_weights(weight: Array, axis: int) -> FloatArray:
    """Greatest magnitudes [k] by which features are read; ``axis`` is theirs."""
    return np.asarray(np.maximum(weight.max(axis=1 - axis), -weight.min(axis=1 - axis)), np.float32)


def _outputs_axis(node: NodeProto) -> int:
    return 0 if int_attribute(node, "transB", 0) else 1


def _is_layer(graph: PolicyGraph, node: NodeProto, uses: Sequence[str]) -> bool:
    """Whether a node is a dense layer with parameters that nothing else reads."""
    if not is_plain_gemm(node) or any(name not in graph.parameters for name in node.input[1:] if name):
        return False
    return all(uses.count(name) == 1 for name in node.input[1:] if name)
