"""A program of torch operations as a module: recorded while it runs on rows, and replayed on any number of them.

TorchScript, ``torch.export`` programs and interpreted ONNX graphs become one kind of module: a straight line of torch
operations, whose linear layers are ``nn.Linear`` and whose other constants are buffers. The program runs twice, on 5
and on 7 rows. What is the same both times is a constant, what is in proportion to the rows is computed from them, and
anything else depends on the number of rows in a way that no policy may.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import cast

import torch
from torch import Tensor, fx, nn

from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError

Program = Callable[..., Sequence[Tensor]]
"""Tensors [N, *shape] to tensors [N, *shape], observations and states to outputs and next states."""

_ROWS = (5, 7)
_ATEN = torch.ops.aten
_SEED = 0


_BROADCAST = {_ATEN.add.Tensor, _ATEN.sub.Tensor, _ATEN.mul.Tensor, _ATEN.div.Tensor, _ATEN.add.Scalar}
_VIEWS = {_ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.reshape.default}
# operations that ONNX does not have under this name, or that take a number of rows as a tensor while they are traced
_REPLACED: Mapping[object, Callable[..., object]] = MappingProxyType(
    {
        _ATEN.expand.default: lambda x, sizes: x.expand(*sizes),
        _ATEN.zeros.default: lambda sizes, **_: torch.zeros(sizes),
        _ATEN.ones.default: lambda sizes, **_: torch.ones(sizes),
        _ATEN.full.default: lambda sizes, value, **_: torch.full(sizes, value),
        _ATEN.copy.default: lambda x, source: source if source.shape == x.shape else source.expand_as(x),
        _ATEN.slice_scatter.default: lambda x, source, *place: _scattered(x, source, *place),
        # of floats all are of single precision, and what that changes is seen beside the program itself
        _ATEN._to_copy.default: lambda x, dtype=None, **_: (
            x if dtype is None else x.to(torch.float32 if dtype.is_floating_point else dtype)
        ),
        _ATEN._softmax.default: lambda x, axis, _: torch.softmax(x, axis),
        _ATEN.alias.default: lambda x: x,
        _ATEN.detach.default: lambda x: x,
        _ATEN.lift_fresh_copy.default: lambda x: x,
        _ATEN.select_scatter.default: lambda x, source, dim, index: _scattered(
            x, source.unsqueeze(dim), dim, index % x.shape[dim], index % x.shape[dim] + 1
        ),
        _ATEN._native_batch_norm_legit_no_training.default: lambda x, w, b, m, v, _, epsilon: (
            nn.functional.batch_norm(x, m, v, w, b, eps=epsilon),
        ),
        # in training mode it changes its buffers, which no state of a row has the shape of
        _ATEN.native_batch_norm.default: lambda x, w, b, m, v, _training, _momentum, epsilon: (
            nn.functional.batch_norm(x, m, v, w, b, eps=epsilon),
        ),
    }
)


@dataclass(frozen=True)
class State:
    """A recurrent state of a program, in its layout: [layers, rows, size] of recurrent layers, or [rows, *shape].

    Attributes:
        source: its input or buffer. target: the output or buffer with the next one. shape: in the file, 0 where free.
    """

    source: str
    target: str
    shape: tuple[int, ...]

    @property
    def is_layered(self) -> bool:
        """Whether layers come before rows."""
        return len(self.shape) == 3 and self.shape[0] > 0 and self.shape[1] in (0, 1)

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of one row's state."""
        if self.is_layered:
            return self.shape[2:] if self.shape[0] == 1 else (self.shape[0], self.shape[2])
        return self.shape[1:]

    def check(self, path: Path) -> None:
        """Raise ConfigError for what is no state of one row."""
        if len(self.shape) < 2 or not (self.is_layered or self.shape[0] in (0, 1)):
            raise ConfigError(
                f"{path} keeps {self.source!r} of shape {self.shape} between calls, which is no state of one row: "
                "export it in evaluation mode, for a batch of one, its state [1, n] or [layers, 1, n]"
            )

    def of_rows(self, rows: Tensor) -> Tensor:
        """[N, *row] in the file's layout."""
        if not self.is_layered:
            return rows
        return rows.unsqueeze(0) if self.shape[0] == 1 else rows.movedim(0, 1)

    def to_rows(self, state: Tensor) -> Tensor:
        """The inverse of ``of_rows``."""
        if not self.is_layered:
            return state
        return state.squeeze(0) if self.shape[0] == 1 else state.movedim(1, 0)


def in_order(names: Sequence[str], spec: EnvSpec, path: Path) -> list[str]:
    """The inputs in the order of an observation's parts."""
    wanted = [part.name for part in spec.inputs]
    if len(names) == 1 and len(wanted) == 1:
        return list(names)
    if sorted(names) != sorted(wanted):
        raise ConfigError(
            f"{path} takes {', '.join(names)}, and the environment observes {', '.join(wanted)}: wrap it so that the "
            "names are the same; recurrent states are buffers of a torch program, and of an ONNX model an input and an "
            "output of one name, such as h_in and h_out"
        )
    return wanted


class TracedProgram(nn.Module):
    """What a program computes.

    Args:
        program: its tensors are those of ``tensors`` by address, or constants of its own.
        examples: one row of each input [1, *shape], observations first.
        states: how many of them, from the last, are states; the program returns as many next states.
        tensors: the program's weights by name.
    Attributes:
        state_shapes: of one row's states. keeps_state: whether there are any, as ``prune`` asks.
    Raises:
        ConfigError: it cannot run on these inputs, or not on any number of rows.
    """

    def __init__(
        self, program: Program, examples: Sequence[Tensor], states: int = 0, tensors: Mapping[str, Tensor] | None = None
    ) -> None:
        super().__init__()
        self.keeps_state = states > 0
        self.state_shapes = tuple(tuple(example.shape[1:]) for example in examples[len(examples) - states :])
        self._names = {
            _place(turned): name for name, t in (tensors or {}).items() for turned in (t, t.transpose(0, -1))
        }
        pair = [_traced(program, examples, rows) for rows in _ROWS]
        nodes = list(zip(*(traced.graph.nodes for traced in pair), strict=False))
        if len({len(traced.graph.nodes) for traced in pair}) > 1 or any(a.target != b.target for a, b in nodes):
            raise ConfigError(f"the program runs other operations on {_ROWS[0]} rows than on {_ROWS[1]}: {_REMEDY}")
        self._graph = pair[0].graph
        self._graph.owning_module = None
        with self._graph.inserting_after(nodes[len(examples) - 1][0]):
            count = self._graph.call_function(_number_of_rows, nodes[0][:1])
        for ours, theirs in nodes[len(examples) :]:
            self._merge(ours, theirs, pair, count)

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Observations and states, each [N, *shape], to outputs, or to a tuple of outputs and next states."""
        outputs: list[Tensor] = fx.Interpreter(self, graph=self._graph).run(*inputs)
        return tuple(outputs) if self.state_shapes else outputs[0]

    def _merge(self, ours: fx.Node, theirs: fx.Node, pair: Sequence[fx.GraphModule], count: fx.Node) -> None:
        """Make a node of the first run one for any number of rows, from the same one of the second."""
        if ours.op == "get_attr":
            ours.target = self._hold(ours, theirs, pair)
        elif ours.target is nn.functional.linear:
            layer = self._layer(*map(str, ours.args[1:]), traced=pair[0])
            ours.op, ours.target, ours.args = "call_module", layer, ours.args[:1]
        else:
            ours.args = _merged(ours.args, theirs.args, ours, count)  # type: ignore[assignment]
            ours.kwargs = _merged(ours.kwargs, theirs.kwargs, ours, count)  # type: ignore[assignment]
            _free_of_rows(ours)

    def _hold(self, ours: fx.Node, theirs: fx.Node, pair: Sequence[fx.GraphModule]) -> str:
        """The name of the buffer for a tensor of the program."""
        first, second = (getattr(traced, str(n.target)) for traced, n in zip(pair, (ours, theirs), strict=True))
        name = self._names.get(_place(first))
        if name is None and (first.shape != second.shape or not torch.equal(first, second)):
            raise ConfigError(f"a constant of the program changes from call to call: {_REMEDY}")
        name = re.sub(r"\W", "_", name or f"constant_{len(self._buffers)}")
        is_row = first.dim() > 1 and first.numel() == first.shape[-1]
        if is_row and all(user.target in _BROADCAST for user in ours.users):
            first = first.reshape(-1)  # of normalisers: formats take vectors, and matrices as weights only
        if name not in self._buffers:
            self.register_buffer(name, first.detach().clone())
        return name

    def _layer(self, weight: str, bias: str | None = None, *, traced: fx.GraphModule) -> str:
        """The name of the linear layer with these tensors of the program."""
        tensors = {"weight": getattr(traced, weight)} | ({} if bias is None else {"bias": getattr(traced, bias)})
        found = self._names.get(_place(tensors["weight"]), "")
        name = re.sub(r"\W", "_", re.sub(r"\W?weight$", "", found)) or f"layer_{len(self._modules)}"
        outputs, inputs = tensors["weight"].shape
        layer = nn.Linear(inputs, outputs, bias=bias is not None)
        layer.load_state_dict(tensors)
        while hasattr(self, name) and not _equal(self._modules.get(name), layer):
            name += "_"
        self.add_module(name, layer)
        return name


def _merged(ours: object, theirs: object, node: fx.Node, count: fx.Node) -> object:
    """An argument as both runs have it, for any count of rows. Raises ConfigError."""
    if isinstance(ours, fx.Node):
        return ours
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return {key: _merged(value, theirs[key], node, count) for key, value in ours.items()}
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple) and len(ours) == len(theirs):
        return type(ours)(_merged(*pair, node, count) for pair in zip(ours, theirs, strict=True))
    if ours == theirs:
        return ours
    if isinstance(ours, int) and isinstance(theirs, int) and ours * _ROWS[1] == theirs * _ROWS[0]:
        with node.graph.inserting_before(node):
            return node.graph.call_function(_times, (count, ours // _ROWS[0]))
    raise ConfigError(f"operation {node.target} of the program depends on the number of rows: {_REMEDY}")


_REMEDY = "export it with a free batch dimension, each row independent of the others, and without branches on values"


def _traced(program: Program, examples: Sequence[Tensor], rows: int) -> fx.GraphModule:
    """The operations of a run on random rows, without writes in place."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.nn.attention import SDPBackend, sdpa_kernel

    generator = torch.Generator().manual_seed(_SEED)
    inputs = [torch.rand((rows, *example.shape[1:]), generator=generator) for example in examples]
    # oneDNN's recurrent layers and fused attention are operations that ONNX does not have
    quiet = warnings.catch_warnings(action="ignore")  # it speaks of devices that are not here
    with quiet, torch.no_grad(), torch.backends.mkldnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH):
        try:
            traced = make_fx(torch.func.functionalize(program))(*inputs)
        except ConfigError:
            raise
        except Exception as error:
            shapes = ", ".join(str(tuple(value.shape)) for value in inputs)
            raise ConfigError(
                f"the program cannot run on {rows} rows, inputs {shapes}: {type(error).__name__}: "
                f"{reason_of(error)}; {_REMEDY}"
            ) from error
    for node in traced.graph.nodes:
        _fold_linear(traced, node)
        if node.target == _ATEN.copy_.default and not node.users:  # into an input, which nobody reads afterwards
            traced.graph.erase_node(node)
    traced.graph.eliminate_dead_code()
    return traced


def reason_of(error: Exception) -> str:
    """The last words of an error of torch, or the line of TorchScript where it is without words."""
    text = str(error)
    words = [found for found in re.findall(r"\w+Error: *(\w.*)", text) if "TorchScript interpreter" not in found]
    lines = [f"in {line!r}" for line in re.findall(r"(\S.*)\n *~+ <--- HERE", text)]
    return (words or lines or text.strip().splitlines() or ["no message"])[-1]


def _fold_linear(traced: fx.GraphModule, node: fx.Node) -> None:
    """A product with a constant matrix becomes ``linear``, with the names of its weight and bias."""
    if node.target not in (_ATEN.addmm.default, _ATEN.mm.default) or node.kwargs:
        return
    *biases, x, matrix = node.args
    is_transposed = False
    while isinstance(matrix, fx.Node) and matrix.target == _ATEN.t.default:
        matrix, is_transposed = matrix.args[0], not is_transposed
    held = [str(part.target) for part in (matrix, *biases) if isinstance(part, fx.Node) and part.op == "get_attr"]
    if len(held) < 1 + len(biases) or any(getattr(traced, bias).dim() != 1 for bias in held[1:]):
        return
    if not is_transposed:
        weight = getattr(traced, held[0]).t()
        held[0] += "_transposed"
        setattr(traced, held[0], weight)
    node.target, node.args = nn.functional.linear, (x, *held)


def _number_of_rows(x: Tensor) -> int:
    return x.shape[0]


def _times(rows: int, factor: int) -> int:
    return rows * factor


def _free_of_rows(node: fx.Node) -> None:
    """Make a node one for any number of rows. Raises ConfigError."""
    if node.target in _REPLACED:
        node.target = _REPLACED[node.target]
        return
    counts = [found for found in node.all_input_nodes if found.target is _times]
    if node.target in _VIEWS:
        sizes = cast("list[fx.node.Argument]", node.args[1])
        if len(counts) == 1 and -1 not in sizes:
            sizes, counts = [-1 if size is counts[0] else size for size in sizes], []
        node.target, node.args = torch.reshape, (node.args[0], sizes)
    elif counts:
        raise ConfigError(f"operation {node.target} of the program takes the number of rows: {_REMEDY}")


def _scattered(x: Tensor, source: Tensor, dim: int = 0, start: int | None = None, end: int | None = None) -> Tensor:
    """x with a part replaced; the part is mostly the whole, as in ``state[:] = next_state``."""
    start, end, size = start or 0, x.shape[dim] if end is None else end, source.shape[dim]
    if start == 0 and end >= size == x.shape[dim]:
        return source
    return torch.cat((x.narrow(dim, 0, start), source, x.narrow(dim, start + size, x.shape[dim] - start - size)), dim)


def _place(tensor: Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride())


def _equal(first: nn.Module | None, second: nn.Module) -> bool:
    ours, theirs = (() if m is None else tuple(m.state_dict().values()) for m in (first, second))
    return len(ours) == len(theirs) and all(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)
    )
