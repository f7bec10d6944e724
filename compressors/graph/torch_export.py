"""torch.onnx.export without its output; a failure becomes one sentence with the layer, the reason and the remedy."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx
import torch
from onnx import ModelProto
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from accel.compressors.errors import GraphError

_OPERATOR = re.compile(r"operator '?(?:aten::)?(\w+)")
_REMEDY = "that ONNX has, or keep the policy in torch, uncompressed"


def export_model(
    module: nn.Module, examples: Mapping[str, torch.Tensor], output_names: Sequence[str], opset: int
) -> ModelProto:
    """A module in evaluation mode as an ONNX model whose batch is free and whose parameters keep their names.

    Attention is exported as matrix products: ONNX has no operator for torch's fused attention.

    Raises:
        GraphError: an operation has no ONNX operator or cannot be traced; names the layer.
    """
    file = io.BytesIO()
    try:
        with _quiet(module), _unfused_attention(), _Decomposed():
            torch.onnx.export(
                module,
                tuple(examples.values()),
                file,  # type: ignore[arg-type]  # a binary file does, with dynamo=False
                dynamo=False,
                do_constant_folding=False,
                input_names=list(examples),
                output_names=list(output_names),
                dynamic_axes={name: {0: "batch"} for name in (*examples, *output_names)},
                opset_version=opset,
            )
    except Exception as error:  # the exporter raises anything from RuntimeError to its own types
        raise GraphError(_explain(error, module, examples)) from error
    return onnx.load_from_string(file.getvalue())


class _Decomposed(TorchFunctionMode):
    """Computes by other operations what ONNX's operators of this version do not have, or no scheme could compress."""

    def __torch_function__(
        self,
        function: Callable[..., object],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        return _DECOMPOSITIONS.get(function, function)(*args, **(kwargs or {}))


def _rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    axes = tuple(range(-len(normalized_shape), 0))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    normal = x * torch.rsqrt(x.square().mean(axes, keepdim=True) + eps)
    return normal if weight is None else normal * weight


def _vdot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum()


def _lstm(*arguments: Any) -> tuple[Tensor, ...]:  # noqa: ANN401 - as nn.LSTM calls torch.lstm
    """One step of one layer as a matrix product and element-wise operations, which every format knows; others stay.

    i, f, g, o = [W, R] · [x, h] + b_W + b_R;   c' = σ(f) ⊙ c + σ(i) ⊙ tanh(g);   h' = σ(o) ⊙ tanh(c')
    """
    if not _is_one_step(*arguments):
        made: tuple[Tensor, ...] = torch.lstm(*arguments)
        return made
    x, state, weights, *_, batch_first = arguments
    time = 1 if batch_first else 0
    w_input, w_hidden, *biases = weights
    size = int(w_hidden.shape[1])

    def sigmoids_first(rows: Tensor) -> Tensor:
        return torch.cat((rows[: 2 * size], rows[3 * size :], rows[2 * size : 3 * size]))

    h, c = (part.squeeze(0) for part in state)
    weight = sigmoids_first(torch.cat((w_input, w_hidden), 1))
    bias = sigmoids_first(biases[0] + biases[1]) if biases else None
    opening, candidate = torch.split(
        functional.linear(torch.cat((x.squeeze(time), h), 1), weight, bias), [3 * size, size], 1
    )
    i, f, o = torch.split(torch.sigmoid(opening), [size] * 3, 1)
    c = f * c + i * torch.tanh(candidate)
    h = o * torch.tanh(c)
    return h.unsqueeze(time), h.unsqueeze(0), c.unsqueeze(0)


def _is_one_step(x: Tensor, state: object, weights: Sequence[Tensor], *options: object) -> bool:
    """Whether an LSTM has one layer and direction, no projection, and reads one step, not a packed sequence."""
    if isinstance(state, Tensor):  # sizes of batches
        return False
    has_biases, layers, _, _, is_bidirectional, batch_first = options
    is_plain = layers == 1 and not is_bidirectional and len(weights) == (4 if has_biases else 2)
    return is_plain and x.shape[1 if batch_first else 0] == 1


_DECOMPOSITIONS: dict[Callable[..., object], Callable[..., object]] = {
    functional.rms_norm: _rms_norm,
    torch.vdot: _vdot,
    torch.dot: _vdot,
    torch.lstm: _lstm,
}


@contextmanager
def _quiet(module: nn.Module) -> Iterator[None]:
    """Suppress warnings of deprecation and tracing, and the graph that a failure prints on stdout.

    The exporter switches its log on before it traces, so a hook of the module switches it off again.
    """
    hook = module.register_forward_pre_hook(lambda *_: torch._C._jit_set_onnx_log_enabled(False))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hook.remove()
        torch._C._jit_set_onnx_log_enabled(False)


@contextmanager
def _unfused_attention() -> Iterator[None]:
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _explain(error: Exception, module: nn.Module, examples: Mapping[str, torch.Tensor]) -> str:
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    reason = reason.split(" Please feel free")[0].split("  [Caused by")[0].rstrip(".")
    found = _OPERATOR.search(reason)
    layer = _layer_of(found[1], module, examples) if found else None
    if layer is None:
        name = type(module).__name__
        return f"the policy {name} cannot be exported to ONNX: {reason}; build it from operations {_REMEDY}"
    kind = type(module.get_submodule(layer)).__name__
    where = f"layer {layer!r} ({kind})" if layer else f"the forward of {kind}"
    return f"{where} cannot be exported to ONNX: {reason}; replace it by layers or operations {_REMEDY}"


def _layer_of(operator: str, module: nn.Module, examples: Mapping[str, torch.Tensor]) -> str | None:
    """Name of the module in whose forward an operator runs first ("": the policy's own); None if it is not found."""
    try:
        with _quiet(module), _unfused_attention(), torch.no_grad():
            traced = torch.jit.trace(module, tuple(examples.values()), check_trace=False)  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001 - the exporter's own error says why it cannot be traced
        return None
    for node in traced.inlined_graph.nodes():
        if node.kind() == f"aten::{operator}":
            scope: str = node.scopeName()
            return scope.rpartition("/")[2].removeprefix("__module").removeprefix(".")
    return None
