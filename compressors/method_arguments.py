"""The arguments of a scheme's methods, parsed and checked without torch: a launcher refuses a scheme before it starts.

``make_compressor`` and ``check_scheme`` parse by the same function, so that they agree.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, get_args

from accel.compressors.errors import SchemeError
from accel.compressors.layer_choices import split_arguments
from accel.compressors.scheme import FORMATS, MethodText, Scheme, parse_scheme

Variant = Literal["u8s8", "reduce_range", "s8s8"]
LayerFormat = Literal["int8", "x16", "float", "int4"]
"""How a layer computes under ``int8``: integers, integers on activations of two bytes, floats, or 4-bit weights."""

_VARIANTS: tuple[Variant, ...] = get_args(Variant)
_LAYER_FORMATS: tuple[LayerFormat, ...] = get_args(LayerFormat)
WEIGHT_BITS = {"w2": 2, "w3": 3, "w4": 4}
INPUT_BITS = {f"x{bits}": bits for bits in range(2, 9)}
_STUDENT = re.compile(r"[1-9][0-9]*x[1-9][0-9]*")
_REFUSED_BY_QAT = {
    "lowrank": "the learner's network does not have its factors",
    "distill": "actors run a student, which the learner does not train by its loss",
}


def check_scheme(text: str) -> Scheme:
    """Parse a scheme and check it as far as that can be done without the policy's network.

    Raises:
        SchemeError: malformed text, an unknown name, an argument out of range, methods that cannot be combined.
    """
    scheme = parse_scheme(text)
    for method in scheme.methods:
        parse_arguments(method)
    check_order(scheme)
    return scheme


def parse_arguments(method: MethodText) -> tuple[object, ...]:
    """The first arguments of what binds a method; those of ``int8`` are ``Int8Encoder``'s.

    Raises:
        SchemeError: one that the method does not take.
    """
    name, arguments = method.name, method.arguments
    if name in ("int8", "qat"):
        return _parse_int8(arguments, name)
    if name == "prune":
        return _parse_shares(name, arguments, 0.0, "the share to remove")
    if name == "lowrank":
        return _parse_shares(name, arguments, 1.0, "the rank as a share of the full one")
    if name == "distill":
        if len(arguments) != 1 or not _STUDENT.fullmatch(arguments[0]):
            raise SchemeError(f"{method}: give the student's size as units x layers, such as 64x2")
    elif arguments:
        raise SchemeError(f"{name} takes no arguments, but got {', '.join(arguments)}")
    return arguments


def check_order(scheme: Scheme) -> None:
    """Whether the methods can be combined in this order.

    Raises:
        SchemeError: more than one format, one that is not last, a ``distill`` that is not first, a method twice, a
            reduction that ``qat`` cannot follow.
    """
    stored = [method for method in scheme.methods if method.name in FORMATS]
    reductions = [method for method in scheme.methods if method.name not in FORMATS]
    if len(stored) > 1:
        raise SchemeError(f"scheme {str(scheme)!r} has {len(stored)} number formats; keep one, at its end")
    if stored and scheme.methods[-1] is not stored[0]:
        ordered = Scheme((*reductions, stored[0]))
        raise SchemeError(f"in scheme {str(scheme)!r} '{stored[0]}' must come last: write {ordered}")
    names = [reduction.name for reduction in reductions]
    if "distill" in names[1:]:
        raise SchemeError(f"in scheme {str(scheme)!r} distill replaces the whole policy and must come first")
    if len(set(names)) < len(names):
        raise SchemeError(f"scheme {str(scheme)!r} has a method twice; keep one of them")
    for reduction in reductions if stored and stored[0].name == "qat" else ():
        if reduction.name in _REFUSED_BY_QAT:
            raise SchemeError(
                f"{reduction}+{stored[0]}: {_REFUSED_BY_QAT[reduction.name]}; use {reduction}+int8, or prune(0.5)+qat"
            )


def _parse_int8(arguments: Sequence[str], name: str) -> tuple[object, ...]:
    """One of the variants, formats by layer, one width of weights and one of observations."""
    plain, choices = split_arguments(arguments)
    variants = [variant for variant in _VARIANTS if variant in plain]
    widths = [bits for option, bits in WEIGHT_BITS.items() if option in plain]
    inputs = [bits for option, bits in INPUT_BITS.items() if option in plain]
    unknown = [option for option in plain if option not in (*_VARIANTS, *WEIGHT_BITS, *INPUT_BITS)]
    chosen_twice = any(len(chosen) > 1 for chosen in (variants, widths, inputs)) or len(set(plain)) < len(plain)
    if unknown or chosen_twice:
        raise SchemeError(
            f"{name}({','.join(arguments)}): options are one of {', '.join(_VARIANTS)}, one of "
            f"{', '.join(WEIGHT_BITS)} and one of {', '.join(INPUT_BITS)}, each once, and layer=format"
        )
    layers: list[tuple[str, LayerFormat]] = []
    for layer, text in choices.items():
        chosen = next((choice for choice in _LAYER_FORMATS if choice == text), None)
        if chosen is None:
            raise SchemeError(f"{name}({layer}={text}): a layer's format is one of {', '.join(_LAYER_FORMATS)}")
        if name == "qat" and chosen in ("int4", "x16"):
            raise SchemeError(
                f"{name}({layer}={chosen}): {name} supports int8 layers only; use {layer}=float, or the format int8"
            )
        layers.append((layer, chosen))
    variant = variants[0] if variants else None
    width, input_bits = (chosen[0] if chosen else None for chosen in (widths, inputs))
    return variant, tuple(layers), width, input_bits, name == "int8"


def _parse_shares(name: str, arguments: Sequence[str], unchanged: float, meaning: str) -> tuple[object, ...]:
    """The share of every layer's units or rank, and those of single layers.

    ``unchanged`` leaves a layer as it is; the opposite one would leave nothing of it.
    """
    plain, choices = split_arguments(arguments)
    layers = tuple((layer, _number(text)) for layer, text in choices.items())
    for layer, share in layers:
        if not 0.0 <= share <= 1.0:
            raise SchemeError(f"{name}({layer}={choices[layer]}): give a share from 0 to 1 for a layer")
    if plain or not layers:
        ratio = _number(plain[0]) if len(plain) == 1 else -1.0
        in_range = 0.0 < ratio < 1.0
    else:
        ratio, in_range = unchanged, any(share != unchanged for _, share in layers)
    if not in_range or any(share == 1.0 - unchanged for _, share in layers):
        raise SchemeError(
            f"{name}({','.join(arguments)}): give {meaning}, between 0 and 1; layer=share for single layers"
        )
    return ratio, layers


def _number(text: str) -> float:
    """The number that a text is; -1, out of every range, where it is none."""
    try:
        return float(text)
    except ValueError:
        return -1.0
