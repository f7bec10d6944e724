"""Weights of a finished policy rounded to the calibration rows: what ``int8`` takes time for outside training.

A publication rounds each weight to the nearest code. Here layer follows layer, and each is fitted to what the layers
before it really give. With X̂ [N, k] the numbers that its codes stand for, Y [N, n] the fp32 policy's pre-activations,
both less their means, G = X̂ᵀX̂ / N and d the mean of G's diagonal:

    W* = (X̂ᵀY / N + λ d W) (G + λ d)⁻¹          ridge towards the layer's own weights W
    codes by GPTQ: one input after the other, by G's diagonal; what rounding input j costs is made up for by those left,
        through the Cholesky factor of (G + λ d)⁻¹;  then passes of coordinate descent on the codes
    b  = mean(Y) − Ŵ mean(X̂)

Source: Frantar, Ashkboos, Hoefler and Alistarh 2023, GPTQ, arXiv:2210.17323, algorithm 1. Deviations: targets are the
outputs of the full policy, not of the layer on quantised inputs; coordinate descent afterwards.

*Steps per feature*: a feature k with range r_k and greatest weight w_k gets a step ∝ r_k^a w_k^(a−1): the producer's
row is divided by it and the readers' columns are multiplied, which changes no answer where what lies between commutes
with positive factors (ReLU, LeakyReLU, nothing). Nagel et al. 2019, arXiv:1906.04721, is a = ½.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import NodeProto

from accel.compressors.arrays import Array
from accel.compressors.graph.policy_graph import PolicyGraph
from accel.compressors.graph.wiring import Wiring, int_attribute, is_plain_gemm, optional_input
from accel.compressors.quantisation.affine import IntegerType

Floats = npt.NDArray[np.float64]

RIDGE, DAMPING = 1e-2, 1e-4
DESCENT_PASSES = 3
# of the greatest range: a feature that calibration hardly saw keeps a step
LEAST_RANGE = 0.05
_COMMUTING = ("Relu", "LeakyRelu")


def fitted_weight(weight: Floats, inputs: Floats, targets: Floats) -> Floats:
    """W* [n, k] of a layer whose weight is [n, k], for inputs [N, k] and targets [N, n], both less their means."""
    gram, ridge = _gram(inputs, RIDGE)
    mixed = targets.T @ inputs / len(inputs) + ridge * weight
    return np.asarray(np.linalg.solve(gram, mixed.T).T)


def rounded_codes(weight: Floats, scales: Floats, inputs: Floats, codes: IntegerType) -> npt.NDArray[np.int8]:
    """Codes [n, k] of a weight at scales [n] or [], for inputs [N, k] less their means."""
    gram, _ = _gram(inputs, DAMPING)
    order = np.argsort(-np.diag(gram), kind="stable")
    steps = np.broadcast_to(np.asarray(scales, np.float64), (len(weight),))
    # row i of the upper factor: how the inputs after i make up for i
    upper = np.linalg.cholesky(np.linalg.inv(gram[np.ix_(order, order)])).T
    left, found = weight[:, order].copy(), np.empty(weight.shape)
    for j in range(weight.shape[1]):
        found[:, j] = np.clip(np.rint(left[:, j] / steps), codes.minimum, codes.maximum)
        error = (left[:, j] - found[:, j] * steps) / upper[j, j]
        left[:, j + 1 :] -= np.outer(error, upper[j, j + 1 :])
    back = np.empty_like(found)
    back[:, order] = found
    return _descended(back, weight, steps, gram, order, codes).astype(np.int8)


def _descended(
    found: Floats, weight: Floats, steps: Floats, gram: Floats, order: npt.NDArray[np.intp], codes: IntegerType
) -> Floats:
    gradient = (found * steps[:, None] - weight) @ gram
    for _ in range(DESCENT_PASSES):
        for j in order:
            wanted = found[:, j] - gradient[:, j] / (gram[j, j] * steps)
            change = np.clip(np.rint(wanted), codes.minimum, codes.maximum) - found[:, j]
            if change.any():
                found[:, j] += change
                gradient += np.outer(change * steps, gram[j])
    return found


def _gram(inputs: Floats, damping: float) -> tuple[Floats, float]:
    """G + λ d, and λ d."""
    gram = inputs.T @ inputs / len(inputs)
    ridge = damping * max(float(np.diag(gram).mean()), 1e-12)
    return gram + ridge * np.eye(len(gram)), ridge


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


def folded(parameters: Mapping[str, Array], fold: Fold, ranges: Floats, exponent: float) -> Mapping[str, Array]:
    """The parameters with steps per feature, for ranges [k]: the same policy."""
    greatest = np.max([_largest(parameters[name], axis) for name, axis in fold.readers], axis=0)
    ranges = np.maximum(ranges, LEAST_RANGE * max(float(ranges.max()), 1e-12))
    greatest = np.maximum(greatest, LEAST_RANGE * max(float(greatest.max()), 1e-12))
    steps = ranges**exponent * greatest ** (exponent - 1.0)
    steps = (steps / np.exp(np.log(steps).mean())).astype(np.float32)
    made = dict(parameters)
    made[fold.weight] = _times(parameters[fold.weight], 1.0 / steps, fold.axis)
    if fold.bias:
        made[fold.bias] = parameters[fold.bias].astype(np.float32, copy=False) / steps
    for name, axis in fold.readers:
        made[name] = _times(parameters[name], steps, axis)
    return made


def _largest(weight: Array, axis: int) -> Floats:
    return np.asarray(np.abs(weight).max(axis=1 - axis), np.float64)


def _times(weight: Array, factors: npt.NDArray[np.float32], axis: int) -> Array:
    values = weight.astype(np.float32, copy=False)
    return np.asarray(values * (factors[:, None] if axis == 0 else factors))


def _outputs_axis(node: NodeProto) -> int:
    return 0 if int_attribute(node, "transB", 0) else 1


def _is_layer(graph: PolicyGraph, node: NodeProto, uses: Sequence[str]) -> bool:
    """Whether a node is a dense layer with parameters that nothing else reads."""
    if not is_plain_gemm(node) or any(name not in graph.parameters for name in node.input[1:] if name):
        return False
    return all(uses.count(name) == 1 for name in node.input[1:] if name)
