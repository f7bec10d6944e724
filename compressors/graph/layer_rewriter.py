"""Rewrite a float graph layer by layer, for formats that change how weights are stored but not the activations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from onnx import NodeProto

from accel.compressors.errors import UnsupportedLayerError
from accel.compressors.graph.payload import Slot
from accel.compressors.graph.policy_graph import PolicyGraph
from accel.compressors.graph.wiring import WITHOUT_PRODUCTS, int_attribute, is_plain_gemm, layer_name, optional_input


@dataclass(frozen=True)
class Layer:
    """A Gemm or Conv with a fixed weight.

    Attributes:
        node: the graph's node.
        weight: the weight parameter, [outputs, inputs] (``transposed``) or [inputs, outputs] for a Gemm, else a kernel.
        bias: the bias parameter, "" without.
    """

    node: NodeProto
    weight: str
    bias: str

    @property
    def name(self) -> str:
        """The name in messages."""
        return layer_name(self.node)

    @property
    def is_convolution(self) -> bool:
        """Whether it is a Conv."""
        return self.node.op_type == "Conv"

    @property
    def transposed(self) -> bool:
        """Whether a Gemm's weight is [outputs, inputs]."""
        return bool(int_attribute(self.node, "transB", 0))

    @property
    def stem(self) -> str:
        """Prefix of the names of the initializers that replace the weight."""
        return f"{self.node.output[0]}:weight"


class LayerRewriter(ABC):
    """Replaces the node of every layer and keeps the others.

    Attributes:
        nodes: the new graph's, in topological order.
        layers: the replaced ones.
        slots: initializers of the new graph; ``replace`` adds those of replaced weights.
        floats: parameters that stay in single precision.
    """

    def __init__(self, graph: PolicyGraph, nodes: Sequence[NodeProto] | None = None) -> None:
        self.graph = graph
        self.nodes: list[NodeProto] = []
        self.layers: list[Layer] = []
        self.slots: dict[str, Slot] = {}
        for node in graph.nodes if nodes is None else nodes:
            layer = self._layer(node)
            if layer is None:
                self._keep(node)
                continue
            self.layers.append(layer)
            self.nodes += self.replace(layer)
        used = {name for node in self.nodes for name in node.input}
        self.floats = tuple(name for name in graph.parameters if name in used)
        self.slots.update({name: Slot.like(graph.parameters[name]) for name in self.floats})

    @abstractmethod
    def replace(self, layer: Layer) -> list[NodeProto]:
        """The nodes that replace a layer's; declares their initializers in ``slots``."""

    @abstractmethod
    def refusal(self, operator: str) -> str:
        """Why the format does not support a layer of another operator, and the remedy."""

    def _layer(self, node: NodeProto) -> Layer | None:
        parameters = self.graph.parameters
        if node.op_type not in ("Gemm", "Conv") or node.input[1] not in parameters:
            return None
        bias = optional_input(node, 2)
        if (node.op_type == "Gemm" and not is_plain_gemm(node)) or (bias and bias not in parameters):
            return None
        return Layer(node, node.input[1], bias)

    def _keep(self, node: NodeProto) -> None:
        for name in () if node.op_type in WITHOUT_PRODUCTS else node.input:
            array = self.graph.parameters.get(name)
            if array is not None and array.ndim > 1 and array.dtype.kind == "f":
                raise UnsupportedLayerError(
                    f"layer {layer_name(node)!r} cannot be compressed: {self.refusal(node.op_type)}"
                )
        self.nodes.append(node)
