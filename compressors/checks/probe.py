"""Run successive artifacts of one layout in one session: weights are inputs, so nothing is loaded again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Self

import numpy as np
import onnx
from numpy.typing import NDArray

from accel.compressors.arrays import Array
from accel.compressors.artifact import CompressedPolicy, TensorSpec
from accel.compressors.errors import ArtifactError
from accel.compressors.graph.payload import value_info
from accel.compressors.kernels.graph import Graph, TensorPlace, read_graph
from accel.compressors.runtime import PolicySession

Bytes = NDArray[np.uint8]


class ArtifactProbe:
    """A model whose initializers are inputs, copied from the bytes of each artifact that it runs.

    The operators are those of the artifact. Integer results are identical to an actor's session; floats may differ in
    the last bits, because the session packs constant weights on loading. Activations in front of 4-bit weights, which
    actors round to 8 bits, stay floats: a root mean square difference of 1 to 3 % of an output's spread. Initializers
    that are not weights keep the values of the artifact that the probe was opened with.
    """

    def __init__(self, artifact: CompressedPolicy, session: PolicySession, graph: Graph | None) -> None:
        """Use ``open``."""
        self._like = artifact
        self._session = session
        self._graph = graph
        places = {} if graph is None else _weights(graph)
        self._weights = [(_as_bytes(session.inputs[name]), place.start, place.stop) for name, place in places.items()]

    @classmethod
    def open(cls, artifact: CompressedPolicy, inputs: Mapping[str, Array]) -> Self:
        """A probe for artifacts of this layout and for N rows. Loads this first artifact as an actor does, too.

        Where an operator takes its weights as constants only, no weight becomes an input, and the probe runs artifacts
        with the same model only. 4-bit weights of convolutions are of the layout.

        Args:
            artifact: the first artifact.
            inputs: by name, [N, *shape], N ≥ 1.
        Raises:
            ArtifactError: it cannot be decoded from its own bytes, cannot be loaded, or fails when it runs.
        """
        artifact = CompressedPolicy.from_bytes(artifact.to_bytes())
        batch = len(inputs[artifact.inputs[0].name])
        closed = cls(artifact, PolicySession(artifact, batch=batch, runtime="onnxruntime"), None)
        closed.run(artifact, inputs)
        try:
            graph = read_graph(artifact.model)
            specs = [TensorSpec(name, str(place.dtype), place.shape) for name, place in _weights(graph).items()]
            open_model = _open(artifact.model, specs)
            opened = dataclasses.replace(artifact, inputs=(*artifact.inputs, *specs), model=open_model)
            probe = cls(artifact, PolicySession(opened, batch=batch, runtime="onnxruntime"), graph)
            probe.run(artifact, inputs)
        except (ArtifactError, ValueError):  # or a graph that is not read here
            return closed
        return probe

    @property
    def batch(self) -> int:
        """Rows of every input and output."""
        return self._session.batch

    def fits(self, artifact: CompressedPolicy) -> bool:
        """Whether an artifact differs from the first in version and weights only."""
        if any(getattr(artifact, name) != getattr(self._like, name) for name in _LAYOUT):
            return False
        return artifact.model == self._like.model if self._graph is None else self._graph.is_of(artifact.model)

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


def _weights(graph: Graph) -> dict[str, TensorPlace]:
    return {name: place for name, place in graph.places.items() if place.is_weight}


def _open(serialised: bytes, specs: list[TensorSpec]) -> bytes:
    model = onnx.load_from_string(serialised)
    names = {spec.name for spec in specs}
    constants = [tensor for tensor in model.graph.initializer if tensor.name not in names]
    del model.graph.initializer[:]
    model.graph.initializer.extend(constants)
    model.graph.input.extend(value_info(spec) for spec in specs)
    opened: bytes = model.SerializeToString()
    return opened


def _as_bytes(array: Array) -> Bytes:
    return array.reshape(-1).view(np.uint8)
