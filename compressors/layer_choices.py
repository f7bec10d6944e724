"""Per-layer choices in a scheme's arguments, such as ``torso.layers.0=0.5``.

A layer is named as in the policy. A prefix such as ``torso`` names every layer under it; the longest matching name
decides. Both factors of a layer that ``lowrank`` factorised match the layer's own name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from accel.compressors.errors import SchemeError

if TYPE_CHECKING:
    from accel.compressors.graph.policy_graph import PolicyGraph

T = TypeVar("T")


def split_arguments(arguments: Iterable[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """A method's plain arguments and its per-layer choices.

    Raises:
        SchemeError: a layer is named twice.
    """
    plain: list[str] = []
    choices: dict[str, str] = {}
    for argument in arguments:
        layer, equals, choice = argument.partition("=")
        if not equals:
            plain.append(argument)
        elif layer in choices:
            raise SchemeError(f"layer {layer!r} has two choices, {choices[layer]!r} and {choice!r}; keep one")
        else:
            choices[layer] = choice
    return tuple(plain), choices


def choice_for(layer: str, choices: Sequence[tuple[str, T]], default: T) -> T:
    """The choice of the longest name that matches a layer, or the default."""
    matching = [(len(name), choice) for name, choice in choices if _matches(name, layer)]
    return max(matching, key=lambda pair: pair[0])[1] if matching else default


def check_layers(scheme: str, named: Iterable[str], layers: Iterable[str]) -> None:
    """Check that the policy has every layer that a scheme names.

    Raises:
        SchemeError: a name matches no layer; lists the layers.
    """
    known = list(layers)
    for name in named:
        if not any(_matches(name, layer) for layer in known):
            listed = ", ".join(known) or "none"
            raise SchemeError(f"{scheme} names {name!r}, which is no layer that it applies to; choose from {listed}")


def weight_layer(graph: PolicyGraph, weight: str) -> str:
    """The policy's name of the layer that a graph's weight belongs to; the first one's where layers are merged."""
    return graph.prologue.sources(weight)[0].rpartition(".")[0]


def _matches(name: str, layer: str) -> bool:
    return layer == name or layer.startswith(f"{name}.")
