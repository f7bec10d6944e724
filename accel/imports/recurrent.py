"""Recurrent policies of torch layers: what comes before, LSTM or GRU, what comes after; one step a call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from accel.errors import CheckpointError
from accel.imports.torch_files import fill
from accel.networks.core import GRUCore, LSTMCore


class SteppedPolicy(nn.Module):
    """Observations and states to outputs and next states.

    Attributes:
        state_shapes: of one row's states.
    """

    def __init__(self, before: nn.Module, cores: Sequence[LSTMCore | GRUCore], after: nn.Module) -> None:
        super().__init__()
        self.before, self.cores, self.after = before, nn.ModuleList(cores), after
        self._sizes = [len(core.state_shapes) for core in cores]
        self.state_shapes = tuple(shape for core in cores for shape in core.state_shapes)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Each part of the observations [B, *shape] and each state [B, H] to outputs [B, P] and each next [B, H]."""
        observed = len(inputs) - len(self.state_shapes)
        states = inputs[observed:]
        x: Tensor = self.before(*inputs[:observed])
        following: list[Tensor] = []
        for core, count in zip(self.cores, self._sizes, strict=True):
            x, state = core.step(x, states[len(following) : len(following) + count])  # type: ignore[operator]
            following += state
        return (self.after(x), *following)


def read_cores(weights: Mapping[str, Tensor], prefix: str, name: str) -> list[LSTMCore | GRUCore]:
    """The layers of an ``nn.LSTM`` or ``nn.GRU`` from its state dict; empty without one. Raises CheckpointError."""
    found = [re.fullmatch(rf"{re.escape(prefix)}weight_ih_l(\d+)", key) for key in weights]
    return [_core(weights, prefix, layer, name) for layer in range(sum(match is not None for match in found))]


def _core(weights: Mapping[str, Tensor], prefix: str, layer: int, name: str) -> LSTMCore | GRUCore:
    parts = {
        f"{kind}_{side}": weights.get(f"{prefix}{kind}_{side}_l{layer}", torch.empty(0))
        for kind in ("weight", "bias")
        for side in ("ih", "hh")
    }
    shapes = [tuple(parts[f"weight_{side}"].shape) for side in ("ih", "hh")]
    if any(len(shape) != 2 or 0 in shape for shape in shapes):
        raise CheckpointError(f"{name}: recurrent layer {prefix!r} is damaged, or no plain LSTM or GRU")
    inputs, (gates, size) = shapes[0][1], shapes[1]
    core: LSTMCore | GRUCore = LSTMCore(inputs, size) if gates == 4 * size else GRUCore(inputs, size)
    if isinstance(core, LSTMCore):
        fill(core, {f"lstm.{key}_l0": tensor for key, tensor in parts.items()}, name)
    else:
        ours = {"ih": "input", "hh": "hidden"}
        fill(core, {f"{ours[key[-2:]]}.{key[:-3]}": tensor for key, tensor in parts.items()}, name)
    return core
