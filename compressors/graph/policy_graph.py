"""A torch policy module as an ONNX graph whose weights are kept separate and rewritten at every refresh.

The module is exported once per architecture. Every initializer that is a parameter or buffer keeps its name. Values
computed from parameters only (a reciprocal standard deviation, a reordered LSTM weight) form the *prologue*, evaluated
at each refresh; values computed from constants only are folded once. The remaining nodes run on the actor.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from onnx import ModelProto, NodeProto

from accel.compressors.arrays import Array, State
from accel.compressors.artifact import TensorSpec
from accel.compressors.errors import GraphError
from accel.compressors.graph.draft import Draft
from accel.compressors.graph.folding import Prologue, split
from accel.compressors.graph.simplify import simplify
from accel.compressors.graph.sizes import Shape, Sizes, fails_at_another_batch, read_sizes
from accel.compressors.graph.subgraph import Subgraph
from accel.compressors.graph.torch_export import export_model
from accel.compressors.module_state import read_state

OPSET = 17
_SENTINEL_SEED = 20_240_229
_WIDER = 3.0


@dataclass(frozen=True)
class PolicyGraph:
    """An exported policy, the input of every format.

    Attributes:
        inputs: observations first, then recurrent state.
        outputs: parameters first, then the next state.
        nodes: the actor's computation, in topological order, unfused.
        constants: fixed arrays.
        parameters: arrays that each refresh provides, by name; gives their shapes and dtypes.
        prologue: computes parameters from leaves.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    nodes: tuple[NodeProto, ...]
    constants: Mapping[str, Array]
    parameters: Mapping[str, Array]
    prologue: Prologue

    def read(self, state: State) -> Mapping[str, Array]:
        """The graph's parameters for a module state (at least the prologue's leaves)."""
        return self.prologue.run(state)

    def subgraph(self, wanted: Sequence[str], further: Sequence[NodeProto] = ()) -> Subgraph:
        """The unfused graph, with further nodes, as a function of inputs and parameters that returns wanted values."""
        inputs: dict[str, tuple[np.dtype[np.generic], Sequence[int | None]]] = {
            spec.name: (np.dtype(spec.dtype), spec.shape) for spec in self.inputs
        }
        inputs.update({name: (array.dtype, array.shape) for name, array in self.parameters.items()})
        return Subgraph([*self.nodes, *further], inputs, self.constants, wanted, OPSET)


def export_policy(
    module: torch.nn.Module, example_inputs: Mapping[str, torch.Tensor], output_names: Sequence[str]
) -> PolicyGraph:
    """Export a module in evaluation mode.

    A copy with random weights is exported, because the exporter would merge equal tensors. The graph is then compared
    with the copy at other random weights, which detects a weight frozen as a constant. The graph gets the examples and
    random rows in one batch and the copy gets them separately, which detects branches that depend on values and rows
    that depend on each other. A policy that accepts certain values only, such as indices, is compared on the examples.

    Raises:
        GraphError: export failed, or the graph differs from the module at other weights, inputs or batch sizes.
    """
    double = copy.deepcopy(module).cpu().eval()
    examples = {name: value.detach().cpu() for name, value in example_inputs.items()}
    generator = torch.Generator().manual_seed(_SENTINEL_SEED)
    _randomise(double, generator)
    model = export_model(double, examples, output_names, OPSET)
    _randomise(double, generator)
    state = read_state(double)
    inputs = tuple(_spec(name, value) for name, value in examples.items())
    with torch.no_grad():
        results = _as_tuple(double(*examples.values()))
    if len(results) != len(output_names):
        raise GraphError(
            f"the policy returns {len(results)} tensors, but there are {len(output_names)} output names; give one each"
        )
    outputs = tuple(_spec(name, value) for name, value in zip(output_names, results, strict=True))
    sizes = read_sizes(model, {name: value.numpy() for name, value in examples.items()})
    graph = _policy_graph(model, state, inputs, outputs, sizes)
    fresh, further = _fresh_rows(double, examples, generator)
    feeds = {name: torch.cat([value, fresh[name]]).numpy() for name, value in examples.items()}
    _check_follows(graph, state, feeds, [list(parts) for parts in zip(results, further, strict=True)])
    return graph


def _policy_graph(
    model: ModelProto, state: State, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], sizes: Sizes
) -> PolicyGraph:
    nodes, constants, prologue_nodes = split(model, state.keys(), OPSET)
    shapes: dict[str, Shape] = {name: array.shape for name, array in state.items()}
    draft = Draft(
        nodes,
        prologue_nodes,
        constants,
        outputs=[spec.name for spec in outputs],
        sizes=replace(sizes, shapes={**sizes.shapes, **shapes}),
        uint8_inputs=frozenset(spec.name for spec in inputs if spec.dtype == "uint8"),
        leaf_names=frozenset(state),
    )
    simplify(draft)
    used = {name for node in draft.nodes for name in node.input if name}
    prologue = Prologue(draft.prologue, constants, state, sorted(filter(draft.is_parameter, used)), OPSET)
    return PolicyGraph(
        inputs=inputs,
        outputs=outputs,
        nodes=tuple(draft.nodes),
        constants={name: array for name, array in constants.items() if name in used},
        parameters=prologue.run(state),
        prologue=prologue,
    )


def _check_follows(
    graph: PolicyGraph, state: State, feeds: Mapping[str, Array], expected: Sequence[Sequence[torch.Tensor]]
) -> None:
    """Check that the graph agrees with the module at other weights and another batch size than the exported ones.

    Args:
        graph: the exported graph.
        state: the weights.
        feeds: inputs, all rows in one batch.
        expected: for each output, the module's results for consecutive parts of these rows.
    """
    try:
        got = graph.subgraph([spec.name for spec in graph.outputs])({**feeds, **graph.read(state)})
    except Exception as error:  # onnxruntime's errors share no base but Exception
        raise fails_at_another_batch(error) from error
    for spec, parts in zip(graph.outputs, expected, strict=True):
        if not _agree(got[spec.name], [part.detach().numpy() for part in parts]):
            raise GraphError(
                f"output {spec.name!r} of the exported graph differs from the policy's at other weights, inputs "
                "or batch sizes; compute it from parameters, buffers and inputs by torch operations only, without "
                "branches on their values, random numbers, writes in place or memory of earlier calls, for any number "
                "of rows, each independent of the others"
            )


def _agree(found: Array, parts: Sequence[Array]) -> bool:
    """Whether ``found`` equals the concatenated parts; rows that are not finite in them are ignored."""
    if any(part.ndim == 0 for part in parts) or len({part.shape[1:] for part in parts}) > 1:
        return False
    wanted = np.concatenate(parts)
    if found.shape != wanted.shape:
        return False
    finite = np.isfinite(wanted.reshape(len(wanted), -1)).all(axis=1)
    tolerance = 1e-3 * (1.0 + float(np.abs(wanted[finite]).max(initial=0.0)))
    return np.allclose(found[finite], wanted[finite], atol=tolerance, rtol=0)


def _randomise(double: torch.nn.Module, generator: torch.Generator) -> None:
    """Distinct random weights, scaled by fan-in."""
    with torch.no_grad():
        for parameter in double.parameters():
            if parameter.is_floating_point():
                fan_in = parameter[0].numel() if parameter.dim() > 1 else 100
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / fan_in**0.5)
        for buffer in double.buffers():
            if buffer.is_floating_point():
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))


def _fresh_rows(
    double: torch.nn.Module, examples: Mapping[str, torch.Tensor], generator: torch.Generator
) -> tuple[dict[str, torch.Tensor], tuple[torch.Tensor, ...]]:
    """Random rows and the module's results; the first example if the module accepts no random values."""
    fresh = {
        name: _random_rows(value, is_state=index > 0, generator=generator)
        for index, (name, value) in enumerate(examples.items())
    }
    with torch.no_grad():
        try:
            return fresh, _as_tuple(double(*fresh.values()))
        except Exception:  # noqa: BLE001 - a module may raise anything for values that it does not accept
            first = {name: value[:1] for name, value in examples.items()}
            return first, _as_tuple(double(*first.values()))


def _random_rows(like: torch.Tensor, *, is_state: bool, generator: torch.Generator) -> torch.Tensor:
    """[2, *shape]: normal, the second row three times wider (tanh for states); bytes; else the first row twice."""
    shape = (2, *like.shape[1:])
    if like.dtype == torch.uint8:
        return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    if not like.is_floating_point():
        return torch.cat([like[:1], like[:1]])
    rows = torch.randn(shape, generator=generator, dtype=like.dtype)
    rows[1] *= _WIDER
    return torch.tanh(rows) if is_state else rows


def _as_tuple(result: torch.Tensor | Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def _spec(name: str, value: torch.Tensor) -> TensorSpec:
    return TensorSpec(name, str(value.dtype).removeprefix("torch."), (None, *value.shape[1:]))
