"""Run successive artifacts of one layout in one session: weights are inputs, so nothing is loaded again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Self

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from accel.compressors.arrays import Array
from accel.compressors.artifact import CompressedPolicy, TensorSpec
from accel.compressors.errors import ArtifactError
from accel.compressors.graph.payload import initializer_places, value_info
from accel.compressors.runtime import PolicySession

# shapes and axes (int64) stay constants: operators may need them when a model is loaded
_WEIGHTS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32)

_CONSTANTS = (TensorProto.INT64, TensorProto.BOOL)

Bytes = NDArray[np.uint8]


class ArtifactProbe:
    """A model whose initializers are inputs, copied from the bytes of each artifact that it runs.

    The operators are those of the artifact. Integer results are identical to an actor's session; floats may differ in
    the last bits, because the session packs constant weights on loading. Activations in front of 4-bit weights, which
    actors round to 8 bits, stay floats: a root mean square difference of 1 to 3 % of an output's spread. Initializers
    that are not weights keep the values of the artifact that the probe was opened with.
    """

    def __init__(
        self, artifact: CompressedPolicy, session: PolicySession, weights: Mapping[str, tuple[int, int]]
    ) -> None:
        """Use ``open``."""
        self._like = artifact
        self._session = session
        self._weights = [(_as_bytes(session.inputs[name]), *place) for name, place in weights.items()]
        edges = [0, *(edge for place in sorted(weights.values()) for edge in place), len(artifact.model)]
        self._gaps = [(a, b, artifact.model[a:b]) for a, b in zip(edges[::2], edges[1::2], strict=True)]

    @classmethod
    def open(cls, artifact: CompressedPolicy, inputs: Mapping[str, Array]) -> Self:
        """A probe for artifacts of this layout and for N rows. Loads this first artifact as an actor does, too.

        Where an operator takes its weights as constants only, or a convolution has 4-bit weights, no weight becomes an
        input, and the probe runs artifacts with the same model only.

        Args:
            artifact: the first artifact.
            inputs: by name, [N, *shape], N ≥ 1.
        Raises:
            ArtifactError: it cannot be decoded from its own bytes, cannot be loaded, or fails when it runs.
        """
        artifact = CompressedPolicy.from_bytes(artifact.to_bytes())
        batch = len(inputs[artifact.inputs[0].name])
        closed = cls(artifact, PolicySession(artifact, batch=batch, runtime="onnxruntime"), {})
        closed.run(artifact, inputs)
        model = onnx.load_from_string(artifact.model)
        if any(tensor.data_type not in (*_WEIGHTS, *_CONSTANTS) for tensor in model.graph.initializer):
            return closed
        try:
            probe = cls._with_open_weights(artifact, model, batch)
            probe.run(artifact, inputs)
        except ArtifactError:
            return closed
        return probe

    @classmethod
    def _with_open_weights(cls, artifact: CompressedPolicy, model: ModelProto, batch: int) -> Self:
        places = dict(initializer_places(memoryview(artifact.model)))
        specs = [_spec(tensor) for tensor in model.graph.initializer if tensor.data_type in _WEIGHTS]
        opened = dataclasses.replace(artifact, inputs=(*artifact.inputs, *specs), model=_open(model, specs))
        return cls(
            artifact,
            PolicySession(opened, batch=batch, runtime="onnxruntime"),
            {spec.name: places[spec.name] for spec in specs},
        )

    @property
    def batch(self) -> int:
        """Rows of every input and output."""
        return self._session.batch

    def fits(self, artifact: CompressedPolicy) -> bool:
        """Whether an artifact differs from the first in version and weights only."""
        like, model = self._like, artifact.model
        return (
            len(model) == len(like.model)
            and all(getattr(artifact, name) == getattr(like, name) for name in _LAYOUT)
            and all(model[start:stop] == gap for start, stop, gap in self._gaps)
        )

    def run(self, artifact: CompressedPolicy, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """The outputs of an artifact for which ``fits`` holds, by name, [N, *shape]; the next call overwrites them.

        Raises:
            ArtifactError: it fails when it runs.
        """
        model = np.frombuffer(artifact.model, np.uint8)
        for weight, start, stop in self._weights:
            weight[:] = model[start:stop]
        for spec in artifact.inputs:
            self._session.inputs[spec.name][...] = inputs[spec.name]
        self._session.run()
        return self._session.outputs


_LAYOUT = ("inputs", "outputs", "cpu_features", "optimisation", "variant", "scheme")


def _spec(tensor: TensorProto) -> TensorSpec:
    return TensorSpec(tensor.name, str(helper.tensor_dtype_to_np_dtype(tensor.data_type)), tuple(tensor.dims))


def _open(model: ModelProto, specs: list[TensorSpec]) -> bytes:
    names = {spec.name for spec in specs}
    constants = [tensor for tensor in model.graph.initializer if tensor.name not in names]
    del model.graph.initializer[:]
    model.graph.initializer.extend(constants)
    model.graph.input.extend(value_info(spec) for spec in specs)
    serialised: bytes = model.SerializeToString()
    return serialised


def _as_bytes(array: Array) -> Bytes:
    return array.reshape(-1).view(np.uint8)
