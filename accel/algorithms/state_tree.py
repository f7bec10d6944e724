"""Nested state (of optimisers, generators, counters) to flat tensors plus JSON and back, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias, Union, cast

import numpy as np
import torch
from torch import Tensor

Tree: TypeAlias = Union[
    "Tensor | np.ndarray | np.generic | bool | int | float | str | None",
    "list[Tree]",
    "tuple[Tree, ...]",
    "Mapping[str, Tree]",
    "Mapping[int, Tree]",
]
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_TENSOR, _ARRAY, _TUPLE, _MAPPING, _FLOAT = "$tensor", "$array", "$tuple", "$mapping", "$float"


def flatten(tree: Tree, tensors: dict[str, Tensor], path: str) -> Json:
    """Put the tree's tensors and arrays into ``tensors`` and return the rest as JSON that refers to them by name.

    Tensors are copied to the CPU. Numpy arrays are the state's own: what changes there later changes the result.

    Args:
        tree: tensors, numpy arrays and scalars, numbers, strings, None, in lists, tuples and mappings with string or
            integer keys.
        tensors: is added to, under names that begin with ``path``.
    Raises:
        TypeError: the tree holds something else; the message says where.
    """
    if isinstance(tree, Tensor):
        return {_TENSOR: _put(tensors, path, tree.detach().to("cpu", copy=True).contiguous())}
    if isinstance(tree, np.ndarray):
        return {_ARRAY: _put(tensors, path, torch.from_numpy(np.require(tree, requirements=["C", "W"])))}
    if isinstance(tree, np.generic):
        return flatten(tree.item(), tensors, path)
    if tree is None or isinstance(tree, bool | int | str):
        return tree
    if isinstance(tree, float):
        return tree if math.isfinite(tree) else {_FLOAT: str(tree)}
    if isinstance(tree, list | tuple):
        items: list[Json] = [flatten(item, tensors, f"{path}.{i}") for i, item in enumerate(tree)]
        return items if isinstance(tree, list) else {_TUPLE: items}
    if isinstance(tree, Mapping):
        return _flatten_mapping(tree, tensors, path)
    raise TypeError(f"{path} is a {type(tree).__name__}, which a checkpoint cannot hold")


def unflatten(json: Json, tensors: Mapping[str, Tensor]) -> Tree:
    """Inverse of ``flatten``. Raises KeyError, TypeError or ValueError on anything ``flatten`` does not produce."""
    if isinstance(json, list):
        return [unflatten(item, tensors) for item in json]
    if not isinstance(json, dict):
        return json
    if len(json) == 1:
        ((tag, value),) = json.items()
        if tag == _TENSOR:
            return tensors[cast(str, value)]
        if tag == _ARRAY:
            return tensors[cast(str, value)].numpy()
        if tag == _FLOAT:
            return float(cast(str, value))
        if tag == _TUPLE:
            return tuple(unflatten(item, tensors) for item in cast("list[Json]", value))
        if tag == _MAPPING:
            return {key: unflatten(item, tensors) for key, item in cast("list[tuple[str, Json]]", value)}
    return {key: unflatten(value, tensors) for key, value in json.items()}


def _flatten_mapping(tree: Mapping[str, Tree] | Mapping[int, Tree], tensors: dict[str, Tensor], path: str) -> Json:
    keys: list[object] = list(tree)
    for key in keys:
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise TypeError(f"{path} has a key {key!r}; a checkpoint's keys are strings or integers")
    items = [(key, flatten(value, tensors, f"{path}.{key}")) for key, value in tree.items()]
    if all(isinstance(key, str) and not key.startswith("$") for key, _ in items):
        return {str(key): value for key, value in items}
    return {_MAPPING: [[key, value] for key, value in items]}


def _put(tensors: dict[str, Tensor], path: str, tensor: Tensor) -> str:
    name, copies = path, 1
    while name in tensors:
        copies += 1
        name = f"{path}#{copies}"
    tensors[name] = tensor
    return name
