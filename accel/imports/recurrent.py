"""Recurrent policies of torch layers: what comes before, LSTM or GRU, what comes after; one step a call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from accel.errors import CheckpointError
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

    def forward(self, observations: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        """[B, *obs] and each [B, H] to outputs [B, P] and each next [B, H]."""
        x: Tensor = self.before(observations)
        following: list[Tensor] = []
        for core, count in zip(self.cores, self._sizes, strict=True):
            x, state = core.step(x, states[len(following) : len(following) + count])  # type: ignore[operator]
            following += state
        return (self.after(x), *following)


def read_cores(weights: Mapping[str, Tensor], prefix: str) -> list[LSTMCore | GRUCore]:
    """The layers of an ``nn.LSTM`` or ``nn.GRU`` from its state dict; empty without one. Raises CheckpointError."""
    found = [re.fullmatch(rf"{re.escape(prefix)}weight_ih_l(\d+)", name) for name in weights]
    return [_core(weights, prefix, layer) for layer in range(sum(match is not None for match in found))]


def _core(weights: Mapping[str, Tensor], prefix: str, layer: int) -> LSTMCore | GRUCore:
    names = [f"{kind}_{side}" for kind in ("weight", "bias") for side in ("ih", "hh")]
    try:
        arrays = [weights[f"{prefix}{name}_l{layer}"] for name in names]
        gates, size, inputs = arrays[1].shape[0], arrays[1].shape[1], arrays[0].shape[1]
        if gates == 4 * size:
            core: LSTMCore | GRUCore = (lstm := LSTMCore(inputs, size))
            targets: list[Tensor] = [getattr(lstm.lstm, f"{name}_l0") for name in names]
        else:
            core = gru = GRUCore(inputs, size)
            targets = [gru.input.weight, gru.hidden.weight, gru.input.bias, gru.hidden.bias]
        with torch.no_grad():
            for target, array in zip(targets, arrays, strict=True):
                if target.shape != array.shape or not array.isfinite().all():
                    raise ValueError(f"it has {tuple(array.shape)} numbers for {tuple(target.shape)}")
                target.copy_(array)
    except (KeyError, ValueError, IndexError, RuntimeError) as error:
        raise CheckpointError(f"recurrent layer {prefix!r} is damaged, or no plain LSTM or GRU: {error}") from error
    return core
