"""torch's exporter, made quiet, and its failures in one sentence: the layer, the reason, the remedy."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import onnx
import torch
from onnx import ModelProto
from torch import nn

from compressors.errors import GraphError

_OPERATOR = re.compile(r"operator '?(?:aten::)?(\w+)")
_REMEDY = "or run the actors on torch, uncompressed: --actor-runtime torch --compressor fp32"


def export_model(
    module: nn.Module, examples: Mapping[str, torch.Tensor], output_names: Sequence[str], opset: int
) -> ModelProto:
    """A module in evaluation mode as an ONNX model whose batch is free and whose parameters keep their names.

    Attention is taken apart into products, which ONNX has, rather than as torch's one fast operator, which it has not.

    Raises:
        GraphError: what ONNX has no operator for, or what cannot be traced; names the layer.
    """
    file = io.BytesIO()
    try:
        with _quiet(module), _attention_in_parts():
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


@contextmanager
def _quiet(module: nn.Module) -> Iterator[None]:
    """No notices of deprecation and tracing, and on failure no graph on stdout.

    The exporter always switches its log on, before it traces: the module switches it off when it is called.
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
def _attention_in_parts() -> Iterator[None]:
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
        return f"the policy {type(module).__name__} cannot be exported to ONNX: {reason}; replace that part, {_REMEDY}"
    kind = type(module.get_submodule(layer)).__name__
    where = f"layer {layer!r} ({kind})" if layer else f"the forward of {kind}"
    return f"{where} cannot be exported to ONNX: {reason}; replace it by other layers or operations, {_REMEDY}"


def _layer_of(operator: str, module: nn.Module, examples: Mapping[str, torch.Tensor]) -> str | None:
    """The module in whose forward an operator runs first, "" for the policy's own; None if it is not found."""
    try:
        with _quiet(module), _attention_in_parts(), torch.no_grad():
            traced = torch.jit.trace(module, tuple(examples.values()), check_trace=False)  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001 - what the exporter could not trace either, which its own error says
        return None
    for node in traced.inlined_graph.nodes():
        if node.kind() == f"aten::{operator}":
            scope: str = node.scopeName()
            return scope.rpartition("/")[2].removeprefix("__module").removeprefix(".")
    return None
