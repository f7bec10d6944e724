"""Whether a policy is made of layers and sums whose rounding ``rounded`` knows; errors name what is not."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import NodeProto
from torch import nn

from compressors.errors import UnsupportedLayerError
from compressors.graph.wiring import layer_name
from compressors.int8.codes import SumOfCodes
from compressors.qat.forward_pass import Rules

_KINDS: tuple[type[nn.Module], ...] = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LSTM)


def check_rules(rules: Rules, policy: nn.Module, nodes: Sequence[NodeProto], prefix: str) -> None:
    """Check a plan's layers and sums.

    Args:
        rules: of the plan.
        policy: the module that it is bound to.
        nodes: the unfused graph.
        prefix: what the graph's names of the policy's modules begin with.
    Raises:
        UnsupportedLayerError: one of them.
    """
    seen: set[str] = set()
    for name in (name for layer in rules.layers for name in layer.modules):
        part = policy.get_submodule(name)
        if not any(isinstance(part, kind) and type(part).forward is kind.forward for kind in _KINDS):
            raise UnsupportedLayerError(
                f"layer {name!r} is a {type(part).__name__}, whose rounding qat does not know: make it of torch's "
                f"Linear, Conv or LSTM, keep it whole with qat({name}=float), or use int8"
            )
        if name in seen:
            raise UnsupportedLayerError(
                f"layer {name!r} is called more than once, with a range each time, and qat rounds a module one way: "
                f"use a module for each call, qat({name}=float), or int8"
            )
        seen.add(name)
    modules = dict(policy.named_modules())
    for total in rules.sums:
        if total.module not in modules or not _ends(total, rules.sums, nodes, prefix):
            raise UnsupportedLayerError(
                f"{total.module!r} adds values in 8 bits and goes on: qat needs the sum at the end of a module of "
                "its own, as in a residual block; move it there, or use int8"
            )


def _ends(total: SumOfCodes, sums: Sequence[SumOfCodes], nodes: Sequence[NodeProto], prefix: str) -> bool:
    """Whether a sum is the last that its module does."""
    inside = f"{total.module}."
    readers = [layer_name(node).removeprefix(prefix) for node in nodes if total.made in node.input]
    alone = sum(other.module == total.module for other in sums) == 1
    return alone and not any(name == total.module or name.startswith(inside) for name in readers)
