"""Running ranges of activations over recent real inputs: they widen immediately and narrow slowly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, helper

from accel.compressors.arrays import Array
from accel.compressors.artifact import TensorSpec
from accel.compressors.errors import CalibrationError
from accel.compressors.graph.policy_graph import OPSET, PolicyGraph
from accel.compressors.graph.subgraph import Subgraph

# Weight of the old bound when a calibration measures a narrower one: ten calibrations halve an outlier's influence.
KEEP = 0.93
# Drift: a value this far outside a range, as a share of the range's width.
DRIFT_TOLERANCE = 0.05
_LOWS, _HIGHS = ":lows", ":highs"
# Images whose activations are measured, spread over those given: each has thousands of positions.
IMAGES = 64


@dataclass(frozen=True)
class Range:
    """Least and greatest value of an activation."""

    low: float
    high: float

    def after(self, measured: Range, keep: float = KEEP) -> Range:
        """This range after a calibration: widened to the measured one, or narrowed towards it by ``1 - keep``."""
        return Range(
            min(measured.low, keep * self.low + (1.0 - keep) * measured.low),
            max(measured.high, keep * self.high + (1.0 - keep) * measured.high),
        )

    def covering(self, measured: Range) -> Range:
        """The union of this range and a measured one."""
        return Range(min(measured.low, self.low), max(measured.high, self.high))

    def exceeded_by(self, measured: Range, tolerance: float = DRIFT_TOLERANCE) -> bool:
        """Whether measured values exceed this range by more than ``tolerance`` times its width."""
        margin = tolerance * (self.high - self.low)
        return measured.low < self.low - margin or measured.high > self.high + margin


class RangeObserver:
    """Measures the ranges of some values of a graph in single precision."""

    def __init__(self, graph: PolicyGraph, values: Sequence[str]) -> None:
        self._graph = graph
        self._values = tuple(values)
        self._subgraph: Subgraph | None = None

    def measure(self, parameters: Mapping[str, Array], inputs: Mapping[str, Array]) -> dict[str, Range]:
        """Name to range.

        Raises:
            CalibrationError: an input is missing, empty or misshapen, or an activation is not finite.
        """
        feeds = _few_images(check_inputs(self._graph.inputs, inputs))
        if not self._values:
            return {}
        if self._subgraph is None:
            self._subgraph = _range_subgraph(self._graph, self._values)
        found = self._subgraph({**feeds, **parameters})
        ranges = {}
        for name, low, high in zip(self._values, found[_LOWS], found[_HIGHS], strict=True):
            if not (np.isfinite(low) and np.isfinite(high)):
                raise CalibrationError(
                    f"activation {name!r} is not finite on the calibration inputs; check inputs and weights"
                )
            ranges[name] = Range(float(low), float(high))
        return ranges


def check_inputs(specs: Sequence[TensorSpec], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Check the arrays for a policy's inputs and return them.

    Raises:
        CalibrationError: one is missing, empty, misshapen, of another dtype, or they differ in rows.
    """
    feeds: dict[str, Array] = {}
    rows = {len(inputs[spec.name]) for spec in specs if spec.name in inputs and inputs[spec.name].ndim}
    if len(rows) > 1:
        raise CalibrationError(
            f"calibration inputs have different numbers of rows: {sorted(rows)}; give the same number for each"
        )
    for spec in specs:
        if spec.name not in inputs:
            raise CalibrationError(f"calibration input {spec.name!r} is missing; give [N, {_sizes(spec.shape)}]")
        array = inputs[spec.name]
        if array.shape[1:] != spec.shape[1:] or array.ndim != len(spec.shape) or len(array) == 0:
            raise CalibrationError(
                f"calibration input {spec.name!r} has shape {array.shape}; give [N, {_sizes(spec.shape)}], N ≥ 1"
            )
        if array.dtype != np.dtype(spec.dtype):
            raise CalibrationError(f"calibration input {spec.name!r} is {array.dtype}; give {spec.dtype}")
        feeds[spec.name] = array
    return feeds


def _few_images(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
    """``IMAGES`` rows at even distances where an input has images; other inputs whole."""
    rows = len(next(iter(feeds.values())))
    if rows <= IMAGES or all(array.ndim < 4 for array in feeds.values()):
        return feeds
    places = np.linspace(0, rows - 1, IMAGES).astype(np.int64)
    return {name: array[places] for name, array in feeds.items()}


def _range_subgraph(graph: PolicyGraph, values: Sequence[str]) -> Subgraph:
    """The graph, with two outputs: the vectors of least and greatest values."""
    nodes: list[NodeProto] = []
    for name in values:
        for reduce, suffix in (("ReduceMin", "low"), ("ReduceMax", "high")):
            nodes.append(helper.make_node(reduce, [name], [f"{name}:{suffix}:scalar"], keepdims=0))
            nodes.append(helper.make_node("Reshape", [f"{name}:{suffix}:scalar", ":one"], [f"{name}:{suffix}"]))
    nodes.append(helper.make_node("Concat", [f"{name}:low" for name in values], [_LOWS], axis=0))
    nodes.append(helper.make_node("Concat", [f"{name}:high" for name in values], [_HIGHS], axis=0))
    inputs = {spec.name: (np.dtype(spec.dtype), spec.shape) for spec in graph.inputs}
    inputs.update({name: (array.dtype, array.shape) for name, array in graph.parameters.items()})
    constants = {**graph.constants, ":one": np.asarray([1], dtype=np.int64)}
    return Subgraph([*graph.nodes, *nodes], inputs, constants, [_LOWS, _HIGHS], OPSET)


def _sizes(shape: Sequence[int | None]) -> str:
    return ", ".join(str(size) for size in shape[1:])
