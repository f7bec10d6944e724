"""Coupled channel groups of a policy, found by torch-pruning, and the parameter slices that each group consists of."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch_pruning
from numpy.typing import NDArray
from torch import nn

from accel.compressors.errors import UnsupportedLayerError

IndexArray = NDArray[np.int64]


@dataclass(frozen=True)
class Cut:
    """The indices of a group's channels along one axis of one parameter.

    Attributes:
        parameter: its name.
        axis: its axis.
        index: indices along the axis.
        channel: the group's channel at each index.
        produces: whether the parameter produces the channels (rows, biases) or reads them (columns).
    """

    parameter: str
    axis: int
    index: IndexArray
    channel: IndexArray
    produces: bool


@dataclass(frozen=True)
class ChannelGroup:
    """Coupled channels: channel c of all members has to be removed at once.

    Attributes:
        name: the layer that produces them.
        size: number of channels.
        cuts: their indices in every parameter that produces or reads them.
    """

    name: str
    size: int
    cuts: tuple[Cut, ...]


def find_groups(module: nn.Module, example_inputs: Mapping[str, torch.Tensor]) -> list[ChannelGroup]:
    """The groups of all layers but heads and LSTMs, whose removal would change the shapes of outputs and states.

    Raises:
        UnsupportedLayerError: the policy has a layer other than Linear, Conv2d and a plain nn.LSTM.
    """
    # groups are found along gradients, which a policy loaded for playing has none of
    module = copy.deepcopy(module).requires_grad_(True)
    names = dict(_layers(module))
    found: list[ChannelGroup] = []
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")  # about parameters outside of layers, such as a head's log standard deviations
        graph = torch_pruning.DependencyGraph().build_dependency(module, tuple(example_inputs.values()))
        for items in graph.get_all_groups(root_module_types=[nn.Linear, nn.Conv2d]):
            group = _group(items, names)
            if group is not None:
                found.append(group)
    return found


def _layers(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    for name, layer in module.named_modules():
        if isinstance(layer, nn.LSTM):
            if layer.num_layers > 1 or layer.bidirectional or layer.proj_size:
                raise UnsupportedLayerError(
                    f"prune supports LSTMs of one layer and direction without projection, not {name!r}; use a scheme "
                    "without prune"
                )
        elif isinstance(layer, nn.Conv2d) and layer.groups > 1:
            raise UnsupportedLayerError(
                f"prune supports convolutions of one group, not {name!r} of {layer.groups}; use a scheme without prune"
            )
        elif getattr(layer, "keeps_state", False):
            raise UnsupportedLayerError(
                f"prune supports nn.LSTM, and the recurrent steps in {name or 'the policy'!r} are single operations; "
                "use a scheme without prune"
            )
        elif not isinstance(layer, nn.Linear | nn.Conv2d) and _has_weights(layer):
            raise UnsupportedLayerError(
                f"prune supports Linear, Conv2d and nn.LSTM layers, not {name!r}, a {type(layer).__name__}; use a "
                "scheme without prune, or another layer"
            )
        yield layer, name


def _has_weights(layer: nn.Module) -> bool:
    """Own matrices, or any parameter of a torch module; single vectors belong to outputs."""
    own = list(layer.parameters(recurse=False))
    return any(p.dim() > 1 for p in own) or (bool(own) and type(layer).__module__.startswith("torch.nn"))


def _group(items: torch_pruning.dependency.Group, names: Mapping[nn.Module, str]) -> ChannelGroup | None:
    root = items[0].dep.target.module
    reaches_output = any(type(item.dep.target.module).__name__ == "_OutputOp" for item in items)
    lone_parameter = any(isinstance(item.dep.target.module, nn.Parameter) for item in items)
    if reaches_output or lone_parameter or not _is_read(items, names):
        return None
    cuts: list[Cut] = []
    for item in items:
        layer = item.dep.target.module
        if layer in names:
            index, channel = (np.asarray(values, dtype=np.int64) for values in (item.idxs, item.root_idxs))
            produces = item.dep.handler.__name__ == "prune_out_channels"
            if produces and isinstance(layer, nn.LSTM):
                return None  # its units are a part of the policy's state
            cuts += _cuts(layer, names[layer], index, channel, produces)
    size = 1 + max(int(cut.channel.max()) for cut in cuts)
    if any(len(np.unique(cut.channel)) < size for cut in cuts):
        return None  # a layer reads some of the channels, as of the gates that a GRU computes at once
    return ChannelGroup(names[root], size, tuple(cuts))


def _is_read(items: torch_pruning.dependency.Group, names: Mapping[nn.Module, str]) -> bool:
    """Whether a layer reads the group; if none does, it is a head."""
    return any(i.dep.handler.__name__ == "prune_in_channels" and i.dep.target.module in names for i in items)


def _cuts(layer: nn.Module, name: str, index: IndexArray, channel: IndexArray, produces: bool) -> list[Cut]:
    prefix = f"{name}." if name else ""
    if isinstance(layer, nn.LSTM):
        return [Cut(f"{prefix}weight_ih_l0", 1, index, channel, False)]
    weight = Cut(f"{prefix}weight", 0 if produces else 1, index, channel, produces)
    if not produces or getattr(layer, "bias", None) is None:
        return [weight]
    return [weight, Cut(f"{prefix}bias", 0, index, channel, True)]
