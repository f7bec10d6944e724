"""``int8``: weights and activations in 8 bits, with calibrated activation ranges; layers run in integer kernels.

``int8(layer=float)`` keeps a layer in single precision, ``layer=int4`` gives it 4-bit weights and float arithmetic, and
``layer=per_channel`` or ``layer=per_tensor`` chooses the layer's scales. Small layers that read observations stay in
single precision (``input_layers.py``); ``x8`` quantises them too, and ``x2`` to ``x7`` give observations
so many bits, which other activations do not lose. ``w2``, ``w3`` and ``w4`` give weights codes of so many bits, ±1, ±3
or ±7. Kernels read all codes as bytes; the C export packs those of weights.

Activations are U8 or S8, weights S8 and heads float. Ranges come from recent real observations; until there are enough
of them a run publishes fp32. Calibrations narrow a range slowly; drift, which is looked for on a few rows, widens what
it must and narrows nothing. Which variant is right depends on the *actor's* CPU (VNNI, AVX2 without it, ARM), whose
features come in the handshake.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from accel.compressors.arrays import Array
from accel.compressors.artifact import Optimisation
from accel.compressors.cpu import ARM, VNNI, cpu_features
from accel.compressors.errors import CalibrationError, SchemeError, UnsupportedLayerError
from accel.compressors.graph.policy_graph import PolicyGraph
from accel.compressors.int4 import layer_writer, write_layer
from accel.compressors.int8.calibrated import fitted_weight, folded, folds, rounded_codes
from accel.compressors.int8.input_layers import observed_values, small_input_layers
from accel.compressors.int8.integer_graph import IntegerGraph, IntegerLayer, lay_out
from accel.compressors.layer_choices import check_layers, choice_for
from accel.compressors.method_arguments import LayerFormat, Variant, parse_int8
from accel.compressors.methods import Encoder, Format
from accel.compressors.module_state import require_finite
from accel.compressors.plan import PlanStatistics
from accel.compressors.quantisation.affine import (
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
from accel.compressors.quantisation.ranges import Range, RangeObserver, check_inputs
from accel.compressors.quantisation.weight_codes import CodeWriter, as_float
from accel.compressors.runtime import session_options
from accel.compressors.scheme import Context, MethodText

# of steps per feature (``calibrated``): of layers that read codes of one byte, and of two
EXPONENT, WIDE_EXPONENT = 1.0, 0.15
# of a layer that is fitted; wider ones, behind images, are rounded to the nearest
MOST_INPUTS = 1024
_CODES = {"u8s8": (UINT8, WEIGHT_INT8), "reduce_range": (UINT8, WEIGHT_INT7), "s8s8": (INT8, WEIGHT_INT8)}


@dataclass(frozen=True)
class Int8(Format):
    """Static int8, but for small layers that read observations.

    Attributes:
        per_channel: a weight scale for each output of a layer instead of one for the whole weight.
        variant: ``u8s8``: unsigned activations and signed weights, exact on x86 with VNNI and on ARM, refused
            elsewhere; ``reduce_range``: the same with 7-bit weights, exact on AVX2 too; ``s8s8``: signed activations,
            faster on ARM. None: the best one for the CPU.
        cpu: features of the CPU that will act; this machine's when None.
        layers: formats by layer, overriding ``per_channel``.
        weight_bits: bits of a weight's code, 2 to 4; None: as many as the variant has.
        input_bits: bits of the observations that layers read, 2 to 8, where ``layers`` has no format for these; None:
            small ones read floats.
    """

    per_channel: bool = False
    variant: Variant | None = None
    cpu: frozenset[str] | None = None
    layers: tuple[tuple[str, LayerFormat], ...] = ()
    weight_bits: int | None = None
    input_bits: int | None = None

    @property
    def method(self) -> MethodText:
        """``int8`` with its options."""
        options = ["per_channel"] if self.per_channel else []
        if self.variant is not None:
            options.append(self.variant)
        if self.weight_bits is not None:
            options.append(f"w{self.weight_bits}")
        if self.input_bits is not None:
            options.append(f"x{self.input_bits}")
        return MethodText("int8", (*options, *(f"{layer}={choice}" for layer, choice in self.layers)))

    def layer_formats(self, graph: PolicyGraph) -> Callable[[str], LayerFormat]:
        """The format of each layer of a policy."""
        default: LayerFormat = "per_channel" if self.per_channel else "per_tensor"
        in_floats = small_input_layers(graph) if self.input_bits is None else frozenset()
        return lambda layer: choice_for(layer, self.layers, "float" if layer in in_floats else default)

    def encoder(self, graph: PolicyGraph) -> Encoder:
        """See ``Format.encoder``.

        Raises:
            SchemeError: a layer that the policy does not have, a variant whose sums would saturate on the CPU, or a
                width of observations that no layer reads as floats.
        """
        features = cpu_features() if self.cpu is None else self.cpu
        exact = next((feature for feature in (VNNI, ARM) if feature in features), None)
        if self.variant == "u8s8" and exact is None:
            raise SchemeError(
                f"{self.scheme}: sums of u8s8 products saturate on an acting CPU without VNNI or ARM's instructions "
                f"(its features: {', '.join(sorted(features)) or 'none'}); omit the variant, or use reduce_range"
            )
        suited: Variant = "u8s8" if exact == VNNI else "s8s8" if exact == ARM else "reduce_range"
        variant = suited if self.variant is None else self.variant
        return Int8Encoder(graph, self, variant, (exact,) if exact and variant == "u8s8" else ())


class Int8Encoder(Encoder):
    """Requantises weights at each refresh; scales of activations come from their running ranges.

    Attributes:
        layers: those with integer weights.
        variant: the one in use.
        per_channel: whether weights have a scale for each output, unless chosen otherwise for a layer.
        weight_codes: integer type of weight codes.
        int4_layers: those with 4-bit weights. floats: parameters left as they are. payload: the model's bytes.
        coded, sums: see ``IntegerGraph``.
    """

    def __init__(self, graph: PolicyGraph, options: Int8, variant: Variant, cpu_features: tuple[str, ...]) -> None:
        self.cpu_features = cpu_features
        self.variant = variant
        self.per_channel = options.per_channel
        self._codes, self.weight_codes = _CODES[variant]
        if options.weight_bits is not None:
            self.weight_codes = symmetric_codes(options.weight_bits)
        bits = 8 if options.input_bits is None else options.input_bits
        narrow = observed_values(graph) if bits < 8 else frozenset()
        integer = IntegerGraph(graph, self._codes, options.layer_formats(graph), narrow)
        if bits < 8 and not integer.clipped:
            raise SchemeError(
                f"{options.scheme}: no integer layer of this policy reads floats of observations alone (images have "
                f"their 8 bits, and what a recurrent layer reads those of its state): omit x{bits}"
            )
        self._clipped = dict.fromkeys(integer.clipped, narrowed(self._codes, bits))
        check_layers(options.scheme, dict(options.layers), integer.names)
        self.layers = integer.layers
        self._graph = graph
        self._check_sums(options)
        self.int4_layers = integer.int4_layers
        self.floats = integer.floats
        self._measured = list(dict.fromkeys(integer.measured))
        self._coded_values = {name for name in self._measured if f"{name}:scale" in integer.slots}
        self.coded, self.sums = integer.coded, integer.sums
        self._observer = RangeObserver(graph, self._measured)
        self._ranges: dict[str, Range] = {}
        self._scales: dict[str, np.float32] = {}
        self._calibrations = self._drifted = 0
        self.payload = lay_out(integer, graph)
        # onnxruntime converts float convolutions to its blocked layout on loading
        float_convolutions = any(node.op_type == "Conv" for node in integer.nodes)
        self.optimisation: Optimisation = "all" if float_convolutions else "none"
        self._wide = integer.wide
        self._writer, self._wide_writer = CodeWriter(self.weight_codes), CodeWriter(WEIGHT_INT8)
        self._int4_writer = layer_writer(self.int4_layers, graph)
        for name, scale in integer.fixed.items():
            self._set_activation(name, scale, 0)

    def _check_sums(self, options: Int8) -> None:
        """Sums wrap silently beyond 32 bits, in the kernels and in onnxruntime."""
        most = np.iinfo(np.int32).max // (self._codes.levels * self.weight_codes.maximum)
        for layer in self.layers:
            if layer.inputs > most:
                raise UnsupportedLayerError(
                    f"{options.scheme}: layer {layer.name!r} sums {layer.inputs:,} products, and more than {most:,} "
                    f"can exceed 32 bits: keep it in floats (int8({layer.name}=float)), or use fp16 or fp32"
                )

    def codes_of(self, activation: str) -> IntegerType:
        """The codes that an activation may have."""
        return self._clipped.get(activation, self._codes)

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The running ranges by activation."""
        return dict(self._ranges)

    @property
    def statistics(self) -> PlanStatistics:
        """See ``Plan.statistics``."""
        return PlanStatistics(self._calibrations, self._drifted)

    def activation(self, name: str) -> tuple[np.float32, int]:
        """(scale, zero point) in use for an activation."""
        return self._scales[name], int(self.payload.views[f"{name}:zero"])

    def measure(self, parameters: Mapping[str, Array], inputs: Mapping[str, Array]) -> Mapping[str, Range]:
        """See ``Encoder.measure``."""
        return self._observer.measure(parameters, inputs)

    def drifted(self, measured: Mapping[str, Range]) -> int:
        """See ``Encoder.drifted``."""
        return sum(name in self._ranges and self._ranges[name].exceeded_by(now) for name, now in measured.items())

    def covering(self, measured: Mapping[str, Range]) -> Mapping[str, Range]:
        """See ``Encoder.covering``."""
        return {
            name: self._ranges[name].covering(now) if name in self._ranges else now for name, now in measured.items()
        }

    def merge_ranges(self, measured: Mapping[str, Range]) -> None:
        """See ``Encoder.merge_ranges``."""
        self._drifted += self.drifted(measured)
        self._calibrations += 1
        for name, now in measured.items():
            kept = self._ranges[name].after(now) if name in self._ranges else now
            self._ranges[name] = kept
            if name in self._wide:
                self._set_wide(name, *two_byte_parameters(kept.low, kept.high))
            if name in self._coded_values:
                self._set_activation(name, *activation_parameters(kept.low, kept.high, self.codes_of(name)))

    def encode(self, parameters: Mapping[str, Array]) -> bytes:
        """See ``Encoder.encode``."""
        missing = [name for name in self._measured if name not in self._ranges]
        if missing:
            raise CalibrationError(
                f"int8 has no range for {len(missing)} activations; calibrate it on real observations first, and "
                "publish fp32 until then"
            )
        for layer in self.layers:
            self._encode_layer(layer, parameters)
        for int4_layer in self.int4_layers:
            write_layer(int4_layer, parameters[int4_layer.weight], self.payload.views, self._int4_writer)
        for name in self.floats:
            require_finite(name, parameters[name])
            self.payload.views[name][...] = parameters[name]
        return self.payload.to_bytes()

    def fit(self, parameters: Mapping[str, Array], inputs: Mapping[str, Array]) -> bytes:
        """See ``Encoder.fit``: steps per feature, then layer after layer rounded to what the layers before it give."""
        feeds = check_inputs(self._graph.inputs, inputs)
        dense = [
            layer for layer in self.layers if 1 < parameters[layer.weight].ndim < 3 and layer.inputs <= MOST_INPUTS
        ]
        parameters = self._with_steps(parameters, feeds, {layer.source: layer.wide for layer in dense})
        self._ranges = {}
        self.merge_ranges(self.measure(parameters, feeds))
        self.encode(parameters)
        wanted = self._graph.subgraph([layer.output for layer in dense])({**feeds, **parameters}) if dense else {}
        for layer in dense:
            given = self._given(layer, feeds)
            self._fit_layer(layer, parameters, given, wanted[layer.output].astype(np.float64))
        return self.payload.to_bytes()

    def _with_steps(
        self, parameters: Mapping[str, Array], feeds: Mapping[str, Array], wide: Mapping[str, bool]
    ) -> Mapping[str, Array]:
        found = folds(self._graph, list(wide))
        if not found:
            return parameters
        values = self._graph.subgraph([fold.value for fold in found])({**feeds, **parameters})
        for fold in found:
            ranges = np.abs(values[fold.value]).max(axis=0).astype(np.float64)
            parameters = folded(parameters, fold, ranges, WIDE_EXPONENT if wide[fold.value] else EXPONENT)
        return parameters

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
        weight = as_float(layer.weight, parameters).astype(np.float64)
        weight = weight if layer.axis == 0 else weight.T
        means = [array.mean(axis=0) if layer.bias else np.zeros(array.shape[1]) for array in (given, wanted)]
        centred = given - means[0]
        fitted = fitted_weight(weight, centred, wanted - means[1])
        codes = WEIGHT_INT8 if layer.wide else self.weight_codes
        input_scale, bias = self._scales[layer.activation], None
        greatest = magnitudes(fitted.astype(np.float32), None if layer.channel_axis is None else 0)
        scales = scales_of(greatest, codes)
        if layer.bias:
            likely = (means[1] - fitted @ means[0]).astype(np.float32)
            scales = scales_for_bias(scales, input_scale, likely, greatest)
        rounded = rounded_codes(fitted, scales.astype(np.float64), centred, codes)
        views[f"{stem}:codes"][...] = rounded if layer.axis == 0 else rounded.T
        views[f"{stem}:scale"][...] = scales
        if layer.bias:
            steps = np.broadcast_to(scales.astype(np.float64), (len(rounded),))
            bias = (means[1] - (rounded * steps[:, None]) @ means[0]).astype(np.float32)
            views[layer.bias_codes][...] = bias_codes(bias, input_scale, scales)

    def _encode_layer(self, layer: IntegerLayer, parameters: Mapping[str, Array]) -> None:
        views, stem = self.payload.views, layer.stem
        weight = parameters[layer.weight]
        bias = as_float(layer.bias, parameters) if layer.bias else None
        input_scale = self._scales[layer.activation]
        scales = (self._wide_writer if layer.wide else self._writer).write(
            layer.name, weight, layer.channel_axis, views[f"{stem}:codes"], bias=bias, input_scale=input_scale
        )
        views[f"{stem}:scale"][...] = scales
        if bias is not None:
            views[layer.bias_codes][...] = bias_codes(bias, input_scale, scales)

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


def make_int8(arguments: tuple[str, ...], context: Context) -> Int8:
    """The ``int8`` method; see ``parse_int8``."""
    parsed = parse_int8(arguments)
    return Int8(parsed.per_channel, parsed.variant, context.cpu, *parsed[2:])
