"""A transformer that acts step by step: it attends to its own inputs of the last steps, which are its state.

Layer l, with x_t its input, M_t the inputs of the ``MEMORY`` steps before in the same episode, and N layer norms:

    y_t = W_O softmax(q(N x_t) · k(N [M_t, x_t]) / √d + b_{distance}) v(N [M_t, x_t]);   u_t = gate(x_t, relu(y_t))
    x'_t = gate(u_t, relu(W_2 relu(W_1 N u_t)))

    gate(x, y) = (1 − z) ∘ x + z ∘ n:   r, z = σ(W^{rz} y + U^{rz} x),   n = tanh(W^n y + U^n (r ∘ x))

z begins near 0, so that a fresh layer passes its input on. The learner attends over a whole unroll at once.
Source: Parisotto et al. 2019, arXiv:1910.06764 (GTrXL-GRU). Deviations: a bias for each distance and head in place of
sinusoids, and gradients that end with the unroll, as its memory is stored with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor, nn

from accel.experience.transfer import to_device
from accel.networks.core import RecurrentCore
from accel.networks.initialisation import orthogonal
from accel.networks.text import HEADS

MEMORY = 32
_GATE_BIAS = -2.0
_HIDDEN = -1e9  # what is added to the logits of steps that are not there


class TransformerCore(RecurrentCore):
    """See the module.

    Attributes:
        size: D, the width. state_shapes: of each layer its inputs, MEMORY · D; 1 for each step that is there.
    """

    def __init__(self, features: int, size: int, layers: int) -> None:
        super().__init__(size, *((MEMORY * size,),) * layers, (MEMORY,))
        self.embedding = orthogonal(nn.Linear(features, size), 1.0)
        self.layers = nn.ModuleList(_Layer(size) for _ in range(layers))

    def forward(self, features: Tensor, first: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """A whole unroll; see ``RecurrentCore``."""
        length = len(features)
        episodes = to_device(first, features.device).long().cumsum(0).t()  # [B, T]
        of_rows = torch.cat((torch.where(state[-1] > 0, 0, -1), episodes), 1)
        distance = (torch.arange(length)[:, None] + MEMORY - torch.arange(MEMORY + length)).to(features.device)
        near = (distance >= 0) & (distance <= MEMORY)
        hidden = ~(near & (episodes[:, :, None] == of_rows[:, None, :]))
        places = distance.clamp(0, MEMORY)
        x, after = self._run(features.transpose(0, 1), state, hidden, lambda biases: biases[:, places])
        kept = (of_rows[:, -MEMORY:] == episodes[:, -1:]).to(features.dtype)
        return x.transpose(0, 1), (*((rows * kept[:, :, None]).flatten(1) for rows in after), kept)

    def step(self, features: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One row without resets; see ``RecurrentCore``."""
        there = nn.functional.pad((state[-1] > 0).to(features.dtype), (0, 1), value=1.0)
        hidden = (1.0 - there)[:, None]
        x, after = self._run(features[:, None], state, hidden, lambda biases: biases.flip(1)[:, None])
        return x.flatten(1), (*(rows.flatten(1) for rows in after), there[:, 1:])

    def _run(
        self, features: Tensor, state: tuple[Tensor, ...], hidden: Tensor, placed: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """[B, T, F], what is hidden [B, T, MEMORY + T] and biases by place, to the output and the inputs to keep."""
        x, after = self.embedding(features), []
        kept, away = (state[-1] > 0).to(x.dtype)[:, :, None], hidden.to(x.dtype)[:, None] * _HIDDEN
        for layer, memory in zip(cast("Iterable[_Layer]", self.layers), state[:-1], strict=True):
            rows = torch.cat((memory.view(-1, MEMORY, self.size) * kept, x), 1)
            after.append(rows[:, -MEMORY:].detach())
            x = layer(x, rows, placed(layer.biases) + away)
        return x, after


class _Layer(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(size), nn.LayerNorm(size)
        self.query, self.key, self.value, self.joined = (orthogonal(nn.Linear(size, size), 1.0) for _ in range(4))
        self.biases = nn.Parameter(torch.zeros(HEADS, MEMORY + 1))
        self.up, self.down = orthogonal(nn.Linear(size, 2 * size)), orthogonal(nn.Linear(2 * size, size))
        self.first, self.second = _Gate(size), _Gate(size)

    def forward(self, x: Tensor, rows: Tensor, bias: Tensor) -> Tensor:
        """[B, T, D], the rows that are attended to [B, S, D], and what is added to logits [B, HEADS, T, S]."""
        normed = self.before(rows)
        q, k, v = (
            self._heads(self.query(self.before(x))),
            self._heads(self.key(normed)),
            self._heads(self.value(normed)),
        )
        weights = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(q.shape[3]) + bias, 3)
        x = self.first(x, torch.relu(self.joined((weights @ v).transpose(1, 2).flatten(2))))
        gated: Tensor = self.second(x, torch.relu(self.down(torch.relu(self.up(self.between(x))))))
        return gated

    def _heads(self, rows: Tensor) -> Tensor:
        """[B, S, D] to [B, HEADS, S, d]."""
        return rows.view(*rows.shape[:2], HEADS, -1).transpose(1, 2)


class _Gate(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.made, self.kept = orthogonal(nn.Linear(size, 3 * size), 1.0), orthogonal(nn.Linear(size, 2 * size), 1.0)
        self.reset = orthogonal(nn.Linear(size, size, bias=False), 1.0)
        with torch.no_grad():
            self.made.bias[size : 2 * size] = _GATE_BIAS

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        r_y, z_y, n_y = self.made(y).chunk(3, -1)
        r_x, z_x = self.kept(x).chunk(2, -1)
        z = torch.sigmoid(z_y + z_x)
        n = torch.tanh(n_y + self.reset(torch.sigmoid(r_y + r_x) * x))
        return torch.lerp(x, n, z)
