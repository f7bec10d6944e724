"""Choices layer by layer in a scheme's arguments: ``torso.0=0.5``, where a name stands for what is inside it too.

A layer goes by its name in the policy, such as ``torso.layers.0``; ``torso`` stands for every layer under it, and the
longest name that fits a layer decides. A layer that an earlier method split in factors keeps its name for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from compressors.errors import SchemeError

if TYPE_CHECKING:
    from compressors.graph.policy_graph import PolicyGraph

T = TypeVar("T")

# What ``prune`` puts in front of the names of a recurrent policy, which it wraps.
WRAPPER = "policy."


def split_arguments(arguments: Iterable[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """A method's plain arguments, and its choices by layer.

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


def parse_ratios(method: str, choices: Mapping[str, str]) -> tuple[tuple[str, float], ...]:
    """Choices that are shares between 0 and 1, both included. Raises SchemeError that names the layer."""
    ratios: list[tuple[str, float]] = []
    for layer, text in choices.items():
        try:
            ratio = float(text)
        except ValueError:
            ratio = -1.0
        if not 0.0 <= ratio <= 1.0:
            raise SchemeError(f"{method}({layer}={text}): give a share from 0 to 1 for a layer")
        ratios.append((layer, ratio))
    return tuple(ratios)


def choice_for(layer: str, choices: Sequence[tuple[str, T]], default: T) -> T:
    """What the longest fitting name chooses for a layer."""
    fitting = [(len(name), choice) for name, choice in choices if _fits(name, layer)]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else default


def check_layers(scheme: str, named: Iterable[str], layers: Iterable[str]) -> None:
    """Every layer that a scheme names must be there.

    Raises:
        SchemeError: a name fits no layer; the message lists the layers.
    """
    known = list(layers)
    for name in named:
        if not any(_fits(name, layer) for layer in known):
            listed = ", ".join(layer.removeprefix(WRAPPER) for layer in known) or "none"
            raise SchemeError(f"{scheme} names {name!r}, but the layers that it can choose for are {listed}")


def is_named(layer: str, names: Iterable[str]) -> bool:
    """Whether a layer is named itself, not only what it is part of."""
    return any(name in (layer, layer.removeprefix(WRAPPER)) for name in names)


def weight_layer(graph: PolicyGraph, weight: str) -> str:
    """The name in the policy of the layer that a graph's weight belongs to; of merged layers the first one's."""
    return graph.sources(weight)[0].rpartition(".")[0]


def _fits(name: str, layer: str) -> bool:
    return any(own == name or own.startswith(f"{name}.") for own in (layer, layer.removeprefix(WRAPPER)))
