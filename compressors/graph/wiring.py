"""Producers and consumers of the values of a graph, and queries about nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import cast

from onnx import NodeProto, helper

# what reads a matrix of parameters and multiplies none by it: positions that are added, tokens put in front of rows
WITHOUT_PRODUCTS = frozenset({"Add", "Sub", "Mul", "Div", "Concat", "Expand", "Where"})
AttributeValue = int | float | str | list[int] | list[float]


class Wiring:
    """Producers and consumers by value; a snapshot, to be built again after the nodes change."""

    def __init__(self, nodes: Sequence[NodeProto], outputs: Sequence[str]) -> None:
        self.producer: dict[str, NodeProto] = {name: node for node in nodes for name in node.output if name}
        self.consumers: dict[str, list[NodeProto]] = defaultdict(list)
        for node in nodes:
            for name in dict.fromkeys(node.input):
                if name:
                    self.consumers[name].append(node)
        self._outputs = frozenset(outputs)

    def is_output(self, value: str) -> bool:
        """Whether a value is an output of the graph."""
        return value in self._outputs

    def only_consumer(self, value: str) -> NodeProto | None:
        """The only reader of a value; None if there are several, or if the value is an output of the graph."""
        readers = self.consumers[value]
        return readers[0] if len(readers) == 1 and not self.is_output(value) else None


def needed(nodes: Sequence[NodeProto], wanted: Iterable[str]) -> tuple[list[NodeProto], set[str]]:
    """The nodes that wanted values are computed by, in their order, and the names of all that these read and make."""
    names = set(wanted)
    kept: list[NodeProto] = []
    for node in reversed(nodes):
        if names & set(node.output):
            kept.insert(0, node)
            names |= {name for name in node.input if name}
    return kept, names


def attributes(node: NodeProto) -> dict[str, AttributeValue]:
    """A node's attributes as Python values."""
    values: dict[str, AttributeValue] = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        values[attribute.name] = value.decode() if isinstance(value, bytes) else cast("AttributeValue", value)
    return values


def int_attribute(node: NodeProto, name: str, default: int) -> int:
    """An integer attribute, or its default."""
    value = attributes(node).get(name, default)
    return int(cast("int", value))


def optional_input(node: NodeProto, index: int) -> str:
    """The name of an input, "" where it is absent."""
    return node.input[index] if len(node.input) > index else ""


def is_plain_gemm(node: NodeProto) -> bool:
    """Whether a node is a Gemm x·W + b or x·Wᵀ + b, without factors or a transposed input."""
    values = attributes(node)
    return (
        node.op_type == "Gemm"
        and values.get("alpha", 1.0) == 1.0
        and values.get("beta", 1.0) == 1.0
        and not values.get("transA", 0)
    )


def layer_name(node: NodeProto) -> str:
    """A node's name in messages: its module's dotted name, from the exporter's path."""
    names: list[str] = []
    for part in node.name.strip("/").split("/")[:-1]:
        if names and part.startswith(f"{names[-1]}."):
            names[-1] = part  # the child of a container repeats the container's name
        else:
            names.append(part)
    return ".".join(names) or node.name or node.output[0]
