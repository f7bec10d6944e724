"""Compression schemes as text: parses and prints ``prune(0.5)+int8``. Imports nothing heavy.

Arguments may include per-layer choices, as in ``prune(0.5,torso.layers.0=0.25)+int8(policy_head=float)``; see
``accel.compressors.layer_choices``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from accel.compressors.errors import SchemeError

if TYPE_CHECKING:
    from torch import Tensor, nn

    StudentFactory = Callable[[str, nn.Module], nn.Module]
    Divergence = Callable[[Tensor, Tensor], Tensor]

_METHOD = re.compile(r"\s*([a-z][a-z0-9-]*)\s*(?:\(([^()+]*)\))?\s*")
_ARGUMENT = re.compile(r"[A-Za-z0-9_.-]+(=[A-Za-z0-9_.-]+)?")

# method name -> module:what binds it to a policy; resolved on demand because most of these modules import torch
METHODS = {
    "fp32": "accel.compressors.fp32:FloatEncoder",
    "fp16": "accel.compressors.fp32:half_encoder",
    "int8": "accel.compressors.int8.static:Int8Encoder",
    "qat": "accel.compressors.int8.static:Int8Encoder",
    "int4": "accel.compressors.int4:Int4Encoder",
    "prune": "accel.compressors.prune.structured:PrunedModule",
    "lowrank": "accel.compressors.lowrank:FactoredModule",
    "distill": "accel.compressors.distill:Student",
}
FORMATS = frozenset({"fp32", "fp16", "int8", "qat", "int4"})


@dataclass(frozen=True)
class MethodText:
    """One method of a scheme: name and arguments as written, such as ``prune`` and ``("0.5",)``."""

    name: str
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({','.join(self.arguments)})" if self.arguments else self.name


@dataclass(frozen=True)
class Scheme:
    """A chain of methods, applied from left to right; ``str`` prints what ``parse_scheme`` reads."""

    methods: tuple[MethodText, ...]

    def __str__(self) -> str:
        return "+".join(str(method) for method in self.methods)


def parse_scheme(text: str) -> Scheme:
    """Read a scheme such as ``int8`` or ``prune(0.5)+int8``; checks names and syntax, not the arguments' meaning.

    Raises:
        SchemeError: malformed text or an unknown name; the message lists the choices.
    """
    return Scheme(tuple(_parse_method(part, text) for part in text.split("+")))


def _parse_method(part: str, text: str) -> MethodText:
    match = _METHOD.fullmatch(part)
    if match is None:
        raise SchemeError(f"{part.strip()!r} in scheme {text!r} does not have the form name or name(argument,…)")
    name, inside = match.groups()
    if name not in METHODS:
        raise SchemeError(f"unknown method {name!r} in scheme {text!r}; choose from {', '.join(METHODS)}")
    if inside is None:
        return MethodText(name)
    arguments = tuple(argument.strip() for argument in inside.split(","))
    for argument in arguments:
        if not _ARGUMENT.fullmatch(argument):
            raise SchemeError(
                f"{argument!r} in scheme {text!r} is not an argument; use letters, digits and . _ -, or layer=choice"
            )
    return MethodText(name, arguments)
