"""Running ranges of activations over recent real inputs: they widen immediately and narrow slowly.

What a dense layer reads is measured feature by feature, with means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import helper

from accel.compressors.arrays import Array, FloatArray
from accel.compressors.artifact import TensorSpec
from accel.compressors.errors import CalibrationError
from accel.compressors.graph.policy_graph import PolicyGraph
from accel.compressors.graph.subgraph import Subgraph

# Weight of the old bound when a calibration measures a narrower one: ten calibrations halve an outlier's influence.
KEEP = 0.93
# Drift: a value this far outside a range, as a share of the range's width.
DRIFT_TOLERANCE = 0.05
# Images whose activations are measured, spread over those given: each has thousands of positions.
IMAGES = 64


@dataclass(frozen=True)
class Range:
    """Least and greatest values of an activation.

    Attributes:
        low, high: of all of it, or [k] by feature.
        mean: [k], measured last; None where features are not told apart.
        weight: [k] the greatest weight by which a feature is read, measured last.
    """

    low: float | FloatArray
    high: float | FloatArray
    mean: FloatArray | None = None
    weight: FloatArray | None = None

    def after(self, measured: Range) -> Range:
        """This range after a calibration: widened to the measured one, or narrowed towards it by ``1 - KEEP``."""
        low = np.minimum(measured.low, KEEP * self.low + (1.0 - KEEP) * measured.low)
        high = np.maximum(measured.high, KEEP * self.high + (1.0 - KEEP) * measured.high)
        return replace(measured, low=low, high=high)

    def covering(self, measured: Range) -> Range:
        """The union of this range and a measured one."""
        return replace(self, low=np.minimum(measured.low, self.low), high=np.maximum(measured.high, self.high))

    def ends(self, steps: float | FloatArray = 1.0) -> tuple[float, float]:
        """Least and greatest value of all, in steps by feature."""
        return float(np.min(self.low / steps)), float(np.max(self.high / steps))

    def exceeded_by(self, measured: Range, steps: float | FloatArray = 1.0) -> bool:
        """Whether measured values exceed this range by more than the tolerance, in steps by feature."""
        (low, high), (least, greatest) = self.ends(steps), measured.ends(steps)
        margin = DRIFT_TOLERANCE * (high - low)
        return least < low - margin or greatest > high + margin


class RangeObserver:
    """Measures the ranges of some values of a graph in single precision; those of ``dense`` [N, k] by feature."""

    def __init__(self, graph: PolicyGraph, values: Sequence[str], dense: Sequence[str] = ()) -> None:
        self._graph = graph
        self._whole = [name for name in values if name not in dense]
        self._dense = tuple(dense)
        self._subgraph: Subgraph | None = None

    def measure(self, parameters: Mapping[str, Array], inputs: Mapping[str, Array]) -> dict[str, Range]:
        """Name to range.

        Raises:
            CalibrationError: an input is missing, empty or misshapen, or an activation is not finite.
        """
        feeds = _few_images(check_inputs(self._graph.inputs, inputs))
        if not self._whole and not self._dense:
            return {}
        if self._subgraph is None:
            self._subgraph = _range_subgraph(self._graph, self._whole, [n for n in self._dense if n not in feeds])
        found = {**feeds, **self._subgraph({**feeds, **parameters})}
        ranges = {name: Range(float(found[f"{name}:low"]), float(found[f"{name}:high"])) for name in self._whole}
        for name in self._dense:
            rows = found[name].astype(np.float32, copy=False)
            ranges[name] = Range(rows.min(axis=0), rows.max(axis=0), rows.mean(axis=0))
        for name, seen in ranges.items():
            if not np.isfinite(seen.ends()).all():
                raise CalibrationError(
                    f"activation {name!r} is not finite on the calibration inputs; check inputs and weights"
                )
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


def _range_subgraph(graph: PolicyGraph, whole: Sequence[str], rows: Sequence[str]) -> Subgraph:
    """The graph, with the least and greatest of some values as outputs, and others as they are."""
    nodes = [
        helper.make_node(operator, [name], [f"{name}:{part}"], keepdims=0)
        for name in whole
        for operator, part in (("ReduceMin", "low"), ("ReduceMax", "high"))
    ]
    return graph.subgraph([*(node.output[0] for node in nodes), *rows], nodes)


def _sizes(shape: Sequence[int | None]) -> str:
    return ", ".join(str(size) for size in shape[1:])
