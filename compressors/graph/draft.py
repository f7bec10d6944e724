"""A graph while it is rewritten, and the operations of the rewrites on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx import NodeProto

from accel.compressors.arrays import Array
from accel.compressors.graph.sizes import Sizes
from accel.compressors.graph.wiring import Wiring


@dataclass
class Draft:
    """A graph while it is rewritten: the actor's nodes, the prologue's nodes, constants, and the sizes of values."""

    nodes: list[NodeProto]
    prologue: list[NodeProto]
    constants: dict[str, Array]
    outputs: list[str]
    sizes: Sizes
    uint8_inputs: frozenset[str]
    leaf_names: frozenset[str]

    def wiring(self) -> Wiring:
        """Producers and consumers of the present nodes."""
        return Wiring(self.nodes, self.outputs)

    def rank(self, name: str) -> int | None:
        """How many dimensions a value has, if that is known."""
        shape = self.sizes.shapes.get(name)
        return None if shape is None else len(shape)

    def width(self, name: str) -> int | None:
        """The last size of a value, if that is known and the same for any number of rows."""
        return (self.sizes.shapes.get(name) or (None,))[-1]

    def is_parameter(self, name: str) -> bool:
        """Whether a value is known at each refresh: a leaf, or computed by the prologue."""
        return name in self.leaf_names or any(name in node.output for node in self.prologue)

    def replace(self, removed: Sequence[NodeProto], *nodes: NodeProto) -> None:
        """Replace nodes by others, at the position of the last of them."""
        position = max(index for index, old in enumerate(self.nodes) if any(old is r for r in removed))
        self.nodes[position : position + 1] = nodes
        self.nodes = [old for old in self.nodes if not any(old is r for r in removed)]

    def bypass(self, node: NodeProto, value: str) -> None:
        """Remove a node that only forwards ``value``; it takes the node's output name if that is a graph output."""
        output = node.output[0]
        self.nodes = [old for old in self.nodes if old is not node]
        if output not in self.outputs:
            rename_readers(self.nodes, output, value)
            return
        for maker in self.nodes:
            for index, name in enumerate(maker.output):
                if name == value:
                    maker.output[index] = output
        rename_readers(self.nodes, value, output)


def rename_readers(nodes: Sequence[NodeProto], old: str, new: str) -> None:
    """Make every reader of ``old`` read ``new``."""
    for node in nodes:
        for index, name in enumerate(node.input):
            if name == old:
                node.input[index] = new
