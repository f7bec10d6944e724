"""A policy of dense layers, recurrent ones and int8 convolutions included, in one call of a compiled kernel. No torch,
no onnx.

A graph runtime looks up, checks and calls a kernel for each node: for a policy of 64×2 that takes five to eight times
as long as the whole call here. Here the whole chain, from observations and state to distribution parameters and next
state, is one function.
Equal codes give onnxruntime's answers to the bit; sums of floats differ by rounding, and a code made of them may round
the other way.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from math import inf, isclose, prod
from typing import cast

import numpy as np

from accel.compressors.arrays import Array
from accel.compressors.artifact import CompressedPolicy, TensorSpec
from accel.compressors.kernels.graph import Graph, Value, read_graph
from accel.compressors.kernels.library import Kernels, kernels_here, why_none
from accel.compressors.kernels.steps import (
    ACTIVATIONS,
    BYTE_TYPE,
    FLOAT_TYPE,
    KINDS,
    Activation,
    Chain,
    CodeNames,
    Step,
    UnsuitedError,
    is_image,
    read_chain,
    require,
)
from accel.compressors.quantisation.affine import GREATEST_HIGH, LOW_CODES, LOW_ZERO

_ALIGNMENT = 64
_MOST_BYTES = 2**26  # of a row, and of an image's windows
_SIGNED_TO_UNSIGNED = 128


class _CWindow(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int32) for name in ("rows", "columns", "lines", "line", "pitch", "down", "right"))


class _CStep(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32), ("activation", ctypes.c_int32), ("quantises", ctypes.c_int32),
        ("source", ctypes.c_int32), ("other", ctypes.c_int32), ("target", ctypes.c_int32), ("inputs", ctypes.c_int32),
        ("outputs", ctypes.c_int32), ("weights", ctypes.c_void_p), ("bias", ctypes.c_void_p),
        ("scale", ctypes.c_void_p), ("alpha", ctypes.c_float), ("beta", ctypes.c_float), ("epsilon", ctypes.c_float),
        ("step", ctypes.c_float), ("zero", ctypes.c_int32), ("window", _CWindow),
    )  # fmt: skip


class _CResult(ctypes.Structure):
    _fields_ = (("source", ctypes.c_int32), ("columns", ctypes.c_int32))


class _CChain(ctypes.Structure):
    _fields_ = (
        ("steps", ctypes.c_int32), ("features", ctypes.c_int32), ("inputs", ctypes.c_int32),
        ("results", ctypes.c_int32), ("stride", ctypes.c_int32), ("channels", ctypes.c_int32),
        ("mean", ctypes.c_void_p), ("factor", ctypes.c_void_p), ("least", ctypes.c_float), ("greatest", ctypes.c_float),
        ("quantises", ctypes.c_int32), ("step", ctypes.c_float), ("zero", ctypes.c_int32),
        ("each", ctypes.POINTER(_CStep)), ("made", ctypes.POINTER(_CResult)),
        ("floats", ctypes.c_void_p), ("codes", ctypes.c_void_p), ("windows", ctypes.c_void_p),
    )  # fmt: skip
    kept: tuple[object, ...] = ()
    """What its pointers point to, alive as long as it is."""


_latest: tuple[Graph, Chain | str] | None = None


def _chain_of(model: bytes) -> tuple[Graph, Chain | str]:
    """The chain that a model is, or why it is none; read once for versions of a policy, which differ in numbers."""
    global _latest
    found = _latest  # once: another thread may change it
    if found is None or not found[0].is_of(model):
        graph = read_graph(model)
        chain: Chain | str
        try:
            chain = read_chain(graph)
        except UnsuitedError as error:
            chain = str(error)
        _latest = found = graph, chain
    return found


def make_chain(artifact: CompressedPolicy, kernels: Kernels | None = None) -> ChainKernel | str:
    """The artifact as a kernel, or why it is no chain or no kernel for it runs on this CPU.

    Args:
        artifact: its header need not be true: names, types and sizes are compared with the model's.
        kernels: those to use; None: the best that this CPU runs.
    """
    kernels = kernels or next(iter(kernels_here()), None)
    if kernels is None:
        return why_none()
    try:
        graph, chain = _chain_of(artifact.model)
        if isinstance(chain, str):
            return chain
        specs, values = (*artifact.inputs, *artifact.outputs), (*graph.inputs, *graph.outputs)
        if len(artifact.inputs) != len(graph.inputs) or len(specs) != len(values):
            return "its header has other inputs or outputs than its model"
        if not all(map(_is_as_declared, specs, values)):
            return "its header is not of rows of floats as in its model"
        return ChainKernel(artifact, graph, chain, kernels)
    except UnsuitedError as error:
        return str(error) or "its tensors have types or sizes that the compiled kernels do not run"
    except ValueError as error:  # onnxruntime says more
        return f"its model is not readable ({error})"


class ChainKernel:
    """A chain's packed weights; ``bind`` makes what runs it. Built by ``make_chain``."""

    def __init__(self, artifact: CompressedPolicy, graph: Graph, chain: Chain, kernels: Kernels) -> None:
        self._model, self._graph, self._chain = artifact.model, graph, chain
        if kernels.library is None:
            raise UnsuitedError
        self._kernels, self._library, self._lanes = kernels, kernels.library, kernels.lanes
        self._kept: list[Array] = []
        source = artifact.inputs[0]
        for name, x in chain.constants.items():
            require(isclose(self._scalar(name, graph.places[name].dtype), x, rel_tol=1e-6))
        self._features = prod(cast("tuple[int, ...]", source.shape[1:]))
        self._shapes = [value.with_batch(1)[1:] for value in (*artifact.inputs, *artifact.outputs)]
        self._widths = [self._features]
        # of values that are images, channels last: height, width, channels, and the columns of a position
        self._images: list[tuple[int, int, int, int] | None] = [None]
        if is_image(graph.inputs[0]):
            channels, height, width = self._shapes[0]
            self._images = [(height, width, channels, channels)]
        self._types = [np.dtype(spec.dtype) for spec in (*artifact.inputs, *artifact.outputs)]
        self._window_bytes = 0
        # the first columns of the values of a row, and where those of the next begin
        self._places, self._end = [0], _up(self._features, 2 * self._lanes)
        made: list[_CStep] = []
        for step in chain.steps:
            made += self._part(step) if step.kind == "part" else self._make(step)
        if max(self._end, self._window_bytes) > _MOST_BYTES:
            raise UnsuitedError("it takes more memory than the compiled kernels do")
        self._steps = (_CStep * len(made))(*made)
        require([(self._widths[value],) for value in chain.results] == self._shapes[len(artifact.inputs) :])
        results = [_CResult(self._places[value], self._widths[value]) for value in chain.results]
        self._results = (_CResult * len(results))(*results)
        # room for a whole vector, or four codes, behind the last value
        self._stride = self._end + 2 * self._lanes
        self._observed = _CChain()
        self._observe(self._observed, source.shape[1:])

    def bind(self, arrays: Sequence[Array]) -> Callable[[], None]:
        """What computes the outputs from the inputs: arrays [rows, *shape], contiguous, which are its for good.

        Args:
            arrays: of the artifact's inputs, observations first, and then of its outputs.
        Raises:
            ValueError: another shape or type.
        """
        rows = len(arrays[0])
        plain = all(array.flags.c_contiguous for array in arrays) and [a.dtype for a in arrays] == self._types
        if not plain or [array.shape for array in arrays] != [(rows, *shape) for shape in self._shapes]:
            types = " and ".join(dict.fromkeys(map(str, self._types)))
            given = " and ".join(f"{array.dtype}{list(array.shape)}" for array in arrays)
            raise ValueError(f"{given} are not rows of {self._shapes} as contiguous {types}")
        windows = self._zeros(self._window_bytes, np.uint8)
        floats, codes = self._zeros(rows * self._stride, np.float32), self._zeros(2 * rows * self._stride, np.uint8)
        chain = _CChain.from_buffer_copy(self._observed)
        chain.floats, chain.codes, chain.windows = floats.ctypes.data, codes.ctypes.data, windows.ctypes.data
        function = getattr(self._library, f"run_{self._kernels.suffix}")
        pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        chain.kept = (self, arrays, floats, codes, windows)
        return partial(function, ctypes.byref(chain), ctypes.c_int(rows), pointers)

    def _observe(self, chain: _CChain, shape: tuple[int | None, ...]) -> None:
        """Fill in what is done to an observation of this shape before the first product."""
        mean, factor = self._zeros(self._stride, np.float32), self._zeros(self._stride, np.float32)
        factor[: self._features] = 1.0
        for target, name in ((mean, self._chain.mean), (factor, self._chain.factor)):
            if name:
                array = self._array(name, np.float32)
                require(array.shape in ((), (1,), shape, (self._features,)))
                target[: self._features] = array.reshape(-1)
        least, greatest = -np.inf, np.inf
        for low, high in self._chain.clips:
            bounds = float(self._scalar(low, np.float32)), float(self._scalar(high, np.float32))
            least, greatest = (min(max(edge, bounds[0]), bounds[1]) for edge in (least, greatest))
        chain.mean, chain.factor, chain.least, chain.greatest = self._keep(mean), self._keep(factor), least, greatest
        chain.channels = 0 if self._images[0] is None else self._images[0][2]
        chain.quantises = self._chain.codes is not None
        chain.step, chain.zero = self._step(self._chain.codes)
        chain.steps, chain.features, chain.stride = len(self._steps), self._features, self._stride
        chain.results, chain.inputs = len(self._results), len(self._shapes) - len(self._results)
        chain.each, chain.made = self._steps, self._results

    def _part(self, step: Step) -> list[_CStep]:
        """Where a part of a value is."""
        (whole,) = step.reads
        width, parts = self._widths[whole], step.parts
        if step.bias:
            edges = (int(self._scalar(name, np.int64)) for name in (step.weight, step.bias))
            start, stop, _ = slice(*edges).indices(width)
        else:
            sizes = self._array(step.weight, np.int64).tolist() if step.weight else [width // parts] * parts
            start, stop = sum(sizes[: step.part]), sum(sizes[: step.part + 1])
            require(len(sizes) == parts and sum(sizes) == width and min(sizes) >= 1)
        require(stop > start)
        self._widths.append(stop - start)
        self._images.append(None)
        self._places.append(self._places[whole] + start)
        return []

    def _make(self, step: Step) -> list[_CStep]:
        """The C steps that make a value; packs what they need."""
        widths, sources = [self._widths[value] for value in step.reads], [self._places[v] for v in step.reads]
        if step.kind == "input":
            widths, sources = [*self._shapes[step.part]], [step.part]
        made = _CStep(kind=KINDS.index("copy" if step.kind == "join" else step.kind))
        width, image = widths[0], None
        if step.kind in ("floats", "codes", "wide"):
            width = self._pack(made, step, width)
        elif step.kind == "convolution":
            image = self._convolve(made, step)
            width = prod((*image[:2], image[3]))
        elif any(self._images[value] is not None for value in step.reads):
            raise UnsuitedError
        elif step.kind == "norm":
            made.inputs = width
            made.weights = self._keep(self._vector(step.weight, width, width, np.float32))
            made.bias, made.epsilon = self._keep(self._vector(step.bias, width, width, np.float32)), step.epsilon
        elif step.kind == "constant":
            array = self._array(step.weight, np.float32)
            require(array.shape in ((), (1,), (1, 1), (width,), (1, width)))
            row = self._zeros(_up(width, 2 * self._lanes), np.float32)
            row[:width] = array.reshape(-1)
            made.weights = self._keep(row)
        elif step.kind == "join":
            width = sum(widths)
        elif len(set(widths)) > 1:
            raise UnsuitedError
        target, columns = self._end, _up(width, 2 * self._lanes)
        self._end += columns
        made.outputs = columns if image is None else image[3]
        self._widths.append(width)
        self._images.append(image)
        self._places.append(target)
        made.source, made.other, made.target = sources[0], sources[-1], target
        self._activate(made, step.activation)
        made.quantises = step.writes is not None
        made.step, made.zero = self._step(step.codes if step.kind == "decode" else step.writes)
        if step.kind == "split":
            made.activation = 0
            made.step, made.zero = self._two_bytes(step, made)
        if step.rescales:
            made.step = 1.0
        if step.kind in ("copy", "input", "constant"):
            made.inputs = width
        if step.kind != "join":
            return [made]
        starts = [target + sum(widths[:index]) for index in range(len(widths))]
        copies = [
            _CStep(kind=made.kind, source=source, target=start, inputs=size)
            for source, start, size in zip(sources, starts, widths, strict=True)
        ]
        return [*copies, made]

    def _pack(self, made: _CStep, step: Step, inputs: int) -> int:
        """Pack a product; returns how many outputs it has."""
        integers = step.codes is not None
        weight = self._weight(step, np.int8 if integers else np.float32)
        n, k = weight.shape
        require(k == inputs or step.kind == "convolution")
        outputs = _up(n, 2 * self._lanes)
        made.inputs = _up(k, 4) if integers else k
        bias = self._vector(step.bias, n, outputs, np.int32 if integers else np.float32)
        if step.low is not None:
            bias = np.concatenate((np.zeros_like(bias), bias))
        packed = self._zeros(outputs * made.inputs, weight.dtype)
        strides = (stride // weight.itemsize for stride in weight.strides)
        arguments = (weight.ctypes.data, n, k, *strides, self._lanes)
        if step.codes is not None:
            read = [names for names in (step.codes, step.low) if names is not None]
            made.scale = self._keep(np.concatenate([self._scales(step, names, weight, outputs) for names in read]))
            for names, part in zip(read, np.split(bias, len(read)), strict=True):
                zero = self._zero(names.zero) - self._kernels.shift
                self._library.pack_codes(*arguments, zero, packed.ctypes.data, part.ctypes.data)
        else:
            self._library.pack_floats(*arguments, packed.ctypes.data)
        made.weights, made.bias = self._keep(packed), self._keep(bias)
        return int(n)

    def _convolve(self, made: _CStep, step: Step) -> tuple[int, int, int, int]:
        """Pack a convolution; returns the image that it makes."""
        image = self._images[step.reads[0]]
        if image is None or len(step.window) != len(image) or min(step.window) < 1:
            raise UnsuitedError
        (height, width, _, columns), (lines, line, down, right) = image, step.window
        rows, wide = (height - lines) // down + 1, (width - line) // right + 1
        require(min(rows, wide) >= 1 and self._graph.places[step.weight].shape[2:] == (lines, line))
        made.window = _CWindow(
            rows, wide, lines, line * columns, width * columns, down * width * columns, right * columns
        )
        outputs = self._pack(made, step, 0)
        self._window_bytes = max(self._window_bytes, rows * wide * made.inputs)
        return rows, wide, outputs, _up(outputs, 2 * self._lanes)

    def _vector(self, name: str, n: int, columns: int, dtype: type[np.generic]) -> Array:
        """An initializer [n], zeros if "", and zeros behind it to a whole number of vectors."""
        padded = self._zeros(_up(columns, 2 * self._lanes), dtype)
        if name:
            given = self._array(name, dtype)
            require(given.shape == (n,))
            padded[:n] = given
        return padded

    def _activate(self, made: _CStep, activation: Activation) -> None:
        made.activation = ACTIVATIONS.index(activation.kind)
        made.alpha = activation.alpha
        if activation.kind == "Clip":
            made.alpha, made.beta = (
                float(self._scalar(name, np.float32)) if name else unbounded
                for name, unbounded in zip(activation.bounds, (-inf, inf), strict=True)
            )

    def _weight(self, step: Step, dtype: type[np.generic]) -> Array:
        half = self._chain.widened.get(step.weight)
        found = self._array(step.weight, dtype) if half is None else self._array(half, np.float16).astype(np.float32)
        image = self._images[step.reads[0]]
        if image is None and found.ndim == 2:
            return found if step.transposed else found.T
        if image is None or step.kind not in ("codes", "convolution"):
            raise UnsuitedError
        height, width, channels, columns = image
        if step.kind == "codes":  # of an image's numbers one by one
            rows = found if step.transposed else found.T
            found = rows.reshape(len(rows), channels, height, width)
        require(found.ndim == len(image) and found.shape[1] == channels)
        laid = np.zeros((len(found), *found.shape[2:], columns), dtype)
        laid[..., :channels] = found.transpose(0, 2, 3, 1)
        return laid.reshape(len(found), -1)

    def _scales(self, step: Step, reads: CodeNames, weight: Array, outputs: int) -> Array:
        """Of the integer sums, one for each output, with the rounding of single precision at every product."""
        n = len(weight)
        scale = self._array(step.scale, np.float32)
        require(scale.shape in ((), (1,), (n,)) and not self._array(step.zero, np.int8).any())
        if step.low is None and max(int(weight.max()), -int(weight.min())) > self._kernels.greatest:
            raise UnsuitedError(f"weights of 8 bits are not summed exactly by the kernels for {self._kernels.name}")
        with np.errstate(all="ignore"):  # what is not finite becomes so in the answers too
            factors = np.multiply(scale, self._scalar(reads.scale, np.float32))
            if step.rescales and step.writes is not None:
                factors = np.divide(factors, self._scalar(step.writes.scale, np.float32))
        padded = self._zeros(outputs, np.float32)
        padded[:n] = factors
        return padded

    def _two_bytes(self, step: Step, made: _CStep) -> tuple[float, int]:
        """The step of low bytes and the zero point of high ones, whose bytes and bounds are as ``split`` makes them."""
        (coarse, zero), (fine, middle) = self._step(step.codes), self._step(step.low)
        greatest = (GREATEST_HIGH - zero) * coarse + (LOW_ZERO - 1) * fine
        require(coarse == LOW_CODES * fine and middle == LOW_ZERO)
        require(made.alpha >= -zero * coarse and made.beta <= greatest * (1 + 1e-6))
        return fine, zero

    def _step(self, codes: CodeNames | None) -> tuple[float, int]:
        if codes is None:
            return 1.0, 0
        return float(self._scalar(codes.scale, np.float32)), self._zero(codes.zero)

    def _zero(self, name: str) -> int:
        """A zero point of unsigned codes: the kernels keep signed ones in unsigned bytes."""
        if self._graph.places[name].dtype == np.int8:
            return int(self._scalar(name, np.int8)) + _SIGNED_TO_UNSIGNED
        return int(self._scalar(name, np.uint8))

    def _array(self, name: str, dtype: type[np.generic] | np.dtype[np.generic]) -> Array:
        array = self._graph.array(self._model, name)
        if array.dtype != dtype:
            raise UnsuitedError(f"{name} is {array.dtype}, where the compiled kernels take {np.dtype(dtype)}")
        return array

    def _scalar(self, name: str, dtype: type[np.generic] | np.dtype[np.generic]) -> Array:
        array = self._array(name, dtype)
        require(array.size == 1)
        return array.reshape(())

    def _zeros(self, count: int, dtype: type[np.generic] | np.dtype[np.generic]) -> Array:
        """An array that begins at a cache line."""
        size = count * np.dtype(dtype).itemsize
        raw = np.zeros(size + _ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % _ALIGNMENT
        return raw[start : start + size].view(dtype)

    def _keep(self, array: Array) -> int:
        self._kept.append(array)
        return int(array.ctypes.data)


def _is_as_declared(spec: TensorSpec, value: Value) -> bool:
    """Whether an artifact's header says of a tensor what its model says: floats or images of bytes, any number of rows,
    these sizes."""
    shape = spec.shape
    declared = {"float32": FLOAT_TYPE, "uint8": BYTE_TYPE if is_image(value) else 0}.get(spec.dtype)
    if (spec.name, declared) != (value.name, value.element) or len(shape) < 2:
        return False
    return shape[0] is None and None not in shape[1:] and value.shape == shape


def _up(size: int, multiple: int) -> int:
    return (size + multiple - 1) // multiple * multiple
