"""Who makes and who reads each value of a list of nodes, and small questions about nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import cast

from onnx import NodeProto, helper

AttributeValue = int | float | str | list[int] | list[float]


class Wiring:
    """Producers and consumers; built anew after the nodes change."""

    def __init__(self, nodes: Sequence[NodeProto], outputs: Sequence[str]) -> None:
        self.producer: dict[str, NodeProto] = {name: node for node in nodes for name in node.output if name}
        self.consumers: dict[str, list[NodeProto]] = defaultdict(list)
        for node in nodes:
            for name in dict.fromkeys(node.input):
                if name:
                    self.consumers[name].append(node)
        self._outputs = frozenset(outputs)

    def is_output(self, value: str) -> bool:
        """Whether a value leaves the graph."""
        return value in self._outputs

    def only_consumer(self, value: str) -> NodeProto | None:
        """The one node that reads a value, or None when there are several or it leaves the graph."""
        readers = self.consumers[value]
        return readers[0] if len(readers) == 1 and not self.is_output(value) else None


def attributes(node: NodeProto) -> dict[str, AttributeValue]:
    """A node's attributes as Python values; texts as ``str``."""
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
    """Whether a Gemm is x·W + b or x·Wᵀ + b with no factors and no transposed input."""
    values = attributes(node)
    return (
        node.op_type == "Gemm"
        and values.get("alpha", 1.0) == 1.0
        and values.get("beta", 1.0) == 1.0
        and not values.get("transA", 0)
    )


def layer_name(node: NodeProto) -> str:
    """How messages call a node: its module's dotted name, from the exporter's path."""
    names: list[str] = []
    for part in node.name.strip("/").split("/")[:-1]:
        if names and part.startswith(f"{names[-1]}."):
            names[-1] = part  # the child of a container repeats the container's name
        else:
            names.append(part)
    return ".".join(names) or node.name or node.output[0]
