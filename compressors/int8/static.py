"""``int8``: weights and activations in 8 bits, with calibrated activation ranges; layers run in integer kernels.

Each output of a layer has a scale of its own for its weights, and each feature between dense layers a step of its own
(``feature_steps.py``); what rounding takes from an output at the mean of its inputs is given to its bias.
``int8(layer=float)`` keeps a layer in single precision, ``layer=int4`` gives it 4-bit weights and float arithmetic,
``layer=x16`` activations of two bytes. Small layers that read observations stay in single precision
(``input_layers.py``) unless they are named, as in ``layer=int8``; ``x8`` quantises them too, and ``x2`` to ``x7`` give
observations so many bits, which other activations do not lose. ``w2``, ``w3`` and ``w4`` give weights codes of so many
bits, ±1, ±3 or ±7. Kernels read all codes as bytes; the C export packs those of weights.

Activations are U8 or S8, weights S8 and heads float. Ranges come from recent real observations; until there are enough
of them a run publishes fp32. Calibrations narrow a range slowly; drift, which is looked for on a few rows, widens what
it must and narrows nothing. Which variant is right depends on the *actor's* CPU (VNNI, AVX2 without it, ARM), whose
features come in the handshake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from accel.compressors.arrays import Array, FloatArray
from accel.compressors.artifact import Optimisation
from accel.compressors.cpu import ARM, VNNI
from accel.compressors.errors import CalibrationError, SchemeError, UnsupportedLayerError
from accel.compressors.graph.policy_graph import PolicyGraph
from accel.compressors.int8.calibrated import fitted_weight, rounded_codes
from accel.compressors.int8.feature_steps import feature_steps, folds, largest_weights
from accel.compressors.int8.input_layers import observed_values, small_input_layers
from accel.compressors.int8.integer_graph import IntegerGraph, IntegerLayer, lay_out
from accel.compressors.layer_choices import check_layers, choice_for
from accel.compressors.method_arguments import LayerFormat, Variant
from accel.compressors.methods import Encoder
from accel.compressors.module_state import require_finite
from accel.compressors.quantisation.affine import (
    BIAS_MARGIN,
    GREATEST_HIGH,
    INT8,
    LOW_CODES,
    LOW_ZERO,
    UINT8,
    WEIGHT_INT7,
    WEIGHT_INT8,
    IntegerType,
    activation_parameters,
    bias_codes,
    magnitudes,
    narrowed,
    scales_for_bias,
    scales_of,
    symmetric_codes,
    two_byte_parameters,
)
from accel.compressors.quantisation.nibbles import NibbleWriter
from accel.compressors.quantisation.ranges import Range, RangeObserver, check_inputs
from accel.compressors.quantisation.weight_codes import CodeWriter, as_float
from accel.compressors.runtime import session_options

if TYPE_CHECKING:
    import torch

Rows = TypeVar("Rows", FloatArray, "torch.Tensor")

_MATRIX = 2
# of a layer that is fitted; wider ones, behind images, are rounded to the nearest
MOST_INPUTS = 1024
_CODES = {"u8s8": (UINT8, WEIGHT_INT8), "reduce_range": (UINT8, WEIGHT_INT7), "s8s8": (INT8, WEIGHT_INT8)}


def _suited(variant: Variant | None, cpu: Set[str], scheme: str) -> tuple[Variant, tuple[str, ...]]:
    """The variant asked for, or the best one for a CPU, and the features that it needs there."""
    exact = next((feature for feature in (VNNI, ARM) if feature in cpu), None)
    if variant == "u8s8" and exact is None:
        raise SchemeError(
            f"{scheme}: sums of u8s8 products saturate on an acting CPU without VNNI or ARM's instructions "
            f"(its features: {', '.join(sorted(cpu)) or 'none'}); omit the variant, or use reduce_range"
        )
    chosen = variant or ("u8s8" if exact == VNNI else "s8s8" if exact == ARM else "reduce_range")
    return chosen, (exact,) if exact and chosen == "u8s8" else ()


class Int8Encoder(Encoder):
    """Requantises weights at each refresh; scales of activations come from their running ranges.

    Attributes:
        layers: those with integer weights.
        variant: the one in use.
        weight_codes: integer type of weight codes.
        int4_layers: those with 4-bit weights. floats: parameters left as they are. payload: the model's bytes.
        coded, sums: see ``IntegerGraph``.
    """

    def __init__(
        self,
        variant: Variant | None,
        layers: Sequence[tuple[str, LayerFormat]],
        weight_bits: int | None,
        input_bits: int | None,
        makes_up: bool,
        graph: PolicyGraph,
        *,
        scheme: str,
        cpu: Set[str],
    ) -> None:
        """Lay out a graph.

        Args:
            variant: ``u8s8``: unsigned activations and signed weights, exact on x86 with VNNI and on ARM, refused
                elsewhere; ``reduce_range``: the same with 7-bit weights, exact on AVX2 too; ``s8s8``: signed
                activations, faster on ARM. None: the best one for the CPU.
            layers: formats by layer.
            weight_bits: bits of a weight's code, 2 to 4; None: as many as the variant has.
            input_bits: bits of the observations that layers read, 2 to 8, where ``layers`` has no format for these;
                None: small ones read floats.
            makes_up: whether steps by feature and biases make up for rounding; not where the learner trains with the
                codes.
            graph: the policy. scheme: the method's text. cpu: features of the CPU that will act.
        Raises:
            SchemeError: a layer that the policy does not have, a variant whose sums would saturate on the CPU, or a
                width of observations that no layer reads as floats.
            UnsupportedLayerError: a layer has no integer kernel.
        """
        self.variant, self.cpu_features = _suited(variant, cpu, scheme)
        self._codes, self.weight_codes = _CODES[self.variant]
        if weight_bits is not None:
            self.weight_codes = symmetric_codes(weight_bits)
        in_floats = small_input_layers(graph) if input_bits is None else frozenset()
        bits = input_bits or 8
        narrow = observed_values(graph) if bits < 8 else frozenset()

        def choose(layer: str) -> LayerFormat:
            return choice_for(layer, layers, "float" if layer in in_floats else "int8")

        integer = IntegerGraph(graph, self._codes, choose, narrow)
        if bits < 8 and not integer.clipped:
            raise SchemeError(
                f"{scheme}: no integer layer of this policy reads floats of observations alone (images have "
                f"their 8 bits, and what a recurrent layer reads those of its state): omit x{bits}"
            )
        self._clipped = dict.fromkeys(integer.clipped, narrowed(self._codes, bits))
        check_layers(scheme, dict(layers), integer.names)
        self.layers = integer.layers
        self._graph = graph
        self._check_sums(scheme)
        self.int4_layers = integer.int4_layers
        self.floats = integer.floats
        other = {*self.floats, *(layer.weight for layer in self.int4_layers)}
        self.coded_weights = frozenset(layer.weight for layer in self.layers) & graph.prologue.unchanged - other
        self._measured = list(dict.fromkeys(integer.measured))
        self._coded_values = {name for name in self._measured if f"{name}:scale" in integer.slots}
        self.coded, self.sums = integer.coded, integer.sums
        dense = [layer for layer in self.layers if graph.parameters[layer.weight].ndim == _MATRIX]
        self._sources = list(dict.fromkeys(layer.source for layer in dense)) if makes_up else []
        coded = {layer.source for layer in dense if layer.wide or layer.activation == layer.source}
        self._folds = folds(graph, [name for name in self._sources if name in coded])
        self._moved: dict[str, list[tuple[str, int, bool]]] = {}
        for fold in self._folds:
            for name, axis, reads in fold.parameters:
                self._moved.setdefault(name, []).append((fold.value, axis, reads))
        # ones until a calibration: what is looked at for drift alone has no weights to choose them by
        sizes = {fold.value: graph.parameters[name].shape[axis] for fold in self._folds for name, axis in fold.readers}
        self._steps: dict[str, FloatArray] = {value: np.ones(size, np.float32) for value, size in sizes.items()}
        self._observer = RangeObserver(graph, self._measured, self._sources)
        self._ranges: dict[str, Range] = {}
        self._scales: dict[str, np.float32] = {}
        self.payload = lay_out(integer, graph)
        # onnxruntime converts float convolutions to its blocked layout on loading
        float_convolutions = any(node.op_type == "Conv" for node in integer.nodes)
        self.optimisation: Optimisation = "all" if float_convolutions else "none"
        self._wide = integer.wide
        self._writer, self._wide_writer = CodeWriter(self.weight_codes), CodeWriter(WEIGHT_INT8)
        self._int4_writer = NibbleWriter()
        for name, scale in integer.fixed.items():
            self._set_activation(name, scale, 0)

    def _check_sums(self, scheme: str) -> None:
        """Sums wrap silently beyond 32 bits, in the kernels and in onnxruntime."""
        room = np.iinfo(np.int32).max / (self._codes.levels * self.weight_codes.maximum)
        for layer in self.layers:
            most = int(room * (1.0 - 1.0 / BIAS_MARGIN) if layer.bias else room)
            if layer.inputs > most:
                raise UnsupportedLayerError(
                    f"{scheme}: layer {layer.name!r} sums {layer.inputs:,} products, and more than {most:,} "
                    f"{'beside a bias ' if layer.bias else ''}can exceed 32 bits: keep it in floats "
                    f"(int8({layer.name}=float)), or use fp16 or fp32"
                )

    def codes_of(self, activation: str) -> IntegerType:
        """The codes that an activation may have."""
        return self._clipped.get(activation, self._codes)

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The running ranges by activation."""
        return {name: self._ranges[name] for name in self._measured if name in self._ranges}

    def activation(self, name: str) -> tuple[np.float32, int]:
        """(scale, zero point) in use for an activation."""
        return self._scales[name], int(self.payload.views[f"{name}:zero"])

    def measure(
        self, parameters: Mapping[str, Array], inputs: Mapping[str, Array], *, quick: bool = False
    ) -> Mapping[str, Range]:
        """See ``Encoder.measure``."""
        found = self._observer.measure(parameters, inputs)
        for fold in () if quick else self._folds:
            weights = [largest_weights(as_float(name, parameters), axis) for name, axis in fold.readers]
            found[fold.value] = replace(found[fold.value], weight=np.max(weights, axis=0))
        return found

    def drifted(self, measured: Mapping[str, Range]) -> int:
        """See ``Encoder.drifted``."""
        known = [name for name in self._measured if name in self._ranges]
        return sum(self._ranges[name].exceeded_by(measured[name], self._steps.get(name, 1.0)) for name in known)

    def covering(self, measured: Mapping[str, Range]) -> Mapping[str, Range]:
        """See ``Encoder.covering``."""
        return {
            name: self._ranges[name].covering(now) if name in self._ranges else now for name, now in measured.items()
        }

    def merge_ranges(self, measured: Mapping[str, Range]) -> None:
        """See ``Encoder.merge_ranges``."""
        self.drifted_activations += self.drifted(measured)
        self.calibrations += 1
        for name, now in measured.items():
            kept = self._ranges[name].after(now) if name in self._ranges else now
            self._ranges[name] = kept
            if kept.weight is not None:
                self._steps[name] = feature_steps(np.maximum(np.abs(kept.low), np.abs(kept.high)), kept.weight)
            ends = kept.ends(self._steps.get(name, 1.0))
            if name in self._wide:
                self._set_wide(name, *two_byte_parameters(*ends))
            if name in self._coded_values:
                self._set_activation(name, *activation_parameters(*ends, self.codes_of(name)))

    def encode(self, parameters: Mapping[str, Array]) -> bytes:
        """See ``Encoder.encode``."""
        return self.encode_there(parameters, {})

    def encode_there(self, parameters: Mapping[str, Array], there: Mapping[str, torch.Tensor]) -> bytes:
        """See ``Encoder.encode_there``."""
        missing = [name for name in self._measured if name not in self._ranges]
        if missing:
            raise CalibrationError(
                f"int8 has no range for {len(missing)} activations; calibrate it on real observations first, and "
                "publish fp32 until then"
            )
        for layer in self.layers:
            self._encode_layer(layer, parameters, there.get(layer.weight))
        for layer in self.int4_layers:
            moved = self._in_steps(layer.weight, parameters[layer.weight])
            rows = moved if layer.axis == 0 else moved.T
            self._int4_writer.write(layer.name, layer.stem, rows, self.payload.views)
        for name in self.floats:
            require_finite(name, parameters[name])
            self.payload.views[name][...] = self._in_steps(name, parameters[name])
        return self.payload.to_bytes()

    def _in_steps(self, name: str, parameter: Array) -> Array:
        """A parameter of a layer in floats that makes or reads features with steps."""
        for value, axis, reads in self._moved.get(name, ()):
            steps = self._steps[value]
            steps = steps[:, None] if axis == 0 and parameter.ndim == _MATRIX else steps
            parameter = np.multiply(parameter, steps if reads else 1 / steps)
        return parameter

    def fit(self, parameters: Mapping[str, Array], inputs: Mapping[str, Array]) -> bytes:
        """See ``Encoder.fit``: layer after layer rounded to what the layers before it give."""
        feeds = check_inputs(self._graph.inputs, inputs)
        dense = [
            layer for layer in self.layers if parameters[layer.weight].ndim == _MATRIX and layer.inputs <= MOST_INPUTS
        ]
        self._ranges = {}
        self.merge_ranges(self.measure(parameters, feeds))
        self.encode(parameters)
        if not dense:
            return self.payload.to_bytes()
        run = self._graph.subgraph([layer.output for layer in dense])
        one = run({**{name: array[:1] for name, array in feeds.items()}, **parameters})
        # a layer over the rows of a set or a sequence has several an observation, and needs as many fewer of these
        few = {rows: {name: array[::rows] for name, array in feeds.items()} for rows in map(len, one.values())}
        wanted = {rows: run({**chosen, **parameters}) for rows, chosen in few.items()}
        for layer in dense:
            rows = len(one[layer.output])
            given = self._given(layer, few[rows])
            self._fit_layer(layer, parameters, given, wanted[rows][layer.output].astype(np.float64))
        return self.payload.to_bytes()

    def _given(self, layer: IntegerLayer, feeds: Mapping[str, Array]) -> npt.NDArray[np.float64]:
        """[N, k] what the codes of a layer's input stand for, as the present model computes them."""
        model = onnx.load_from_string(self.payload.to_bytes())
        model.graph.output.extend(onnx.ValueInfoProto(name=codes.tensor) for codes in layer.codes)
        session = ort.InferenceSession(model.SerializeToString(), session_options(), ["CPUExecutionProvider"])
        found = session.run([codes.tensor for codes in layer.codes], dict(feeds))
        total = np.zeros(found[0].shape)
        for codes, array in zip(layer.codes, found, strict=True):
            scale, zero = self.activation(codes.activation)
            total += float(scale) * (array.astype(np.float64) - zero)
        return total

    def _fit_layer(
        self,
        layer: IntegerLayer,
        parameters: Mapping[str, Array],
        given: npt.NDArray[np.float64],
        wanted: npt.NDArray[np.float64],
    ) -> None:
        views, stem = self.payload.views, layer.stem
        weight = self._rows(layer, as_float(layer.weight, parameters)).astype(np.float64)
        factors = self._steps.get(layer.source, 1.0)
        means = [array.mean(axis=0) if layer.bias else np.zeros(array.shape[1]) for array in (given, wanted)]
        centred = given - means[0]
        gram = centred.T @ centred / len(centred)
        covariance = (wanted - means[1]).T @ centred / len(centred)
        fitted = fitted_weight(weight * factors, gram, covariance)
        codes = WEIGHT_INT8 if layer.wide else self.weight_codes
        input_scale = self._scales[layer.activation]
        greatest = magnitudes(fitted.astype(np.float32))
        scales = scales_of(greatest, codes)
        if layer.bias:
            likely = (means[1] - fitted @ means[0]).astype(np.float32)
            scales = scales_for_bias(scales, input_scale, likely, greatest)
        rounded = rounded_codes(fitted, scales.astype(np.float64), gram, codes)
        views[f"{stem}:codes"][...] = rounded if layer.axis == 0 else rounded.T
        bias = means[1] - (rounded * scales[:, None].astype(np.float64)) @ means[0]
        self._write_scales(layer, scales, bias.astype(np.float32))

    def _encode_layer(self, layer: IntegerLayer, parameters: Mapping[str, Array], there: torch.Tensor | None) -> None:
        codes = self.payload.views[f"{layer.stem}:codes"]
        bias = as_float(layer.bias, parameters) if layer.bias else None
        known, factors = self._ranges.get(layer.source), self._steps.get(layer.source)
        mean = None if known is None or bias is None else known.mean
        weight: FloatArray | torch.Tensor = (
            self._rows(layer, as_float(layer.weight, parameters)) if there is None else self._rows(layer, there)
        )
        scales, lost = (self._wide_writer if layer.wide else self._writer).write(
            layer.name,
            weight,
            (codes if layer.axis == 0 else codes.T).reshape(weight.shape),
            bias=bias,
            input_scale=self._scales[layer.activation],
            factors=factors,
            means=mean if mean is None or factors is None else mean / factors,
        )
        self._write_scales(layer, scales, None if bias is None else bias + lost)

    def _rows(self, layer: IntegerLayer, weight: Rows) -> Rows:
        """The weight [n, k]: a row for each output."""
        return (weight if layer.axis == 0 else weight.T).reshape(weight.shape[layer.axis], -1)

    def _write_scales(self, layer: IntegerLayer, scales: FloatArray, bias: FloatArray | None) -> None:
        """Scales and the bias's codes; outputs with steps have them in their scales."""
        views = self.payload.views
        if bias is not None and layer.bias:
            views[layer.bias_codes][...] = bias_codes(bias, self._scales[layer.activation], scales)
        made = next((value for value, _, reads in self._moved.get(layer.weight, ()) if not reads), None)
        views[f"{layer.stem}:scale"][...] = scales if made is None else scales / self._steps[made]

    def _set_activation(self, name: str, scale: np.float32, zero: int) -> None:
        self._scales[name] = scale
        self.payload.views[f"{name}:scale"][...] = scale
        self.payload.views[f"{name}:zero"][...] = zero
        if name in self._clipped:
            codes = self._clipped[name]
            self._set_bounds(name, scale * np.float32(codes.minimum - zero), scale * np.float32(codes.maximum - zero))

    def _set_wide(self, name: str, step: np.float32, zero: int) -> None:
        """Steps, zero points and bounds of two bytes of at most 128, whose products any CPU sums exactly."""
        high, low = (codes.activation for codes in self._wide[name])
        coarse = LOW_CODES * step
        self._set_activation(high, coarse, zero)
        self._set_activation(low, step, LOW_ZERO)
        self._set_bounds(name, -zero * coarse, (GREATEST_HIGH - zero) * coarse + (LOW_ZERO - 1) * step)

    def _set_bounds(self, name: str, least: np.float32, greatest: np.float32) -> None:
        self.payload.views[f"{name}:least"][...] = least
        self.payload.views[f"{name}:greatest"][...] = greatest
