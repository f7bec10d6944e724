"""The layers of a policy for which schemes take per-layer choices, with what each method can do to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from accel.compressors.errors import UnsupportedLayerError
from accel.compressors.graph.policy_graph import PolicyGraph
from accel.compressors.layer_choices import weight_layer
from accel.compressors.lowrank import factor_rank
from accel.compressors.module_state import read_state
from accel.compressors.prune.channels import find_groups
from accel.compressors.prune.structured import kept_count

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class PolicyLayer:
    """A layer with weights.

    Attributes:
        name: as used in schemes, such as ``torso.layers.0``.
        kind: ``linear`` (an LSTM's step too) or ``convolution``.
        outputs: rows of its weight, seen as a matrix.
        inputs: columns of its weight.
        units: size of the coupled channel group that ``prune`` knows by this name; 0 where it prunes none, as in heads,
            in LSTMs and in layers whose channels belong to another layer's group.
        factorised: whether ``lowrank`` knows it: not an LSTM.
    """

    name: str
    kind: str
    outputs: int
    inputs: int
    units: int
    factorised: bool

    def keeps(self, share: float) -> int:
        """How many units ``prune`` keeps when it removes a share of them."""
        return kept_count(self.units, share)

    def rank(self, share: float) -> int | None:
        """The rank under ``lowrank``; None where it has none, or the factors would be no smaller than the weight."""
        return factor_rank(self.outputs, self.inputs, share) if self.factorised else None


def prunable_units(module: nn.Module, example_inputs: Mapping[str, Tensor]) -> dict[str, int]:
    """Sizes of the coupled channel groups by name; empty where ``prune`` does not know the module's layers."""
    try:
        return {group.name: group.size for group in find_groups(module, example_inputs)}
    except UnsupportedLayerError:
        return {}


def policy_layers(graph: PolicyGraph, module: nn.Module, units: Mapping[str, int]) -> tuple[PolicyLayer, ...]:
    """The layers with weights that an actor computes, in order of execution.

    Args:
        graph: of the module. units: as ``prunable_units`` gives them, where they matter.
    """
    shapes = {name: tuple(array.shape) for name, array in read_state(module).items()}
    layers: dict[str, PolicyLayer] = {}
    for node in graph.nodes:
        if node.op_type not in ("Gemm", "Conv") or node.input[1] not in graph.parameters:
            continue
        name = weight_layer(graph, node.input[1])
        # the module's own matrices: in the graph, heads and constants may be merged into one
        matrices = [shape for own, shape in shapes.items() if own.rpartition(".")[0] == name and len(shape) > 1]
        inputs = sum(int(np.prod(shape[1:])) for shape in matrices)
        kind = "convolution" if node.op_type == "Conv" else "linear"
        layers[name] = PolicyLayer(name, kind, matrices[0][0], inputs, units.get(name, 0), len(matrices) == 1)
    return tuple(layers.values())
