"""Split an exported graph by what its nodes depend on: constants, parameters only, or the actor's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from onnx import ModelProto, NodeProto, helper, numpy_helper

from accel.compressors.arrays import Array, State
from accel.compressors.errors import GraphError
from accel.compressors.graph.subgraph import Subgraph
from accel.compressors.graph.wiring import needed


class Prologue:
    """The part of a graph that depends on parameters only, computed at each refresh; forwards unchanged parameters.

    Attributes:
        leaves: names of the module's parameters and buffers that the graph needs.
    """

    def __init__(
        self,
        nodes: Sequence[NodeProto],
        constants: Mapping[str, Array],
        state: State,
        wanted: Sequence[str],
        opset: int,
    ) -> None:
        """Keep the nodes that the wanted names need; ``state`` gives the leaves' dtypes and shapes."""
        kept, names = needed(nodes, wanted)
        self.leaves = tuple(sorted(names & set(state)))
        self._direct = tuple(name for name in wanted if name in state)
        self._kept = kept
        read = {name for node in kept for name in node.input}
        inputs = {name: (state[name].dtype, state[name].shape) for name in self.leaves if name in read}
        self.unchanged = frozenset(self._direct) - read
        computed = [name for name in wanted if name not in state]
        self._subgraph = Subgraph(kept, inputs, constants, computed, opset) if kept else None

    def sources(self, name: str) -> tuple[str, ...]:
        """The leaves that a wanted value is computed from, in input order; the value itself if it is a leaf."""
        found: dict[str, None] = {}
        pending = [name]
        while pending:
            value = pending.pop()
            if value in self.leaves:
                found[value] = None
            for node in self._kept:
                if value in node.output:
                    pending += reversed(node.input)
        return tuple(found)

    def run(self, leaves: State) -> dict[str, Array]:
        """The wanted arrays by name; those of ``unchanged`` that are no leaves here are left out."""
        results = {name: leaves[name] for name in self._direct if name in leaves}
        if self._subgraph is not None:
            results.update(self._subgraph(leaves))
        return results


def split(
    model: ModelProto, leaf_names: AbstractSet[str], opset: int
) -> tuple[list[NodeProto], dict[str, Array], list[NodeProto]]:
    """(nodes for the actor, constants, prologue nodes), each in topological order.

    Raises:
        GraphError: the graph has control flow.
    """
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.name not in leaf_names}
    known = set(constants)
    parametric = set(leaf_names)
    foldable: list[NodeProto] = []
    prologue: list[NodeProto] = []
    acting: list[NodeProto] = []
    for node in model.graph.node:
        if any(attribute.HasField("g") for attribute in node.attribute):
            raise GraphError(
                f"the policy's graph has control flow ({node.op_type} {node.name!r}); remove the branch or loop"
            )
        inputs = {name for name in node.input if name}
        if node.op_type == "Constant":
            constants[node.output[0]] = _constant(node)
            known.add(node.output[0])
        elif inputs and inputs <= known:
            foldable.append(node)
            known |= set(node.output)
        elif inputs and inputs <= known | parametric:
            prologue.append(node)
            parametric |= set(node.output)
        else:
            acting.append(node)
    if foldable:
        wanted = [name for node in foldable for name in node.output if name]
        constants.update(Subgraph(foldable, {}, constants, wanted, opset)({}))
    return acting, constants, prologue


def _constant(node: NodeProto) -> Array:
    attribute = node.attribute[0]
    value = helper.get_attribute_value(attribute)
    if attribute.name != "value":
        raise GraphError(
            f"constant {node.name!r} has the attribute {attribute.name!r} instead of 'value'; export it with torch.onnx"
        )
    array: Array = numpy_helper.to_array(value)
    return array
